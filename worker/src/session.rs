//! The session with a manager: dial one, say who we are, take over what it wants, say what is.
//!
//! There is one session at a time. Losing it changes nothing for the tasks: the next manager is dialled at once,
//! and what was not stored is said again. Only tasks that mind are stopped when there is none for too long
//! (`contact`). Start reading at `link`, which is one session from its first frame to its last.

mod attach;
mod contact;
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
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use warren_control::{Backoff, Chance, Loops};
use warren_image::Imported;
use warren_process::chain;
use warren_proto::v1::sessions_client::SessionsClient;
use warren_runtime::Runtime;
use warren_task::Wishes;
use warren_types::{ClusterId, NodeId};

pub(crate) use attach::{Services, TaskLogs};
pub(crate) use contact::{Contact, Standing};
pub(crate) use dial::{Connected, Dial, DialError, Dialer};
pub(crate) use fetch::Fetcher;
pub(crate) use removal::{Outcast, Removal, RemovalNote, removal_file};

use crate::garbage::Pressure;
use crate::node::NodeOverrides;
use crate::node::health::Health;
use crate::node::usage::Meter;
use crate::node::vitals::Vitals;
use crate::tasks::reporter::Reporter;

/// First and longest wait after all managers were tried in vain. Short, since a node that has been away for
/// `node-down-after` is down, also where it was the managers that were away.
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(3);
/// The wait of a node that the managers do not know.
const OUTCAST_WAIT: Duration = Duration::from_secs(30);
/// Longest wait before the next manager is tried: only so long that the nodes of one that went do not come at once.
const NEXT_WAIT: Duration = Duration::from_millis(40);
/// A session that lasted for so long was a good one.
const LASTED: Duration = Duration::from_secs(5);
/// How many failures in a row are told each; of those behind them one in as many is.
const TOLD_FAILURES: u32 = 8;

/// An archive that is arriving.
pub(crate) type Archive = Box<dyn AsyncRead + Send + Unpin>;
/// Stores the images of an archive.
pub(crate) type Import =
    Arc<dyn Fn(Archive) -> BoxFuture<'static, Result<Vec<Imported>, warren_image::Error>> + Send + Sync>;

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
    /// For how long there has been no manager.
    pub contact: Arc<Contact>,
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
    let mut tries = Tries::new();
    let mut was_ever_welcome = false;
    while !stop.is_cancelled() {
        if let Some(settings) = &context.wishes.borrow().settings {
            dial.learn(&settings.managers);
        }
        let session = async {
            let connected = dial.dial().await?;
            let (manager, begun) = (connected.manager.clone(), Instant::now());
            let ended = link::run(&context, connected, &stop).await;
            Ok::<_, DialError>((manager, begun.elapsed(), ended))
        };
        let attempt = tokio::select! {
            () = stop.cancelled() => return,
            attempt = session => attempt,
        };
        let was_welcome = context.connected.send_replace(false);
        context.manager.send_replace(None);
        context.contact.lost();
        was_ever_welcome |= was_welcome;
        match attempt {
            Ok((manager, time, ended)) => {
                tracing::info!(manager, reason = %ended, was_welcome, ?time, "session ended");
                if was_welcome && time >= LASTED {
                    dial.lasted(&manager);
                    tries = Tries::new();
                } else {
                    tries.failed();
                }
                let refusal = ended.refusal();
                let read = |status| Outcast::read(status, !was_ever_welcome, context.can_be_removed());
                if let Some(outcast) = refusal.and_then(read) {
                    context.cast_out(outcast).await;
                }
            }
            Err(error) => {
                tries.failed();
                if tries.is_worth_telling() {
                    tracing::info!(%error, failures = tries.failures, "no session");
                }
            }
        }
        if context.is_removed() {
            return;
        }
        // Whoever is not known is only let in again by joining, and must not bother managers meanwhile.
        let wait = match context.outcast.borrow().is_some() {
            true => OUTCAST_WAIT,
            false => tries.wait(dial.known(), (context.chance)()),
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// How often it was tried in vain to get a session that lasts.
struct Tries {
    failures: u32,
    backoff: Backoff,
}

impl Tries {
    fn new() -> Self {
        Self { failures: 0, backoff: Backoff::new(FIRST_WAIT, LONGEST_WAIT) }
    }

    fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    fn is_worth_telling(&self) -> bool {
        self.failures <= TOLD_FAILURES || self.failures.is_multiple_of(TOLD_FAILURES)
    }

    /// Before the next try: the next of `known` managers at once, and longer after each round of them.
    fn wait(&mut self, known: usize, chance: u64) -> Duration {
        let round = u32::try_from(known.max(1)).unwrap_or(u32::MAX);
        if self.failures > 0 && self.failures.is_multiple_of(round) {
            return self.backoff.next_delay(chance);
        }
        Backoff::new(NEXT_WAIT, NEXT_WAIT).next_delay(chance)
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
