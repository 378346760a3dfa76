//! The session with a manager: dial one, say who we are, take over what it wants, say what is.
//!
//! There is one session at a time. Losing it changes nothing for the tasks: the next manager is dialled,
//! and what was not stored is said again. Start reading at `link`, which is one session from its first
//! frame to its last.

mod attach;
mod dial;
mod fetch;
mod link;
mod offset;
mod pulse;
mod removal;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::io::AsyncRead;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use warren_control::{Backoff, Chance, Loops};
use warren_image::Imported;
use warren_process::chain;
use warren_proto::v1::sessions_client::SessionsClient;
use warren_runtime::Runtime;
use warren_types::{ClusterId, NodeId};

pub(crate) use attach::{Services, TaskLogs};
pub(crate) use dial::channel;
pub(crate) use dial::{Connected, DialError, Dialer};
pub(crate) use fetch::Fetcher;
pub(crate) use removal::{Outcast, Removal, RemovalNote, removal_file};

use crate::garbage::Pressure;
use crate::node::NodeOverrides;
use crate::node::health::Health;
use crate::node::usage::Meter;
use crate::node::vitals::Vitals;
use crate::tasks::reporter::Reporter;
use crate::wishes::Wishes;

/// First and longest wait between two tries to get a session.
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// An archive that is arriving.
pub(crate) type Archive = Box<dyn AsyncRead + Send + Unpin>;
/// Stores the images of an archive.
pub(crate) type Import =
    Arc<dyn Fn(Archive) -> BoxFuture<'static, Result<Vec<Imported>, warren_image::Error>> + Send + Sync>;
/// Opens a connection to some manager.
pub(crate) type Dial = Arc<dyn Fn() -> BoxFuture<'static, Result<Connected, DialError>> + Send + Sync>;

/// What a session reads and writes; it keeps nothing itself.
pub(crate) struct Context {
    /// Who this node is, by its certificate.
    pub cluster: ClusterId,
    pub node: NodeId,
    pub wishes: watch::Sender<Wishes>,
    pub reporter: Arc<Reporter>,
    pub runtime: Arc<dyn Runtime>,
    pub overrides: NodeOverrides,
    pub meter: Arc<Meter>,
    pub health: Arc<Health>,
    /// What is told of the tasks with a heartbeat.
    pub vitals: Arc<Vitals>,
    /// What managers may ask for by a stream.
    pub services: Arc<Services>,
    pub pressure: Pressure,
    pub loops: Loops,
    pub chance: Chance,
    /// Whether a manager has welcomed this node.
    pub connected: watch::Sender<bool>,
    /// The way to that manager, for what is asked beside the session.
    pub manager: watch::Sender<Option<SessionsClient<Channel>>>,
    /// What a manager says of this node instead of a welcome.
    pub outcast: watch::Sender<Option<Outcast>>,
    /// Where a removal is written down; `None` of a manager's own node, which is never removed.
    pub note: Option<RemovalNote>,
}

/// Keeps a session until the agent stops, or until the node was removed from its cluster.
pub(crate) async fn run(context: Arc<Context>, dial: Dial, stop: CancellationToken) {
    let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
    let mut was_ever_welcome = false;
    while !stop.is_cancelled() {
        let session = async {
            let connected = dial().await?;
            let manager = connected.manager.clone();
            let ended = link::run(&context, connected, &stop).await;
            Ok::<_, DialError>((manager, ended))
        };
        let attempt = tokio::select! {
            () = stop.cancelled() => return,
            attempt = session => attempt,
        };
        let was_welcome = context.connected.send_replace(false);
        context.manager.send_replace(None);
        was_ever_welcome |= was_welcome;
        if was_welcome {
            backoff.reset();
        }
        match attempt {
            Ok((manager, ended)) => {
                tracing::info!(manager, reason = %ended, was_welcome, "session ended");
                let refusal = ended.refusal();
                let read = |status| Outcast::read(status, !was_ever_welcome, context.can_be_removed());
                if let Some(outcast) = refusal.and_then(read) {
                    context.cast_out(outcast).await;
                }
            }
            Err(error) => tracing::info!(%error, failures = backoff.failures(), "no session"),
        }
        if context.is_removed() {
            return;
        }
        // Whoever is not known is only let in again by joining, and must not bother managers meanwhile.
        let wait = match context.outcast.borrow().is_some() {
            true => LONGEST_WAIT,
            false => backoff.next_delay((context.chance)()),
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

impl Context {
    fn is_removed(&self) -> bool {
        matches!(&*self.outcast.borrow(), Some(Outcast::Removed { .. }))
    }

    /// Whether a manager's word that the node was removed is believed. Not from managers that did not know it before,
    /// until one has welcomed it: what they had forgotten they do not remember because they have written more since.
    fn can_be_removed(&self) -> bool {
        self.note.is_some() && self.outcast.borrow().is_none()
    }

    /// Takes over that the node has no place in its cluster. A removal is written down before anything is done, so
    /// that it is finished whatever happens to the agent.
    async fn cast_out(&self, outcast: Outcast) {
        match (&outcast, &self.note) {
            (Outcast::Removed { reason, .. }, Some(note)) => {
                tracing::warn!(
                    reason,
                    "this node was removed: everything that it runs is stopped and removed"
                );
                let removal = Removal { reason: reason.clone(), containers: 0, cleared: false };
                let note = note.clone();
                let written = tokio::task::spawn_blocking(move || note.store(&removal)).await;
                // Without the note an agent that starts again hears it from the managers.
                if let Err(error) = written.expect("writing a file does not panic") {
                    tracing::warn!(error = chain(&error), "could not write down the removal");
                }
                self.wishes.send_modify(Wishes::want_nothing);
            }
            (Outcast::Removed { reason, .. } | Outcast::Unknown { reason, .. }, _) => {
                tracing::warn!(
                    reason,
                    "the manager does not know this node; its containers run on until it joins again or leaves"
                );
            }
        }
        self.outcast.send_replace(Some(outcast));
    }
}
