//! Cleans up the node of a removed manager: it gets no removal by a session; the manager next to it learns of
//! the removal.

use warren_daemon::{CommandError, ExitKind, ShutdownSignals, error_chain};

use super::run::{ContainerReappeared, cleanup_failure, cleared_message, open};
use super::{WorkerSetup, failed};
use crate::session::{Removal, RemovalRecord};
use crate::worker::node_identity;

/// Error summary of an incomplete clean-up.
const NODE_REMOVED: &str =
    "this manager was removed from its cluster, but some local state could not be removed";
/// Command that completes the clean-up.
const RESUME_COMMAND: &str = "warren manager run";

/// Stops and removes all containers of a manager's node that was removed, and returns a summary. Idempotent:
/// a later process completes the rest, and the summary is the same.
///
/// # Errors
/// The clean-up is incomplete, or was interrupted by a signal.
pub async fn clear(
    setup: WorkerSetup,
    reason: &str,
    signals: &mut ShutdownSignals,
) -> Result<String, CommandError> {
    let certified = setup.certificate.identity();
    let (cluster, node) = node_identity(&certified).map_err(|error| failed(NODE_REMOVED, &error, ""))?;
    let note = RemovalRecord::new(&setup.data_dir, cluster, node);
    match note.load() {
        Some(removal) if removal.cleared => return Ok(cleared_message(&removal)),
        Some(_) => {}
        None => {
            let removal = Removal { reason: reason.to_owned(), containers: 0, cleared: false };
            let hint = format!("free some disk space, then complete it with `{RESUME_COMMAND}`");
            note.store(&removal).map_err(|error| failed(NODE_REMOVED, &error, &hint))?;
        }
    }
    tracing::warn!(reason, "stopping and removing all containers of this node");
    let worker = open(setup).await?;
    let gone = tokio::select! {
        gone = worker.wait_for_cleanup() => Some(gone),
        () = signals.next() => None,
    };
    let stopped = worker.stop().await.inspect_err(|error| {
        tracing::warn!(error = error_chain(error), "worker did not stop cleanly");
    });
    let Some(gone) = gone else {
        let hint = format!("complete it with `{RESUME_COMMAND}`");
        return Err(CommandError::new(ExitKind::Failed, NODE_REMOVED, "interrupted", hint));
    };
    gone.map_err(|error| cleanup_failure(&error, RESUME_COMMAND))?;
    stopped.map_err(|error| cleanup_failure(&error, RESUME_COMMAND))?;
    match note.load() {
        Some(removal) if removal.cleared => Ok(cleared_message(&removal)),
        _ => Err(cleanup_failure(&ContainerReappeared, RESUME_COMMAND)),
    }
}
