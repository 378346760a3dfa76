//! The session with a manager: dial one, say who we are, take over what it wants, say what is.
//!
//! There is one session at a time. Losing it changes nothing for the tasks: the next manager is dialled,
//! and what was not stored is said again. Start reading at `link`, which is one session from its first
//! frame to its last.

mod attach;
mod dial;
mod link;
mod pulse;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::io::AsyncRead;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use warren_control::{Backoff, Chance, Loops};
use warren_image::Imported;
use warren_runtime::Runtime;
use warren_types::{ClusterId, NodeId};

pub(crate) use attach::{Services, TaskLogs};
pub(crate) use dial::channel;
pub(crate) use dial::{Connected, DialError, Dialer};

use crate::garbage::Pressure;
use crate::node::NodeOverrides;
use crate::node::health::Health;
use crate::node::usage::Meter;
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
    /// What managers may ask for by a stream.
    pub services: Arc<Services>,
    pub pressure: Pressure,
    pub loops: Loops,
    pub chance: Chance,
    /// Whether a manager has welcomed this node.
    pub connected: watch::Sender<bool>,
    /// Why the node is none of its cluster any more, in a manager's words.
    pub removed: watch::Sender<Option<String>>,
}

/// Keeps a session until the agent stops.
pub(crate) async fn run(context: Arc<Context>, dial: Dial, stop: CancellationToken) {
    let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
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
        if was_welcome {
            backoff.reset();
        }
        match attempt {
            Ok((manager, ended)) => tracing::info!(manager, reason = %ended, was_welcome, "session ended"),
            Err(error) => tracing::info!(%error, failures = backoff.failures(), "no session"),
        }
        // Whoever was removed is only let in again by joining, and must not bother managers meanwhile.
        let wait = match context.removed.borrow().is_some() {
            true => LONGEST_WAIT,
            false => backoff.next_delay((context.chance)()),
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}
