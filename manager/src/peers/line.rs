//! The line to one peer: one connection that carries raft's messages and forwarded writes, made again whenever it is
//! lost. Snapshots go over connections of their own (see [`super::install`]), and so does what other parts say.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::transport::Channel;
use warren_control::{Backoff, Shutdown};
use warren_proto::v1;
use warren_proto::v1::peers_client::PeersClient;
use warren_types::{ManagerAddress, MemberId};

use super::dial::DialError;
use super::directory::Way;
use super::forward::{self, Forward};
use super::install::{self, Latest};
use super::mailbox::Mailbox;
use super::roster::{overtaken_by, was_removed};
use super::{End, MAX_RELAYS, Shared};
use crate::store::Store;

/// How long to wait after a connection was lost, or could not be made.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A connection that lasted this long was a good one.
const GOOD: Duration = Duration::from_secs(1);
/// A manager that hears that it was removed believes it when it has heard of no leader for so long. One that does hear
/// of a leader is a member of something, whatever that peer has become.
const ALONE: Duration = Duration::from_secs(2);
/// Forwarded writes that may wait for the connection, in batches.
const FORWARDS: usize = 64;

/// The ways to one peer. Cheap to clone; all clones are the same. It ends when it is told to.
#[derive(Clone)]
pub struct Line {
    /// Raft's messages.
    pub mailbox: Mailbox,
    /// Writes for the leader.
    pub forwards: mpsc::Sender<Forward>,
    /// The newest snapshot to send.
    pub snapshots: Latest,
    /// For other calls.
    pub channel: Channel,
    /// For those that nothing may hold up.
    pub control: Channel,
    /// Places of streams that the peer passes on.
    pub relays: Arc<Semaphore>,
    member: MemberId,
    store: Store,
    end: CancellationToken,
}

/// What the parts of a line share.
#[derive(Clone)]
pub(super) struct Ends {
    pub shared: Arc<Shared>,
    pub store: Store,
    pub member: MemberId,
    pub end: CancellationToken,
}

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The status may say more: a reason, or that the connection broke.
    #[error("{}", words(.0))]
    Ended(Box<Status>),
    #[error("it ended the conversation")]
    Over,
    #[error("it said that it is there, or elsewhere")]
    Elsewhere,
    #[error("this manager has a state by now, and says anew who it is")]
    Informed,
}

fn words(status: &Status) -> String {
    let cause = std::error::Error::source(status).map(|cause| format!(" ({cause})"));
    format!("{}{}", status.message(), cause.unwrap_or_default())
}

impl Line {
    /// A line to `member`, until the peers are over or the line is told to end.
    pub(super) fn start(shared: &Arc<Shared>, store: &Store, member: MemberId, shutdown: &Shutdown) -> Self {
        let (forwards, forwarded) = mpsc::channel(FORWARDS);
        let line = Self {
            mailbox: Mailbox::default(),
            forwards,
            snapshots: Latest::default(),
            channel: shared.dialer.lazily(shared.directory.clone(), member),
            control: shared.dialer.lazily(shared.directory.clone(), member),
            relays: Arc::new(Semaphore::new(MAX_RELAYS)),
            member,
            store: store.clone(),
            end: shared.over.child_token(),
        };
        let (channel, connected) = watch::channel(None);
        let ends = Ends { shared: shared.clone(), store: store.clone(), member, end: line.end.clone() };
        let (mailbox, snapshots) = (line.mailbox.clone(), line.snapshots.clone());
        shutdown.spawn("peer", ends.clone().keep(mailbox, channel));
        shutdown.spawn("peer-forwards", forward::run(ends.clone(), forwarded, connected));
        shutdown.spawn("peer-snapshots", install::run(ends, snapshots));
        line
    }

    /// Entries found no way: raft is to send nothing ahead of the member's answers.
    pub fn lost(&self) {
        self.store.unreachable(self.member);
    }

    /// Ends it.
    pub fn end(&self) {
        self.end.cancel();
    }
}

impl Ends {
    /// Keeps the connection up, until the end.
    async fn keep(self, mailbox: Mailbox, channel: watch::Sender<Option<Channel>>) {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut turn = 0;
        while let Some(way) = self.way().await {
            let address = &way.addresses[turn % way.addresses.len()];
            let began = Instant::now();
            let lost = tokio::select! {
                () = self.end.cancelled() => break,
                lost = self.converse(&way, address, &mailbox, &channel) => lost,
            };
            mailbox.close();
            channel.send_replace(None);
            self.store.unreachable(self.member);
            if began.elapsed() >= GOOD {
                backoff.reset();
            }
            self.note(&lost, address, backoff.failures());
            let pause = backoff.next_delay((self.shared.chance)());
            turn += 1;
            tokio::select! {
                () = self.end.cancelled() => break,
                () = sleep(pause) => {}
                () = self.another(&way) => {
                    backoff.reset();
                    turn = 0;
                }
            }
        }
        mailbox.close();
        channel.send_replace(None);
    }

    /// How the member is reached; `None` at the end.
    async fn way(&self) -> Option<Way> {
        let mut changes = self.shared.directory.changes();
        loop {
            if let Some(way) = self.shared.directory.way(self.member) {
                return Some(way);
            }
            // It was removed, and the line is about to end.
            tokio::select! {
                () = self.end.cancelled() => return None,
                _ = changes.changed() => {}
            }
        }
    }

    /// Resolves when the member dialled, so that it is there, or is reached elsewhere than by `way`.
    async fn another(&self, way: &Way) {
        let mut changes = self.shared.directory.changes();
        while self.shared.directory.way(self.member).is_none_or(|now| now == *way) {
            // The directory is there as long as its peers are.
            let _ = changes.changed().await;
        }
    }

    /// From dialling to the end of the connection.
    async fn converse(
        &self,
        way: &Way,
        address: &ManagerAddress,
        mailbox: &Mailbox,
        channel: &watch::Sender<Option<Channel>>,
    ) -> Lost {
        let made = tokio::select! {
            made = self.shared.dialer.channel(address, way.id) => made,
            () = self.another(way) => return Lost::Elsewhere,
        };
        let made = match made {
            Ok(made) => made,
            Err(error) => return error.into(),
        };
        let directory = &self.shared.directory;
        let (member, incarnation) = (directory.own(), directory.life());
        let hello = v1::PeerHello { member, address: directory.own_address().to_string(), incarnation };
        let frames = mailbox.open(hello);
        channel.send_replace(Some(made.clone()));
        tracing::debug!(member = self.member, %address, "connected to another manager");
        let mut client = PeersClient::new(made);
        tokio::select! {
            ended = client.converse(frames) => match ended {
                Ok(_) => Lost::Over,
                Err(status) => Lost::Ended(Box::new(status)),
            },
            // What it says from now on comes from this state: it is heard by those in the same life only.
            () = self.another_life(incarnation) => Lost::Informed,
        }
    }

    /// Resolves when the state of this manager is of another life than that.
    async fn another_life(&self, life: u64) {
        let mut changes = self.shared.directory.changes();
        while self.shared.directory.life() == life {
            // The directory is there as long as its peers are.
            let _ = changes.changed().await;
        }
    }

    /// What the other one says of this manager.
    fn heed(&self, status: &Status) {
        let (shared, own) = (&self.shared, self.shared.directory.life());
        if was_removed(status, shared.directory.own(), shared.id) && self.store.silence() >= ALONE {
            shared.ends(End::Removed);
        }
        if let Some(life) = overtaken_by(status, own) {
            shared.ends(End::Overtaken { own, life });
        }
    }

    fn note(&self, lost: &Lost, address: &ManagerAddress, failures: u32) {
        let member = self.member;
        if matches!(lost, Lost::Elsewhere | Lost::Informed) {
            return;
        }
        if let Lost::Ended(status) = lost {
            self.heed(status);
        }
        // Once when it begins; while it lasts, only for those who look closely.
        if failures == 0 {
            tracing::warn!(member, %address, %lost, "no connection to another manager");
        } else {
            tracing::debug!(member, %address, %lost, "no connection to another manager");
        }
    }
}
