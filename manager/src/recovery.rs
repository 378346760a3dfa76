//! How a machine comes to be a manager, and comes back as one after a loss.
//!
//! [`seat`] says which place in the raft group a directory is for; [`joining`] gives a machine one in a cluster that is
//! there, [`restore`] one in a cluster that is made anew from a [`backup`], and [`alone`] lets one go on without the
//! others. All of it is files: each step leaves a directory that the next start names, so that killing the process at
//! any moment does no harm, and doing it again completes it.

pub mod alone;
pub mod backup;
pub mod joining;
pub mod restore;
pub mod seat;

pub use seat::{Seat, SeatError, Standing};
