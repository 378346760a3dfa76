//! Interface to the files of tasks' secrets and configs.

use warren_runtime::ContainerMount;
use warren_types::{NodeSettings, TaskAssignment, TaskId};

use crate::tasks::failure::ActionFailure;

/// Whether the node has a task.
pub(crate) type HasTask<'a> = &'a (dyn for<'t> Fn(&'t TaskId) -> bool + Send + Sync);

/// The files of tasks' secrets and configs on this node.
#[tonic::async_trait]
pub(crate) trait SecretObjects: Send + Sync {
    /// Creates the files if they are incomplete, and returns their mounts: one per secret and then one per
    /// config, in the order of the spec. A manager is asked only for missing files.
    async fn ensure(
        &self,
        task: &TaskAssignment,
        node: &NodeSettings,
    ) -> Result<Vec<ContainerMount>, ActionFailure>;

    /// Removes the files of a task, if any.
    async fn remove(&self, task: &TaskId) -> Result<(), ActionFailure>;

    /// Removes the files of unknown tasks; returns the number of tasks.
    async fn sweep(&self, has: HasTask<'_>) -> Result<usize, ActionFailure>;
}
