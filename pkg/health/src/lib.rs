//! Health checks of tasks, run inside their network and container, and the health that results.
//!
//! [`HealthTracker`] decides, without clock or IO: check results in, health and the time of the next check
//! out. [`Prober`] runs checks, one at a time per task and a bounded number per node. Programs are run
//! through [`Exec`]. This crate never acts on a task, and no answer of a task, however slow or long, takes
//! more than the check's timeout and a few KiB.
//!
//! Start reading at [`HealthTracker`], then [`Prober::check`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod namespace;
mod outcome;
mod probe;
mod probe_target;
mod tracker;

pub use namespace::{SocketError, SocketFactory};
pub use outcome::{CheckResult, MAX_OUTPUT, ProbeOutcome};
pub use probe::{ProbeLimits, Prober};
pub use probe_target::{Exec, ExecResult, ExecStatus, ProbeTarget};
pub use tracker::{HealthTracker, HealthVerdict};
