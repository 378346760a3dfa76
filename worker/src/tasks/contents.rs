//! The door to the files of tasks' secrets and configs.

use warren_runtime::Mount;
use warren_types::{NodeSettings, TaskAssignment, TaskId};

use crate::tasks::failure::Failure;

/// Whether the node has a task.
pub(crate) type Has<'a> = &'a (dyn for<'t> Fn(&'t TaskId) -> bool + Send + Sync);

/// The files of tasks' secrets and configs on this node.
#[tonic::async_trait]
pub(crate) trait Contents: Send + Sync {
    /// Makes the files, where they are not all there already, and says how they are mounted: one for each secret and
    /// then one for each config, in the order of the spec. Only what is missing is asked a manager for.
    async fn ensure(&self, task: &TaskAssignment, node: &NodeSettings) -> Result<Vec<Mount>, Failure>;

    /// Removes the files of a task. Harmless where there are none.
    async fn remove(&self, task: &TaskId) -> Result<(), Failure>;

    /// Removes the files of tasks that the node does not have, as `has` says of each; says how many tasks that were.
    async fn sweep(&self, has: Has<'_>) -> Result<usize, Failure>;
}
