//! Communication with the other managers: raft messages, forwarded writes, and all other calls between
//! managers.
//!
//! Each manager dials every other one and sends its own messages over that connection; the replies come over
//! the connection that the other one made. Raft messages and forwarded writes share it (`peers/link.rs`),
//! snapshots have their own connections ([`snapshot_send`]), short calls share one
//! ([`Peers::control_client`]), and all other calls share another one ([`Peers::client`]); the last two are
//! made on demand. So a log or an import cannot delay the messages that keep a leader in office, nor the
//! query for node contacts.
//!
//! All queues are bounded: what finds no room is dropped, and raft sends it again. This module decides
//! nothing: whom to dial and whom to admit follows from the members in the state ([`MemberDirectory`]) and
//! from what managers report about themselves ([`addresses`]). Start reading at [`Peers`], then
//! [`server::PeerServer`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod addresses;
pub mod codec;
pub mod dial;
pub mod forward;
pub mod link;
mod link_context;
pub mod local_calls;
pub mod partial_snapshot;
pub mod rejection;
pub mod send_queue;
pub mod server;
mod snapshot_receive;
pub mod snapshot_send;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::Channel;
use warren_consensus::{ConfState, Message, MessageKind, SnapshotMeta};
use warren_control::{RandomSource, Shutdown, system_random};
use warren_core::{Command, StateChange};
use warren_proto::v1::peers_client::PeersClient;
use warren_replica::{KnownManager, MemberDirectory, PeerRejection};
use warren_security::{Identity, ReloadableCertificate, TlsError, Trust};
use warren_store::raft::snapshot::SnapshotExchange;
use warren_store::raft::transport::RaftTransport;
use warren_store::{ChangeWatch, Forwarded, LeaderClient, ProposeError, Store};
use warren_types::{ManagerAddress, ManagerId, MemberId};

use self::addresses::PeerAddresses;
use self::dial::PeerDialer;
use self::link::PeerLink;

/// Minimum interval between two refreshes of the members from the state.
const REFRESH_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum message between managers: entries of 1 MiB, plus one message, which may have one entry of any
/// size.
pub const MAX_PEER_MESSAGE: usize = 16 << 20;

/// Maximum concurrent calls per connection. Another manager relays many log streams over one connection, each
/// of which is a call.
pub const MAX_STREAMS: u32 = 1024;

/// Maximum number of streams that another manager relays for this one at once: its [`MAX_STREAMS`], less some
/// room for other calls. More streams would queue there and delay the others.
pub const MAX_RELAYS: usize = 960;
const _: () = assert!(MAX_RELAYS < MAX_STREAMS as usize, "relays must leave room for other calls");

/// A boxed future.
pub type BoxedFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Snapshots as plain bytes, identical on every manager of one version.
pub trait SnapshotAccess: Send + Sync + 'static {
    /// The bytes of the snapshot that covers `meta`.
    fn read(&self, meta: SnapshotMeta) -> BoxedFuture<Result<Bytes, String>>;

    /// Stores the bytes of the snapshot that `message` announces and installs it. Resolves when it is durable
    /// and raft was notified.
    fn receive(&self, message: Message, bytes: Bytes) -> BoxedFuture<Result<(), String>>;
}

/// The other managers. Cheap to clone; all clones share one state.
#[derive(Clone)]
pub struct Peers {
    pub(crate) shared: Arc<PeersInner>,
}

pub(crate) struct PeersInner {
    /// The id in this manager's certificate.
    pub(crate) id: ManagerId,
    pub(crate) addresses: PeerAddresses,
    pub(crate) dialer: PeerDialer,
    chance: RandomSource,
    links: ArcSwap<BTreeMap<MemberId, PeerLink>>,
    snapshots: OnceLock<Arc<dyn SnapshotAccess>>,
    /// Why this manager was removed; `None` while it is a member.
    removal: watch::Sender<Option<RemovalReason>>,
    /// Cancelled when the driver has dropped its transport: it may need the peers until then.
    pub(crate) transport_closed: CancellationToken,
}

impl PeersInner {
    /// Records that this manager was removed. The first reason is kept.
    pub(crate) fn mark_removed(&self, end: RemovalReason) {
        self.removal.send_if_modified(|known| known.is_none() && known.replace(end).is_none());
    }

    fn snapshots(&self) -> &dyn SnapshotAccess {
        &**self.snapshots.get().expect("links and the server start after the peers")
    }
}

/// Why this manager must stop being a manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovalReason {
    /// It was removed from the cluster.
    Removed,
    /// A later incarnation of the cluster exists, which was created without this manager.
    Superseded {
        /// The incarnation of this manager.
        own: u64,
        /// The incarnation of the cluster.
        newer: u64,
    },
}

/// The driver's transport. Dropping it closes all connections.
pub struct PeerTransport {
    shared: Arc<PeersInner>,
    /// Members for which a snapshot was requested that cannot be sent.
    unsent: mpsc::UnboundedSender<MemberId>,
    _closed_on_drop: DropGuard,
}

/// Why another manager cannot relay a stream to one of its workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RelayError {
    /// The manager is unreachable.
    #[error("the manager that the node is connected to is unreachable from here; try again shortly")]
    Unreachable,
    /// It relays the maximum number of streams for this manager.
    #[error(
        "manager {0} already relays {MAX_RELAYS} streams for this one; try again when some have ended, or \
         use that manager itself"
    )]
    TooManyStreams(MemberId),
}

/// Snapshot requests without a link, for [`Peers::start`].
pub struct UnsentSnapshots(mpsc::UnboundedReceiver<MemberId>);

/// The credentials of a manager.
pub struct PeerCredentials<'a> {
    /// The cluster's id in certificates.
    pub cluster: &'a str,
    /// The id in this manager's certificate.
    pub id: ManagerId,
    /// The cluster's CAs.
    pub trust: Arc<Trust>,
    /// This manager's certificate.
    pub certificate: Arc<ReloadableCertificate>,
}

impl Peers {
    /// The peers of the member `own`, which is reachable at `address`. Nothing is dialled before
    /// [`Peers::start`].
    ///
    /// # Errors
    /// The CAs are invalid.
    pub fn new(
        own: MemberId,
        address: ManagerAddress,
        credentials: PeerCredentials<'_>,
    ) -> Result<(Self, PeerTransport, UnsentSnapshots), TlsError> {
        let PeerCredentials { cluster, id, trust, certificate } = credentials;
        let transport_closed = CancellationToken::new();
        let shared = Arc::new(PeersInner {
            id,
            addresses: PeerAddresses::new(own, address),
            dialer: PeerDialer::new(trust, certificate, cluster)?,
            chance: system_random(),
            links: ArcSwap::default(),
            snapshots: OnceLock::new(),
            removal: watch::Sender::new(None),
            transport_closed: transport_closed.clone(),
        });
        let (unsent, reports) = mpsc::unbounded_channel();
        let outgoing =
            PeerTransport { shared: shared.clone(), unsent, _closed_on_drop: transport_closed.drop_guard() };
        Ok((Self { shared }, outgoing, UnsentSnapshots(reports)))
    }

    /// Starts dialling the members in the state of `store`, and the managers that connect. Called once,
    /// before the service is served.
    pub fn start(
        &self,
        store: Store,
        snapshots: Arc<dyn SnapshotAccess>,
        unsent: UnsentSnapshots,
        shutdown: &Shutdown,
    ) {
        let known = self.shared.snapshots.set(snapshots);
        assert!(known.is_ok(), "peers are started once");
        self.refresh_members(&store);
        let (peers, tasks) = (self.clone(), shutdown.clone());
        shutdown.spawn("peers", async move { peers.run(store, unsent, tasks).await });
    }

    /// Sets the address of this manager; replaces the initial one.
    pub fn set_own_address(&self, address: ManagerAddress) {
        self.shared.addresses.set_own_address(address);
    }

    /// Adds the managers that existed when this one joined; they are dialled until the state has members.
    pub fn add_bootstrap_peers(&self, managers: BTreeMap<MemberId, KnownManager>) {
        self.shared.addresses.add_bootstrap_peers(managers);
    }

    /// The member id of this manager.
    pub fn own_id(&self) -> MemberId {
        self.shared.addresses.own_id()
    }

    /// The cluster whose managers are admitted.
    pub fn cluster(&self) -> &str {
        self.shared.dialer.cluster()
    }

    /// The member that the certificate `identity` belongs to.
    ///
    /// # Errors
    /// The certificate belongs to another cluster, not to a manager, or to one that is not a member.
    pub fn identify_caller(&self, identity: &Identity) -> Result<MemberId, PeerRejection> {
        let id = rejection::manager_id(identity, self.cluster())?;
        self.shared.addresses.identify_caller(id)
    }

    /// All other known members, ordered by id, reachable or not.
    pub fn others(&self) -> Vec<MemberId> {
        self.shared.addresses.others()
    }

    /// A client for calls other than raft's; `None` without a connection. A member that hangs is detected
    /// within about two seconds, and its calls fail then. For messages above 4 MiB set [`MAX_PEER_MESSAGE`]
    /// on the client.
    pub fn client(&self, member: MemberId) -> Option<PeersClient<Channel>> {
        self.open_link(member).map(|link| PeersClient::new(link.channel))
    }

    /// As [`Peers::client`], for forwarded calls and relayed streams, with a permit of [`MAX_RELAYS`] to be
    /// held until the end.
    ///
    /// # Errors
    /// [`RelayError`].
    pub fn relay_channel(&self, member: MemberId) -> Result<(Channel, OwnedSemaphorePermit), RelayError> {
        let link = self.open_link(member).ok_or(RelayError::Unreachable)?;
        let permit =
            link.relay_permits.try_acquire_owned().map_err(|_| RelayError::TooManyStreams(member))?;
        Ok((link.channel, permit))
    }

    /// As [`Peers::client`], for short calls: over a connection without logs or imports, whose unread data
    /// would delay the calls and make nodes appear silent.
    pub fn control_client(&self, member: MemberId) -> Option<PeersClient<Channel>> {
        self.open_link(member).map(|link| PeersClient::new(link.control))
    }

    fn open_link(&self, member: MemberId) -> Option<PeerLink> {
        self.shared.links.load().get(&member).filter(|link| link.send_queue.is_open()).cloned()
    }

    /// Resolves when this manager must stop. Either it was removed: its own state says so, or a member that
    /// leads or knows a leader said so while this one knows none. Or another manager is in a later
    /// incarnation of the cluster, regardless of the leader here.
    pub async fn wait_removed(&self) -> RemovalReason {
        let mut end = self.shared.removal.subscribe();
        match end.wait_for(Option::is_some).await.map(|end| *end) {
            Ok(Some(end)) => end,
            // The sender is a field of this value.
            _ => std::future::pending().await,
        }
    }

    /// Maintains links to all members until the driver ends.
    async fn run(self, store: Store, mut unsent: UnsentSnapshots, shutdown: Shutdown) {
        let mut watch = store.watch(store.read().index);
        let mut changes = self.shared.addresses.changes();
        loop {
            self.refresh_members(&store);
            self.sync_links(&store, &shutdown);
            tokio::select! {
                () = self.shared.transport_closed.cancelled() => break,
                _ = changes.changed() => {}
                () = members_changed(&mut watch) => {}
                Some(member) = unsent.0.recv() => store.report_snapshot(member, false).await,
            }
        }
        self.shared.links.store(Arc::default());
    }

    /// Updates the addresses with the members in the state.
    fn refresh_members(&self, store: &Store) {
        let members = MemberDirectory::of(&store.read().state);
        let (own, id) = (self.own_id(), self.shared.id);
        if members.has_departed(own, id) {
            self.shared.mark_removed(RemovalReason::Removed);
        } else if members.was_removed(own) {
            // The member id alone is no proof, and a removal cannot be undone.
            tracing::error!(
                member = own,
                manager = %id,
                "no member has this manager's member id any more, and there is no record that this manager \
                 was removed: its keys are kept; to make the machine a manager again, remove its directory \
                 `manager` and run `warren manager join`"
            );
        }
        self.shared.addresses.update(members);
    }

    fn sync_links(&self, store: &Store, shutdown: &Shutdown) {
        let (known, others) = (self.shared.links.load_full(), self.others());
        if known.keys().eq(others.iter()) {
            return;
        }
        let start = |member: &MemberId| {
            let link = known.get(member).cloned();
            (*member, link.unwrap_or_else(|| PeerLink::start(&self.shared, store, *member, shutdown)))
        };
        let links: BTreeMap<_, _> = others.iter().map(start).collect();
        known.iter().filter(|(member, _)| !links.contains_key(*member)).for_each(|(_, link)| link.close());
        self.shared.links.store(Arc::new(links));
    }
}

/// Resolves when the members in the state may have changed.
async fn members_changed(watch: &mut ChangeWatch) {
    loop {
        // A watcher that missed changes reads the state.
        let Ok(batches) = watch.next().await else { return };
        let mut changes = batches.iter().flat_map(|batch| batch.changes.iter());
        if changes.any(|change| matches!(change, StateChange::Member(_))) {
            return;
        }
        // Writes are frequent, membership changes are rare.
        tokio::time::sleep(REFRESH_INTERVAL).await;
    }
}

impl SnapshotAccess for SnapshotExchange {
    fn read(&self, meta: SnapshotMeta) -> BoxedFuture<Result<Bytes, String>> {
        let exchange = self.clone();
        Box::pin(
            async move { exchange.read(&meta).await.map(Bytes::from).map_err(|error| error.to_string()) },
        )
    }

    fn receive(&self, message: Message, bytes: Bytes) -> BoxedFuture<Result<(), String>> {
        let exchange = self.clone();
        Box::pin(async move { exchange.receive(message, bytes).await.map_err(|error| error.to_string()) })
    }
}

impl RaftTransport for PeerTransport {
    fn send(&mut self, messages: Vec<Message>) {
        let links = self.shared.links.load();
        for message in messages {
            let (to, kind) = (message.to, message.kind);
            match (links.get(&to), kind) {
                (Some(link), MessageKind::Snapshot) => link.latest_snapshot.put(message),
                (None, MessageKind::Snapshot) => {
                    // The receiver is dropped when the peers have ended.
                    let _ = self.unsent.send(to);
                }
                (Some(link), _) => {
                    if link.send_queue.push(message).is_err() && kind == MessageKind::Append {
                        link.clear_forwards();
                    }
                }
                (None, _) => {}
            }
        }
    }

    /// The state decides which members to dial: a member is in it before it is in the raft configuration, and
    /// until after it left.
    fn set_members(&mut self, _: &ConfState) {}
}

impl LeaderClient for Peers {
    fn forward(&self, leader: MemberId, commands: Vec<Command>, within: Duration) -> BoxedFuture<Forwarded> {
        let link = self.shared.links.load().get(&leader).map(|link| link.forwards.clone());
        Box::pin(async move {
            match link {
                Some(link) => forward::forward(link, commands, within).await,
                None => commands.iter().map(|_| Err(ProposeError::NotLeader)).collect(),
            }
        })
    }
}

#[cfg(test)]
mod tests;
