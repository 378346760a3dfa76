//! The receiving end of a snapshot: from its announcement to the disk. [`super::install`] is the sending one.
//!
//! What arrived stays for a while when the connection breaks, and the next try goes on there. While it is made durable,
//! which may take a slow disk minutes, the sender hears now and then that it is; and whoever sends the same one
//! meanwhile, a new leader for example, waits for that and sends none of it again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tonic::{Code, Status, Streaming};
use warren_consensus::{Message, SnapshotMeta};
use warren_control::Shutdown;
use warren_proto::{Problem, v1};

use super::Peers;
use super::install::PATIENCE;
use super::partial::{Claim, Claimed, KEPT, Key, Partials, Whole};
use super::server::stopping;
use crate::store::Store;

/// How long the next bytes of a snapshot may take.
const NEXT_CHUNK: Duration = Duration::from_secs(60);
/// How often the sender hears that it is being made durable: well within its patience.
const WORD: Duration = Duration::from_millis(PATIENCE.as_millis() as u64 / 6);

/// What the sender hears.
pub(super) type Answers = mpsc::Sender<Result<v1::InstallAnswer, Status>>;

/// Receives snapshots. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub(super) struct Receiver {
    peers: Peers,
    store: Store,
    shutdown: Shutdown,
    partials: Partials,
    /// Held while one is made durable.
    installing: Arc<Mutex<()>>,
}

/// A snapshot that somebody wants to send.
pub(super) struct Announced {
    /// The sender's incarnation of the cluster.
    pub life: u64,
    pub message: Message,
    pub meta: SnapshotMeta,
    pub size: u64,
    pub digest: u64,
}

impl Receiver {
    pub fn new(peers: Peers, store: Store, shutdown: Shutdown) -> Self {
        Self { peers, store, shutdown, partials: Partials::default(), installing: Arc::default() }
    }

    /// Takes the bytes of a snapshot, and has it installed.
    ///
    /// # Errors
    /// What the sender is to hear.
    pub async fn take(
        &self,
        Announced { life, message, meta, size, digest }: Announced,
        mut inbound: Streaming<v1::InstallFrame>,
        answers: &Answers,
    ) -> Result<(), Status> {
        let key = Key { life, index: meta.index, term: meta.term, size, digest };
        if self.store.read().index >= meta.index {
            // Of an earlier try whose end the leader did not hear, or that took so long that all of it came otherwise.
            say(answers, size, false).await;
            say(answers, size, true).await;
            return Ok(());
        }
        let whole = match self.partials.claim(key, message.term)? {
            Claimed::Whole(whole) => {
                say(answers, size, false).await;
                whole
            }
            Claimed::Part(claim, offset) => {
                say(answers, offset, false).await;
                let over = self.peers.shared.over.clone();
                let arrived = tokio::select! {
                    () = over.cancelled() => Err(stopping()),
                    arrived = arrive(&claim, &mut inbound, offset == size) => arrived,
                };
                if let Err(status) = arrived {
                    self.forget_later(claim);
                    return Err(status);
                }
                claim.whole()?
            }
        };
        self.install(message, whole, answers).await?;
        say(answers, size, true).await;
        Ok(())
    }

    /// Makes it durable, one at a time, and tells the sender meanwhile that it is at it.
    async fn install(&self, message: Message, whole: Whole, answers: &Answers) -> Result<(), Status> {
        let installing = async {
            let _alone = self.installing.lock().await;
            self.peers.shared.snapshots().receive(message, whole.bytes.clone()).await
        };
        tokio::pin!(installing);
        let offset = whole.bytes.len() as u64;
        let mut word = interval(WORD);
        word.set_missed_tick_behavior(MissedTickBehavior::Delay);
        word.tick().await;
        loop {
            tokio::select! {
                installed = &mut installing => {
                    let refused = |why| Problem::new(Code::Internal, "SNAPSHOT_REFUSED", why);
                    return Ok(installed.map_err(refused)?);
                }
                _ = word.tick() => {
                    // Who has gone, or has not read the last word yet, needs none.
                    let _ = answers.try_send(Ok(v1::InstallAnswer { offset, done: false }));
                }
            }
        }
    }

    /// Drops what arrived when nobody goes on with it.
    fn forget_later(&self, claim: Claim) {
        let stop = self.shutdown.token();
        self.shutdown.spawn("snapshot-part", async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(KEPT) => {}
            }
            claim.forget();
        });
    }
}

async fn say(answers: &Answers, offset: u64, done: bool) {
    // Whoever has gone does not need it.
    let _ = answers.send(Ok(v1::InstallAnswer { offset, done })).await;
}

async fn arrive(
    claim: &Claim,
    inbound: &mut Streaming<v1::InstallFrame>,
    mut complete: bool,
) -> Result<(), Status> {
    let late = |_| Status::deadline_exceeded(format!("no more of the snapshot within {NEXT_CHUNK:?}"));
    while !complete {
        let frame = timeout(NEXT_CHUNK, inbound.message()).await.map_err(late)??;
        let frame = frame.ok_or_else(|| Status::aborted("the snapshot ended before all of it was there"))?;
        complete = claim.add(&frame.chunk)?;
    }
    Ok(())
}
