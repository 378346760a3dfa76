//! The end of a manager's own node: nobody tells it that it was removed, but the manager beside it hears so of
//! itself.

use warren_process::{Exit, Failure, Signals, chain};

use super::run::{Returned, cleared, not_cleared, open};
use super::{Setup, failed};
use crate::session::{Removal, RemovalNote};
use crate::worker::identity;

/// What happened, for who reads why it failed.
const WHAT: &str =
    "this machine is not a manager of its cluster any more, and not everything that it ran is gone";
/// What finishes it.
const AGAIN: &str = "warren manager run";

/// Has everything stopped and removed that the node of a manager ran which its cluster removed, and says in words what
/// that was. Harmless to repeat: what a process did not finish the next one does, and what is done is said again.
///
/// # Errors
/// Not everything is gone, or a signal came before it was.
pub async fn clear(setup: Setup, reason: &str, signals: &mut Signals) -> Result<String, Failure> {
    let certified = setup.certificate.identity();
    let (cluster, node) = identity(&certified).map_err(|error| failed(WHAT, &error, ""))?;
    let note = RemovalNote::new(&setup.data_dir, cluster, node);
    match note.load() {
        Some(removal) if removal.cleared => return Ok(cleared(&removal)),
        Some(_) => {}
        None => {
            let removal = Removal { reason: reason.to_owned(), containers: 0, cleared: false };
            let hint = format!("free some disk space, then let `{AGAIN}` finish it");
            note.store(&removal).map_err(|error| failed(WHAT, &error, &hint))?;
        }
    }
    tracing::warn!(reason, "everything that this node runs is stopped and removed");
    let worker = open(setup).await?;
    let gone = tokio::select! {
        gone = worker.cleared() => Some(gone),
        () = signals.next() => None,
    };
    let stopped = worker.stop().await.inspect_err(|error| {
        tracing::warn!(error = chain(error), "the worker did not stop in an orderly way");
    });
    let Some(gone) = gone else {
        let hint = format!("let `{AGAIN}` finish it");
        return Err(Failure::new(Exit::Failed, WHAT, "it was interrupted", hint));
    };
    gone.map_err(|error| not_cleared(&error, AGAIN))?;
    stopped.map_err(|error| not_cleared(&error, AGAIN))?;
    match note.load() {
        Some(removal) if removal.cleared => Ok(cleared(&removal)),
        _ => Err(not_cleared(&Returned, AGAIN)),
    }
}
