//! The agent of a node: keeps a session with a manager, and makes what it wants true by containerd and the
//! kernel.
//!
//! It decides nothing about a task itself: `warren-task` says what to do next, this crate does it. It must
//! never stop or remove a container because it cannot reach somebody, never keep state that containerd and
//! one disposable cache file do not give back, and never listen on a port of its own.
//!
//! Start reading at [`Worker`], which puts everything together; then `tasks` (what happens to a task) and
//! `session` (what is said to a manager).

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cache;
mod certificate;
mod doors;
mod garbage;
mod handlers;
mod node;
pub mod process;
#[cfg(test)]
mod samples;
#[cfg(test)]
mod scripted;
mod session;
mod tasks;
mod worker;

pub use doors::{Doors, DoorsError, Place};
#[cfg(any(test, feature = "testing"))]
pub use handlers::images::fake::FakeImages;
pub use handlers::images::{Arrival, ImageSource};
pub use node::NodeOverrides;
pub use worker::{Config, NotReady, StartError, StopError, Worker};
