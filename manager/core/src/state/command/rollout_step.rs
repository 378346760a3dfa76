//! A step of a rollout.

use warren_types::RolloutFailure;

/// What happened in the rollout of a service's current revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RolloutStep {
    /// So many slots are updated. Recorded only with a delay between replacements.
    Updated(u32),
    /// No task is left to replace, and all tasks that run are ready.
    Completed,
    /// Too many tasks failed: it is paused, or the service goes back to an earlier revision.
    Failed(RolloutFailure),
}
