//! Whether a task is well: checks from inside its network and its container, and what follows from their results.
//!
//! [`Tracker`] decides, without clock or IO: results go in, the task's health and the time of the next check come out.
//! [`Prober`] asks, one check at a time for a task and a bounded number of them for the node. Programs are run through
//! the door [`Exec`]. Nothing here acts on a task, and nothing a task answers, however slow or long, takes more than
//! the check's timeout and a few KiB.
//!
//! Start reading at [`Tracker`], then [`Prober::check`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod door;
mod exec;
mod namespace;
mod outcome;
mod probe;
mod tracker;

pub use door::{Ending, Exec, Ran, Target};
pub use exec::{InContainers, Setups};
pub use outcome::{CheckResult, MAX_OUTPUT, Outcome};
pub use probe::{Limits, Prober};
pub use tracker::{Tracker, Verdict};
