//! What the runtime has and nobody owns: containers that were half made or half removed when somebody was
//! killed.

use std::sync::Arc;

use crate::tasks::supervisor::Supervisor;

/// Why strays may be left.
#[derive(Debug, thiserror::Error)]
pub(super) enum StraysError {
    #[error("strays cannot be looked for")]
    Look(#[from] warren_runtime::Error),
    #[error("strays could not be removed: {0}")]
    Remove(String),
}

impl Supervisor {
    /// Removes what is left of containers that nobody owns. It takes some seconds where there is something, so
    /// an agent that stops does not wait for it: the next one begins with it.
    pub(super) async fn sweep(self: &Arc<Self>) -> Result<(), StraysError> {
        let stop = self.shutdown.token();
        let swept = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            swept = self.driver.runtime.sweep_strays() => swept?,
        };
        if !swept.is_empty() {
            tracing::info!(?swept, "removed what no container owned");
        }
        if let Err(error) = self.driver.volumes.sweep().await {
            tracing::warn!(%error, "could not finish what was begun with volumes");
        }
        match swept.failed.is_empty() {
            true => Ok(()),
            false => Err(StraysError::Remove(swept.failed.join("; "))),
        }
    }
}
