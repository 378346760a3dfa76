//! A step of a rollout.

use std::sync::Arc;

use warren_types::{ImageDigest, RolloutFailure};

/// What happened in the rollout of a service's current revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RolloutStep {
    /// So many slots are updated. Recorded only with a delay between replacements.
    Updated(u32),
    /// Managers know what its image is: all tasks run it. Ignored if it is known already.
    ImagePinned(ImageDigest),
    /// Why managers do not know what its image is, or why they used an earlier digest.
    ImageUnresolved(Arc<str>),
    /// No task is left to replace, and all tasks that run are ready.
    Completed,
    /// Too many tasks failed: it is paused, or the service goes back to an earlier revision.
    Failed(RolloutFailure),
}
