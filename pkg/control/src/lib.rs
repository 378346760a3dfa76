//! What every background loop of a manager and a worker is made of: a clock, a back-off, a keyed work
//! queue with its runner, the registry that `warren cluster loops` shows, and an orderly end.
//!
//! This crate knows nothing of services, nodes or tasks, does no IO of its own, and must never hand data
//! to a loop with its wake-up: a wake carries a key (or nothing), and the loop looks at the current state.
//! So losing a wake only makes things late, and start-up, steady state and fail-over are one code path.
//!
//! Start reading at [`Loops`], which runs everything else; then [`Queue`] for the rules about keys.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod attempt;
mod backoff;
mod clock;
mod loops;
mod queue;
mod runner;
mod shutdown;

pub use attempt::BoxError;
pub use backoff::{Backoff, Chance, system_chance};
pub use clock::{Clock, ManualClock, SystemClock};
pub use loops::{Failure, LoopHandle, LoopState, LoopStatus, Loops};
pub use queue::{Queue, QueueFull, QueueHandle};
pub use runner::{Outcome, RunnerSettings};
pub use shutdown::{NotStopped, Shutdown};
