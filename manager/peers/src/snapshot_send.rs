//! Sends snapshots to members that are too far behind: over their own connections, at the receiver's pace,
//! and resuming where an earlier attempt stopped.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, mpsc};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};
use warren_consensus::Message;
use warren_control::Backoff;
use warren_proto::v1;
use warren_proto::v1::peers_client::PeersClient;
use xxhash_rust::xxh3::xxh3_64;

use super::codec;
use super::dial::PeerDialError;
use super::link_context::LinkContext;

/// Chunk size, and the number of chunks queued for the connection.
const CHUNK_BYTES: usize = 256 << 10;
const MAX_QUEUED_CHUNKS: usize = 4;
/// How long the member may take for each step: room for the next chunk, or its disk at the end. The receiver sends
/// progress messages meanwhile. Shorter in tests of this crate.
pub(super) const PEER_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 60 });
/// Consecutive attempts without progress. Raft retries later.
const MAX_ATTEMPTS: u32 = 5;
const MIN_RETRY_DELAY: Duration = Duration::from_millis(50);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);

/// The newest snapshot for one member. Cheap to clone; all clones share one slot.
#[derive(Clone, Default)]
pub struct LatestSnapshot(Arc<LatestSlot>);

#[derive(Default)]
struct LatestSlot {
    message: Mutex<Option<Message>>,
    added: Notify,
}

impl LatestSnapshot {
    /// Sets the snapshot to send; replaces the previous one.
    pub fn put(&self, message: Message) {
        *self.0.message.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
        self.0.added.notify_one();
    }

    async fn take(&self) -> Message {
        loop {
            let taken = self.0.message.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(message) = taken {
                return message;
            }
            self.0.added.notified().await;
        }
    }
}

/// Why an attempt to send a snapshot failed.
#[derive(Debug, thiserror::Error)]
enum SendAttemptError {
    #[error(transparent)]
    Dial(#[from] PeerDialError),
    #[error("{}", .0.message())]
    Status(Box<Status>),
    #[error("peer read nothing for {PEER_TIMEOUT:?}")]
    Timeout,
    #[error("peer closed before the snapshot was complete")]
    Ended,
    #[error("peer reported invalid offset {offset} of {size}")]
    InvalidOffset { offset: u64, size: u64 },
}

impl From<Status> for SendAttemptError {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

/// Sends each snapshot until the link is closed. Raft is told the result of each; a snapshot that is replaced
/// before it arrived has no result of its own, since that of the next one follows.
pub(super) async fn run(ends: LinkContext, snapshots: LatestSnapshot) {
    let mut next = None;
    loop {
        let message = match next.take() {
            Some(message) => message,
            None => tokio::select! {
                () = ends.closed.cancelled() => return,
                message = snapshots.take() => message,
            },
        };
        let delivered = tokio::select! {
            () = ends.closed.cancelled() => return,
            newer = snapshots.take() => {
                next = Some(newer);
                continue;
            }
            delivered = send(&ends, message) => delivered,
        };
        ends.store.report_snapshot(ends.member, delivered).await;
    }
}

async fn send(ends: &LinkContext, message: Message) -> bool {
    let member = ends.member;
    let Some(meta) = message.snapshot.clone() else { return false };
    let index = meta.index;
    let bytes = match ends.peers.snapshots().read(meta).await {
        Ok(bytes) => bytes,
        Err(error) => {
            tracing::warn!(member, index, %error, "reading a snapshot to send failed");
            return false;
        }
    };
    let hashed = bytes.clone();
    let Ok(digest) = spawn_blocking(move || xxh3_64(&hashed)).await else { return false };
    tracing::info!(member, index, bytes = bytes.len(), "sending a snapshot to another manager");
    let mut backoff = Backoff::new(MIN_RETRY_DELAY, MAX_RETRY_DELAY);
    let mut furthest = None;
    loop {
        let mut offset = 0;
        match attempt(ends, &message, (&bytes, digest), &mut offset).await {
            Ok(()) => {
                tracing::info!(member, index, "snapshot sent to another manager");
                return true;
            }
            Err(error) => tracing::info!(member, index, offset, %error, "sending a snapshot failed"),
        }
        if furthest.is_some_and(|furthest| offset > furthest) {
            backoff.reset();
        }
        furthest = furthest.max(Some(offset));
        let pause = backoff.next_delay((ends.peers.chance)());
        if backoff.failures() >= MAX_ATTEMPTS {
            return false;
        }
        sleep(pause).await;
    }
}

/// One attempt. `offset` is set to the bytes that the receiver had before.
async fn attempt(
    ends: &LinkContext,
    message: &Message,
    (bytes, digest): (&Bytes, u64),
    offset: &mut u64,
) -> Result<(), SendAttemptError> {
    let shared = &ends.peers;
    let route = shared.addresses.route(ends.member).ok_or(PeerDialError::NoAddress(ends.member))?;
    let mut channel = Err(PeerDialError::NoAddress(ends.member));
    for address in &route.addresses {
        channel = shared.dialer.channel(address, route.id).await;
        if channel.is_ok() {
            break;
        }
    }
    let mut client = PeersClient::new(channel?);
    let (frames, outgoing) = mpsc::channel(MAX_QUEUED_CHUNKS);
    let size = bytes.len() as u64;
    let (message, incarnation) = (Some(codec::to_wire(message.clone())), shared.addresses.incarnation());
    let header = v1::SnapshotHeader { message, size, incarnation, digest };
    let first = v1::SnapshotFrame { header: Some(header), chunk: Bytes::new() };
    // There is room: nothing was sent yet, and the receiver is held here.
    let _ = frames.try_send(first);
    let answers = client.install_snapshot(ReceiverStream::new(outgoing));
    let mut answers =
        timeout(PEER_TIMEOUT, answers).await.map_err(|_| SendAttemptError::Timeout)??.into_inner();
    let received = next_reply(&mut answers).await?.offset;
    if received > size {
        return Err(SendAttemptError::InvalidOffset { offset: received, size });
    }
    *offset = received;
    let mut rest = bytes.slice(usize::try_from(received).expect("it is within a slice")..);
    while !rest.is_empty() {
        let chunk = rest.split_to(rest.len().min(CHUNK_BYTES));
        let sent = frames.send(v1::SnapshotFrame { header: None, chunk });
        tokio::select! {
            // The receiver replies only when it has everything: an earlier reply is its failure.
            answer = answers.message() => {
                answer?;
                return Err(SendAttemptError::Ended);
            }
            sent = timeout(PEER_TIMEOUT, sent) => match sent {
                Err(_) => return Err(SendAttemptError::Timeout),
                // The connection broke; the replies have the error.
                Ok(Err(_)) => return next_reply(&mut answers).await.and(Err(SendAttemptError::Ended)),
                Ok(Ok(())) => {}
            }
        }
    }
    drop(frames);
    // Each message without `done` means that it is still in progress.
    while !next_reply(&mut answers).await?.done {}
    Ok(())
}

async fn next_reply(answers: &mut Streaming<v1::SnapshotAck>) -> Result<v1::SnapshotAck, SendAttemptError> {
    let answer = timeout(PEER_TIMEOUT, answers.message()).await.map_err(|_| SendAttemptError::Timeout)??;
    answer.ok_or(SendAttemptError::Ended)
}
