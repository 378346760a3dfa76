//! The receiving side of a snapshot: from its announcement to the disk. [`super::snapshot_send`] is the
//! sending side.
//!
//! Received data is kept for a while after a lost connection, and the next attempt resumes there. While the
//! snapshot is made durable, which may take minutes on a slow disk, the sender is notified periodically;
//! another sender of the same snapshot meanwhile, such as a new leader, waits for the same result and sends
//! nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tonic::{Code, Status, Streaming};
use warren_consensus::{Message, SnapshotMeta};
use warren_control::Shutdown;
use warren_proto::{Problem, v1};
use warren_store::Store;
use warren_store::problem::manager_stopping;

use super::Peers;
use super::partial_snapshot::{
    ClaimOutcome, CompleteSnapshot, PartialSnapshots, RETENTION, ReceiveClaim, SnapshotKey,
};
use super::snapshot_send::PEER_TIMEOUT;

/// Timeout of the next chunk of a snapshot.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval of progress messages while the snapshot is made durable: well below the sender's timeout.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(PEER_TIMEOUT.as_millis() as u64 / 6);

/// Replies to the sender.
pub(super) type InstallReplySender = mpsc::Sender<Result<v1::SnapshotAck, Status>>;

/// Receives snapshots. Cheap to clone; all clones share one state.
#[derive(Clone)]
pub(super) struct SnapshotReceiver {
    peers: Peers,
    store: Store,
    shutdown: Shutdown,
    partials: PartialSnapshots,
    /// Held while a snapshot is made durable.
    installing: Arc<Mutex<()>>,
}

/// An announced snapshot.
pub(super) struct AnnouncedSnapshot {
    /// The sender's incarnation of the cluster.
    pub incarnation: u64,
    pub message: Message,
    pub meta: SnapshotMeta,
    pub size: u64,
    pub digest: u64,
}

impl SnapshotReceiver {
    pub fn new(peers: Peers, store: Store, shutdown: Shutdown) -> Self {
        Self { peers, store, shutdown, partials: PartialSnapshots::default(), installing: Arc::default() }
    }

    /// Receives the data of a snapshot and installs it.
    ///
    /// # Errors
    /// The error to return to the sender.
    pub async fn receive(
        &self,
        AnnouncedSnapshot { incarnation, message, meta, size, digest }: AnnouncedSnapshot,
        mut inbound: Streaming<v1::SnapshotFrame>,
        answers: &InstallReplySender,
    ) -> Result<(), Status> {
        let key = SnapshotKey { incarnation, index: meta.index, term: meta.term, size, digest };
        if self.store.read().index >= meta.index {
            // An earlier attempt whose end the leader did not receive, or that was replaced by normal
            // replication.
            send_reply(answers, size, false).await;
            send_reply(answers, size, true).await;
            return Ok(());
        }
        let complete = match self.partials.claim(key, message.term)? {
            ClaimOutcome::Complete(complete) => {
                send_reply(answers, size, false).await;
                complete
            }
            ClaimOutcome::Partial(claim, offset) => {
                send_reply(answers, offset, false).await;
                let transport_closed = self.peers.shared.transport_closed.clone();
                let received = tokio::select! {
                    () = transport_closed.cancelled() => Err(manager_stopping()),
                    received = receive_chunks(&claim, &mut inbound, offset == size) => received,
                };
                if let Err(status) = received {
                    self.discard_after_retention(claim);
                    return Err(status);
                }
                claim.complete()?
            }
        };
        self.install(message, complete, answers).await?;
        send_reply(answers, size, true).await;
        Ok(())
    }

    /// Makes the snapshot durable, one at a time, and sends progress messages meanwhile.
    async fn install(
        &self,
        message: Message,
        snapshot: CompleteSnapshot,
        answers: &InstallReplySender,
    ) -> Result<(), Status> {
        let installing = async {
            let _guard = self.installing.lock().await;
            self.peers.shared.snapshots().receive(message, snapshot.bytes.clone()).await
        };
        tokio::pin!(installing);
        let offset = snapshot.bytes.len() as u64;
        let mut ticks = interval(PROGRESS_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            tokio::select! {
                installed = &mut installing => {
                    let refused = |why| Problem::new(Code::Internal, "SNAPSHOT_REFUSED", why);
                    return Ok(installed.map_err(refused)?);
                }
                _ = ticks.tick() => {
                    // A sender that disconnected or has not read the last message needs none.
                    let _ = answers.try_send(Ok(v1::SnapshotAck { offset, done: false }));
                }
            }
        }
    }

    /// Drops the received data if no attempt continues it.
    fn discard_after_retention(&self, claim: ReceiveClaim) {
        let stop = self.shutdown.token();
        self.shutdown.spawn("snapshot-expiry", async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(RETENTION) => {}
            }
            claim.discard();
        });
    }
}

async fn send_reply(answers: &InstallReplySender, offset: u64, done: bool) {
    // The sender may have disconnected.
    let _ = answers.send(Ok(v1::SnapshotAck { offset, done })).await;
}

async fn receive_chunks(
    claim: &ReceiveClaim,
    inbound: &mut Streaming<v1::SnapshotFrame>,
    mut complete: bool,
) -> Result<(), Status> {
    let late = |_| Status::deadline_exceeded(format!("no snapshot data within {CHUNK_TIMEOUT:?}"));
    while !complete {
        let frame = timeout(CHUNK_TIMEOUT, inbound.message()).await.map_err(late)??;
        let frame = frame.ok_or_else(|| {
            Status::aborted("the sender closed the stream before the snapshot was complete")
        })?;
        complete = claim.append(&frame.chunk)?;
    }
    Ok(())
}
