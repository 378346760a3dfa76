//! The deciding half of the manager: what the cluster holds, and what must happen next.
//!
//! Pure: no IO, no clock, no chance, no threads, no floating point, no order that differs per process. The
//! same input gives the same answer on every member and in every replay. It never talks to a worker, a disk
//! or a client; the shell around it proposes the commands that are planned here and feeds them to
//! [`State::apply`].
//!
//! Start reading at [`state::Command`] (every write there is) and [`State::apply`]. Then the planners, each a
//! function of a state: [`schedule`] (which task goes where), [`reconcile`] (which tasks should exist) and
//! [`Liveness`] (which nodes are silent).

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod liveness;
pub mod reason;
pub mod reconcile;
pub mod scheduler;
pub mod session;
pub mod state;
pub mod steady;

pub use liveness::{Hearing, Liveness};
pub use reason::reason;
pub use reconcile::{Plan, Rollout, reap, reap_tokens, reconcile_level, reconcile_service, rollout};
pub use scheduler::{Placement, Refusals, schedule, schedule_up_to};
pub use state::{
    Answer, Applied, Change, Cluster, Command, Departed, Digest, LEVEL, NewTask, Outcome, Refusal, State,
};
pub use steady::Steady;
