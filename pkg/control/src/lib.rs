//! Parts of the background tasks of managers and workers: a clock, a backoff, a keyed work queue with its runner, the
//! registry that `warren cluster background-tasks` shows, and graceful shutdown.
//!
//! This crate knows nothing of services, nodes or tasks, does no IO of its own, and must never pass data to a
//! background task with its trigger: a trigger carries a key (or nothing), and the background task reads the current
//! state. So a lost trigger only delays work, and start, steady state and failover are one code path.
//!
//! Start reading at [`BackgroundTasks`], which runs everything else; then [`WorkQueue`] for the rules about keys.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod background;
mod backoff;
mod clock;
mod panic_guard;
mod queue;
mod record;
mod runner;
mod shutdown;

pub use background::{BackgroundTaskHandle, BackgroundTasks};
pub use backoff::{Backoff, RandomSource, system_random};
pub use clock::{Clock, ManualClock, SystemClock};
pub use panic_guard::BoxError;
pub use queue::schedule::KeySchedule;
pub use queue::{WorkQueue, WorkQueueFull, WorkQueueHandle};
pub use record::{BackgroundTaskState, BackgroundTaskStatus, RunFailure};
pub use runner::{RunOutcome, RunnerSettings};
pub use shutdown::{Shutdown, ShutdownTimeout};
