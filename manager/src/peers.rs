//! The other managers: what raft says to them, writes for the one that leads, and every other call between managers.
//!
//! Each manager dials each other one, and keeps that connection for what it says itself; the answers come on the
//! connection that the other one made. Raft's messages and forwarded writes share it (`peers/line.rs`), snapshots have
//! connections of their own ([`install`]), short questions have one ([`Peers::control`]), and whatever else is asked
//! goes over another one ([`Peers::client`]), both made when they are needed: a log or an import must not hold up the
//! messages that keep a leader in office, nor the question whom a manager heard of.
//!
//! Nothing waits without a bound: what finds no room is dropped, and raft sends it again. Nothing here decides; whom
//! to reach and whom to let in follows from the members in the state ([`roster`]) and from what managers say of
//! themselves ([`directory`]). Start reading at [`Peers`], then [`server::PeerServer`].

pub mod codec;
pub mod dial;
pub mod directory;
pub mod forward;
pub mod install;
pub mod line;
pub mod mailbox;
pub mod partial;
mod receive;
pub mod roster;
pub mod server;
pub mod sessions;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Channel;
use warren_consensus::{ConfState, Message, MessageKind, SnapshotMeta};
use warren_control::{Chance, Shutdown, system_chance};
use warren_core::{Change, Command, State};
use warren_proto::v1::peers_client::PeersClient;
use warren_security::{LiveCertificate, Roots, TlsError};
use warren_types::{ManagerAddress, ManagerId, MemberId};

use self::dial::Dialer;
use self::directory::Directory;
use self::line::Line;
use self::roster::{Known, Roster};
use crate::raft::snapshot::SnapshotDoor;
use crate::raft::wire::{Forwarded, Leader, Wire};
use crate::recovery::seat::Introduced;
use crate::store::{ProposeError, Store, Watch};

/// The state is looked at for other members no more often than this.
const LOOK: Duration = Duration::from_millis(50);
/// Largest message between managers: entries of 1 MiB, and one message more, which may have one entry of any size.
pub const MAX_MESSAGE: usize = 16 << 20;

/// Streams that another manager passes on for this one at once: as many calls as it takes on one connection
/// ([`crate::server::MAX_STREAMS`]), but for some room for others. What is too much would wait for its turn there, and
/// hold up the others.
pub const MAX_RELAYS: usize = 960;

/// Something that is done in a moment.
pub type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Snapshots as bytes: in the clear, and each the same on every manager of one version.
pub trait Snapshots: Send + Sync + 'static {
    /// The bytes of the snapshot that covers this.
    fn read(&self, meta: SnapshotMeta) -> Later<Result<Bytes, String>>;

    /// Keeps the bytes of the snapshot that `message` announces, and installs it. Resolves when it is durable, and raft
    /// was told.
    fn receive(&self, message: Message, bytes: Bytes) -> Later<Result<(), String>>;
}

/// The other managers. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct Peers {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    /// This manager, in its certificate.
    pub(crate) id: ManagerId,
    pub(crate) directory: Directory,
    pub(crate) dialer: Dialer,
    chance: Chance,
    lines: ArcSwap<BTreeMap<MemberId, Line>>,
    snapshots: OnceLock<Arc<dyn Snapshots>>,
    /// Why this manager is none any more, once it is so.
    end: watch::Sender<Option<End>>,
    /// The latest life of the cluster that people or nodes have seen, if it is later than this manager's; else 0.
    later_life: AtomicU64,
    /// Cancelled when the driver has let go of its way out: it may need the others until then.
    pub(crate) over: CancellationToken,
}

impl Shared {
    /// This manager is none any more. What is said first stays.
    pub(crate) fn ends(&self, end: End) {
        self.end.send_if_modified(|known| known.is_none() && known.replace(end).is_none());
    }

    fn snapshots(&self) -> &dyn Snapshots {
        &**self.snapshots.get().expect("lines and the server begin after the peers were started")
    }
}

/// Why a manager is none any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It was removed from the cluster.
    Removed,
    /// The cluster goes on in a later life, which began without this manager.
    Overtaken {
        /// This manager's.
        own: u64,
        /// The cluster's.
        life: u64,
    },
}

/// The driver's way out. When it is dropped, all connections end.
pub struct Outgoing {
    shared: Arc<Shared>,
    /// Members for which a snapshot was, that cannot be sent.
    unsent: mpsc::UnboundedSender<MemberId>,
    _over: DropGuard,
}

/// Why another manager passes on no stream to one of its workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoRelay {
    /// It cannot be reached.
    #[error("the manager that the node is connected to cannot be reached from here; try again in a moment")]
    Away,
    /// It passes on enough.
    #[error(
        "manager {0} passes on {MAX_RELAYS} streams for this one already; try again when some have ended, or ask that \
         manager itself"
    )]
    Full(MemberId),
}

/// What [`Peers::start`] goes on with.
pub struct Unsent(mpsc::UnboundedReceiver<MemberId>);

/// What a manager shows to the others, and trusts.
pub struct Credentials<'a> {
    /// The cluster's id, as it stands in certificates.
    pub cluster: &'a str,
    /// The id in this manager's certificate.
    pub id: ManagerId,
    /// The cluster's authorities.
    pub roots: &'a Roots,
    /// This manager's certificate.
    pub certificate: Arc<LiveCertificate>,
}

impl Peers {
    /// The others, as seen by the member `own`, which is reached at `address`. Nobody is dialled before
    /// [`Peers::start`].
    ///
    /// # Errors
    /// The roots cannot be used.
    pub fn new(
        own: MemberId,
        address: ManagerAddress,
        credentials: Credentials<'_>,
    ) -> Result<(Self, Outgoing, Unsent), TlsError> {
        let Credentials { cluster, id, roots, certificate } = credentials;
        let over = CancellationToken::new();
        let shared = Arc::new(Shared {
            id,
            directory: Directory::new(own, address),
            dialer: Dialer::new(roots, certificate, cluster)?,
            chance: system_chance(),
            lines: ArcSwap::default(),
            snapshots: OnceLock::new(),
            end: watch::Sender::new(None),
            later_life: AtomicU64::new(0),
            over: over.clone(),
        });
        let (unsent, reports) = mpsc::unbounded_channel();
        let outgoing = Outgoing { shared: shared.clone(), unsent, _over: over.drop_guard() };
        Ok((Self { shared }, outgoing, Unsent(reports)))
    }

    /// Begins to dial the members in the state of `store`, and whoever dials this manager. Called once, before the
    /// service is served.
    pub fn start(&self, store: Store, snapshots: Arc<dyn Snapshots>, unsent: Unsent, shutdown: &Shutdown) {
        let known = self.shared.snapshots.set(snapshots);
        assert!(known.is_ok(), "peers are started once");
        self.look(&store);
        let (peers, tasks) = (self.clone(), shutdown.clone());
        shutdown.spawn("peers", async move { peers.follow(store, unsent, tasks).await });
    }

    /// This manager is reached there, and not at the address that it was made with.
    pub fn reached_at(&self, address: ManagerAddress) {
        self.shared.directory.move_to(address);
    }

    /// Those managers were there when this one joined; it dials them until its state says who is there.
    pub fn introduce(&self, managers: &[Introduced]) {
        let known = |Introduced { member, id, address }: &Introduced| {
            (*member, Known { id: *id, address: address.clone() })
        };
        self.shared.directory.introduce(managers.iter().map(known).collect());
    }

    /// This manager.
    pub fn own(&self) -> MemberId {
        self.shared.directory.own()
    }

    /// All other members that are known, in order, reachable or not.
    pub fn others(&self) -> Vec<MemberId> {
        self.shared.directory.others()
    }

    /// For calls to a member, but raft's own; `None` if there is no connection to it at the moment. A member that hangs
    /// is noticed within about two seconds, and calls to it fail then. Calls with larger messages than 4 MiB need
    /// [`MAX_MESSAGE`] set at the client.
    pub fn client(&self, member: MemberId) -> Option<PeersClient<Channel>> {
        self.open_line(member).map(|line| PeersClient::new(line.channel))
    }

    /// As [`Peers::client`], for a call that the member answers, or a stream that it passes on to one of its workers,
    /// and the place among [`MAX_RELAYS`] that is to be held as long as that.
    ///
    /// # Errors
    /// [`NoRelay`].
    pub fn relay(&self, member: MemberId) -> Result<(Channel, OwnedSemaphorePermit), NoRelay> {
        let line = self.open_line(member).ok_or(NoRelay::Away)?;
        let place = line.relays.try_acquire_owned().map_err(|_| NoRelay::Full(member))?;
        Ok((line.channel, place))
    }

    /// As [`Peers::client`], for short questions and answers: over a connection that no log or import shares, since
    /// what others leave unread there would hold them up, and nodes would pass for silent.
    pub fn control(&self, member: MemberId) -> Option<PeersClient<Channel>> {
        self.open_line(member).map(|line| PeersClient::new(line.control))
    }

    fn open_line(&self, member: MemberId) -> Option<Line> {
        self.shared.lines.load().get(&member).filter(|line| line.mailbox.is_open()).cloned()
    }

    /// Resolves when this manager is none any more, and must stop. It was removed from the cluster: its own state says
    /// so, or a member said so that leads or hears of a leader, while this one hears of none. Or another manager is in
    /// a later life of the cluster: that is a fact, whoever leads here.
    pub async fn end(&self) -> End {
        let mut end = self.shared.end.subscribe();
        match end.wait_for(Option::is_some).await.map(|end| *end) {
            Ok(Some(end)) => end,
            // The sending end is in this.
            _ => std::future::pending().await,
        }
    }

    /// Somebody has seen that life of the cluster, which is later than this manager's. It is no proof that there is
    /// one, so this manager goes on, for those who have not seen it.
    pub fn note_later_life(&self, life: u64) {
        let known = self.shared.later_life.fetch_max(life, Ordering::Relaxed);
        if known < life {
            let own = self.shared.directory.life();
            tracing::error!(
                own,
                life,
                "somebody has seen a later life of the cluster, which may have begun without this manager: if it was \
                 begun with --force-new-cluster or a restore, stop this manager, move the directory `manager` in its \
                 data directory away, and `warren manager join HOST:PORT --token TOKEN` at a manager of that life"
            );
        }
    }

    /// The latest life of the cluster that somebody has seen, if it is later than this manager's; else 0.
    pub fn later_life(&self) -> u64 {
        self.shared.later_life.load(Ordering::Relaxed)
    }

    /// Keeps lines to everybody, until the driver ended.
    async fn follow(self, store: Store, mut unsent: Unsent, shutdown: Shutdown) {
        let mut watch = store.watch(store.read().index);
        let mut changes = self.shared.directory.changes();
        loop {
            self.look(&store);
            self.keep_lines(&store, &shutdown);
            tokio::select! {
                () = self.shared.over.cancelled() => break,
                _ = changes.changed() => {}
                () = other_members(&mut watch) => {}
                Some(member) = unsent.0.recv() => store.snapshot_sent(member, false).await,
            }
        }
        self.shared.lines.store(Arc::default());
    }

    /// Takes over what the state says of the members.
    fn look(&self, store: &Store) {
        let roster = roster_of(&store.read().state);
        let (own, id) = (self.own(), self.shared.id);
        if roster.has_departed(own, id) {
            self.shared.ends(End::Removed);
        } else if roster.was_removed(own) {
            // A number alone proves nothing, and what a removal leads to cannot be taken back.
            tracing::error!(
                member = own,
                manager = %id,
                "no member has this manager's number any more, and nothing shows that this one left: its keys stay; \
                 to make the machine a manager again, remove its directory `manager` and `warren manager join`"
            );
        }
        self.shared.directory.update(roster);
    }

    fn keep_lines(&self, store: &Store, shutdown: &Shutdown) {
        let (known, others) = (self.shared.lines.load_full(), self.others());
        if known.keys().eq(others.iter()) {
            return;
        }
        let line = |member: &MemberId| {
            let line = known.get(member).cloned();
            (*member, line.unwrap_or_else(|| Line::start(&self.shared, store, *member, shutdown)))
        };
        let lines: BTreeMap<_, _> = others.iter().map(line).collect();
        known.iter().filter(|(member, _)| !lines.contains_key(*member)).for_each(|(_, line)| line.end());
        self.shared.lines.store(Arc::new(lines));
    }
}

/// Resolves when the members in the state may be others.
async fn other_members(watch: &mut Watch) {
    loop {
        // Whoever missed something looks at the state.
        let Ok(batches) = watch.next().await else { return };
        let mut changes = batches.iter().flat_map(|batch| batch.changes.iter());
        if changes.any(|change| matches!(change, Change::Member(_))) {
            return;
        }
        // Writes come by the thousand, members change rarely.
        tokio::time::sleep(LOOK).await;
    }
}

fn roster_of(state: &State) -> Roster {
    let known = |member: &Arc<warren_types::Member>| {
        (member.member, Known { id: member.id, address: member.address.clone() })
    };
    let life = state.cluster().map_or(0, |cluster| cluster.incarnation);
    let departed = state.all_departed().map(|(manager, departed)| (manager, departed.member)).collect();
    Roster { life, members: state.members().map(known).collect(), next: state.next_member(), departed }
}

impl Snapshots for SnapshotDoor {
    fn read(&self, meta: SnapshotMeta) -> Later<Result<Bytes, String>> {
        let door = self.clone();
        Box::pin(async move { door.read(&meta).await.map(Bytes::from).map_err(|error| error.to_string()) })
    }

    fn receive(&self, message: Message, bytes: Bytes) -> Later<Result<(), String>> {
        let door = self.clone();
        Box::pin(async move { door.receive(message, bytes).await.map_err(|error| error.to_string()) })
    }
}

impl Wire for Outgoing {
    fn send(&mut self, messages: Vec<Message>) {
        let lines = self.shared.lines.load();
        for message in messages {
            let (to, kind) = (message.to, message.kind);
            match (lines.get(&to), kind) {
                (Some(line), MessageKind::Snapshot) => line.snapshots.put(message),
                (None, MessageKind::Snapshot) => {
                    // Nobody reports any more when the peers are over.
                    let _ = self.unsent.send(to);
                }
                (Some(line), _) => {
                    if line.mailbox.put(message).is_err() && kind == MessageKind::Append {
                        line.lost();
                    }
                }
                (None, _) => {}
            }
        }
    }

    /// Whom to reach the state says: a member is in it before it is in the group, and until after it left.
    fn members(&mut self, _: &ConfState) {}
}

impl Leader for Peers {
    fn forward(&self, leader: MemberId, commands: Vec<Command>, within: Duration) -> Later<Forwarded> {
        let line = self.shared.lines.load().get(&leader).map(|line| line.forwards.clone());
        Box::pin(async move {
            match line {
                Some(line) => forward::forward(line, commands, within).await,
                None => commands.iter().map(|_| Err(ProposeError::NotLeader)).collect(),
            }
        })
    }
}

#[cfg(test)]
mod tests;
