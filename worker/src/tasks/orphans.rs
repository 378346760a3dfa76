//! Removes orphans: leftovers of containers whose creation or removal was interrupted by a kill.

use std::sync::Arc;

use crate::tasks::supervisor::TaskSupervisor;

/// Orphans may be left.
#[derive(Debug, thiserror::Error)]
pub(super) enum OrphanSweepError {
    #[error("cannot list orphaned containers")]
    List(#[from] warren_runtime::Error),
    #[error("cannot remove orphans: {0}")]
    Remove(String),
}

impl TaskSupervisor {
    /// Removes orphaned parts of containers. It takes some seconds if there are any, so a stopping agent does
    /// not wait for it: the next one starts with it.
    pub(super) async fn sweep(self: &Arc<Self>) -> Result<(), OrphanSweepError> {
        let stop = self.shutdown.token();
        let swept = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            swept = self.executor.runtime.sweep_orphans() => swept?,
        };
        if !swept.is_empty() {
            tracing::info!(?swept, "removed orphaned resources");
        }
        if let Err(error) = self.executor.volumes.sweep().await {
            tracing::warn!(%error, "cannot finish interrupted volume operations");
        }
        match swept.failed.is_empty() {
            true => Ok(()),
            false => Err(OrphanSweepError::Remove(swept.failed.join("; "))),
        }
    }
}
