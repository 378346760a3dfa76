//! Snapshots on their way to a member that is too far behind: over a connection of their own, so that they hold up
//! nothing else, no faster than the member takes them, and from where an earlier try broke off.

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
use super::dial::DialError;
use super::line::Ends;

/// Bytes that go at once, and how many times that may wait for the connection.
const CHUNK: usize = 256 << 10;
const WAITING: usize = 4;
/// How long the member may take for anything that is waited for: room for the next chunk, or its disk at the end.
/// The receiver says so meanwhile. Shorter in tests of this crate, which must not take minutes.
pub(super) const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 60 });
/// Tries in a row that bring nothing. Raft then tries anew, by and by.
const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The newest snapshot that one member is to get. Cheap to clone; all clones are the same.
#[derive(Clone, Default)]
pub struct Latest(Arc<Slot>);

#[derive(Default)]
struct Slot {
    message: Mutex<Option<Message>>,
    put: Notify,
}

impl Latest {
    /// This one is to be sent. What was to be sent before it is not any more.
    pub fn put(&self, message: Message) {
        *self.0.message.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
        self.0.put.notify_one();
    }

    async fn take(&self) -> Message {
        loop {
            let taken = self.0.message.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(message) = taken {
                return message;
            }
            self.0.put.notified().await;
        }
    }
}

/// Why a try did not bring the snapshot there.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("{}", .0.message())]
    Status(Box<Status>),
    #[error("it took nothing for {PATIENCE:?}")]
    Late,
    #[error("it ended before it had all of it")]
    Ended,
    #[error("it says that it has {found} bytes of {size}")]
    Offset { found: u64, size: u64 },
}

impl From<Status> for Broken {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

/// Sends each snapshot that is put in, until the line ends. Raft is told of each how it went; one that is replaced
/// before it arrived needs no word, since that of the next one follows.
pub(super) async fn run(ends: Ends, snapshots: Latest) {
    let mut next = None;
    loop {
        let message = match next.take() {
            Some(message) => message,
            None => tokio::select! {
                () = ends.end.cancelled() => return,
                message = snapshots.take() => message,
            },
        };
        let delivered = tokio::select! {
            () = ends.end.cancelled() => return,
            newer = snapshots.take() => {
                next = Some(newer);
                continue;
            }
            delivered = send(&ends, message) => delivered,
        };
        ends.store.snapshot_sent(ends.member, delivered).await;
    }
}

async fn send(ends: &Ends, message: Message) -> bool {
    let member = ends.member;
    let Some(meta) = message.snapshot.clone() else { return false };
    let index = meta.index;
    let bytes = match ends.shared.snapshots().read(meta).await {
        Ok(bytes) => bytes,
        Err(error) => {
            tracing::warn!(member, index, %error, "a snapshot cannot be sent");
            return false;
        }
    };
    let hashed = bytes.clone();
    let Ok(digest) = spawn_blocking(move || xxh3_64(&hashed)).await else { return false };
    tracing::info!(member, index, bytes = bytes.len(), "sending a snapshot to another manager");
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    let mut furthest = None;
    loop {
        let mut offset = 0;
        match attempt(ends, &message, (&bytes, digest), &mut offset).await {
            Ok(()) => {
                tracing::info!(member, index, "another manager has the snapshot");
                return true;
            }
            Err(error) => tracing::info!(member, index, offset, %error, "a snapshot did not arrive"),
        }
        if furthest.is_some_and(|furthest| offset > furthest) {
            backoff.reset();
        }
        furthest = furthest.max(Some(offset));
        let pause = backoff.next_delay((ends.shared.chance)());
        if backoff.failures() >= TRIES {
            return false;
        }
        sleep(pause).await;
    }
}

/// One try. `offset` is set to what was there before it.
async fn attempt(
    ends: &Ends,
    message: &Message,
    (bytes, digest): (&Bytes, u64),
    offset: &mut u64,
) -> Result<(), Broken> {
    let shared = &ends.shared;
    let way = shared.directory.way(ends.member).ok_or(DialError::NoAddress(ends.member))?;
    let mut channel = Err(DialError::NoAddress(ends.member));
    for address in &way.addresses {
        channel = shared.dialer.channel(address, way.id).await;
        if channel.is_ok() {
            break;
        }
    }
    let mut client = PeersClient::new(channel?);
    let (frames, outgoing) = mpsc::channel(WAITING);
    let size = bytes.len() as u64;
    let (message, incarnation) = (Some(codec::to_wire(message.clone())), shared.directory.life());
    let header = v1::InstallHeader { message, size, incarnation, digest };
    let first = v1::InstallFrame { header: Some(header), chunk: Bytes::new() };
    // There is room: nothing was sent yet, and this end holds the other.
    let _ = frames.try_send(first);
    let answers = client.install(ReceiverStream::new(outgoing));
    let mut answers = timeout(PATIENCE, answers).await.map_err(|_| Broken::Late)??.into_inner();
    let found = heard(&mut answers).await?.offset;
    if found > size {
        return Err(Broken::Offset { found, size });
    }
    *offset = found;
    let mut rest = bytes.slice(usize::try_from(found).expect("it is within a slice")..);
    while !rest.is_empty() {
        let chunk = rest.split_to(rest.len().min(CHUNK));
        let sent = frames.send(v1::InstallFrame { header: None, chunk });
        tokio::select! {
            // Nothing is to be said before all of it is there: the other end gave up, and says why.
            answer = answers.message() => {
                answer?;
                return Err(Broken::Ended);
            }
            sent = timeout(PATIENCE, sent) => match sent {
                Err(_) => return Err(Broken::Late),
                // The connection broke; the answers say how.
                Ok(Err(_)) => return heard(&mut answers).await.and(Err(Broken::Ended)),
                Ok(Ok(())) => {}
            }
        }
    }
    drop(frames);
    // As often as it says so, it is at it still.
    while !heard(&mut answers).await?.done {}
    Ok(())
}

async fn heard(answers: &mut Streaming<v1::InstallAnswer>) -> Result<v1::InstallAnswer, Broken> {
    let answer = timeout(PATIENCE, answers.message()).await.map_err(|_| Broken::Late)??;
    answer.ok_or(Broken::Ended)
}
