//! The link to one peer: a connection for raft messages and forwarded writes that is reestablished when it is
//! lost. Snapshots have their own connections (see [`super::snapshot_send`]), as do other calls.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::transport::Channel;
use warren_control::{Backoff, Shutdown};
use warren_proto::v1;
use warren_proto::v1::peers_client::PeersClient;
use warren_replica::PeerRoute;
use warren_security::ConnectError;
use warren_store::Store;
use warren_types::{ManagerAddress, MemberId};

use super::dial::PeerDialError;
use super::forward::{self, ForwardBatch};
use super::link_context::LinkContext;
use super::rejection::{is_removal_status, superseding_incarnation};
use super::send_queue::SendQueue;
use super::snapshot_send::{self, LatestSnapshot};
use super::{MAX_RELAYS, PeersInner, RemovalReason};

/// Backoff after a connection was lost or failed.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(50);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);
/// A connection that lasted this long resets the backoff.
const STABLE_AFTER: Duration = Duration::from_secs(1);
/// A manager that is told that it was removed accepts this only if it has known no leader for this time. A
/// manager that knows a leader is a member, whatever the peer reports.
const LEADERLESS_BEFORE_REMOVAL: Duration = Duration::from_secs(2);
/// Timeout of the answer of a manager that refuses the certificate.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);
/// Forward batches that may be queued for the connection.
const MAX_QUEUED_FORWARDS: usize = 64;

/// The connections to one peer. Cheap to clone; all clones share them. Ends when it is closed.
#[derive(Clone)]
pub struct PeerLink {
    /// Queue of raft messages.
    pub send_queue: SendQueue,
    /// Queue of writes for the leader.
    pub forwards: mpsc::Sender<ForwardBatch>,
    /// The newest snapshot to send.
    pub latest_snapshot: LatestSnapshot,
    /// For other calls.
    pub channel: Channel,
    /// For short calls that nothing else may delay.
    pub control: Channel,
    /// Permits of relayed streams.
    pub relay_permits: Arc<Semaphore>,
    member: MemberId,
    store: Store,
    closed: CancellationToken,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error(transparent)]
    Dial(#[from] PeerDialError),
    /// The status may have a reason, or the connection error.
    #[error("{}", status_text(.0))]
    Ended(Box<Status>),
    #[error("peer closed the stream")]
    Closed,
    #[error("peer reported another address")]
    AddressChanged,
    #[error("reconnecting with the new incarnation")]
    RemovalReported,
}

fn status_text(status: &Status) -> String {
    let cause = std::error::Error::source(status).map(|cause| format!(" ({cause})"));
    format!("{}{}", status.message(), cause.unwrap_or_default())
}

impl PeerLink {
    /// Starts a link to `member`, until the transport or the link is closed.
    pub(super) fn start(
        shared: &Arc<PeersInner>,
        store: &Store,
        member: MemberId,
        shutdown: &Shutdown,
    ) -> Self {
        let (forwards, forwarded) = mpsc::channel(MAX_QUEUED_FORWARDS);
        let line = Self {
            send_queue: SendQueue::default(),
            forwards,
            latest_snapshot: LatestSnapshot::default(),
            channel: shared.dialer.lazy_channel(shared.addresses.clone(), member),
            control: shared.dialer.lazy_channel(shared.addresses.clone(), member),
            relay_permits: Arc::new(Semaphore::new(MAX_RELAYS)),
            member,
            store: store.clone(),
            closed: shared.transport_closed.child_token(),
        };
        let (channel, connected) = watch::channel(None);
        let ends =
            LinkContext { peers: shared.clone(), store: store.clone(), member, closed: line.closed.clone() };
        let (send_queue, snapshots) = (line.send_queue.clone(), line.latest_snapshot.clone());
        shutdown.spawn("peer-link", ends.clone().run(send_queue, channel));
        shutdown.spawn("peer-forward", forward::run(forwarded, connected, ends.closed.clone()));
        shutdown.spawn("peer-snapshots", snapshot_send::run(ends, snapshots));
        line
    }

    /// Entries were dropped: raft must stop sending ahead of the member's acknowledgements.
    pub fn clear_forwards(&self) {
        self.store.report_unreachable(self.member);
    }

    /// Closes the link.
    pub fn close(&self) {
        self.closed.cancel();
    }
}

impl LinkContext {
    /// Keeps the connection up until the link is closed.
    async fn run(self, send_queue: SendQueue, channel: watch::Sender<Option<Channel>>) {
        let mut backoff = Backoff::new(MIN_RETRY_DELAY, MAX_RETRY_DELAY);
        let mut address_index = 0;
        while let Some(route) = self.wait_route().await {
            let address = &route.addresses[address_index % route.addresses.len()];
            let began = Instant::now();
            let lost = tokio::select! {
                () = self.closed.cancelled() => break,
                lost = self.run_connection(&route, address, &send_queue, &channel) => lost,
            };
            send_queue.close();
            channel.send_replace(None);
            self.store.report_unreachable(self.member);
            if began.elapsed() >= STABLE_AFTER {
                backoff.reset();
            }
            self.log_lost(&lost, address, backoff.failures());
            let pause = backoff.next_delay((self.peers.chance)());
            address_index += 1;
            tokio::select! {
                () = self.closed.cancelled() => break,
                () = sleep(pause) => {}
                () = self.route_changed(&route) => {
                    backoff.reset();
                    address_index = 0;
                }
            }
        }
        send_queue.close();
        channel.send_replace(None);
    }

    /// How to reach the member; `None` when the link is closed.
    async fn wait_route(&self) -> Option<PeerRoute> {
        let mut changes = self.peers.addresses.changes();
        loop {
            if let Some(route) = self.peers.addresses.route(self.member) {
                return Some(route);
            }
            // The member was removed, and the link is about to be closed.
            tokio::select! {
                () = self.closed.cancelled() => return None,
                _ = changes.changed() => {}
            }
        }
    }

    /// Resolves when the member has connected, which proves that it is running, or its route differs from
    /// `route`.
    async fn route_changed(&self, route: &PeerRoute) {
        let mut changes = self.peers.addresses.changes();
        while self.peers.addresses.route(self.member).is_none_or(|now| now == *route) {
            // The addresses exist as long as the peers.
            let _ = changes.changed().await;
        }
    }

    /// Runs one connection from dialling to its end.
    async fn run_connection(
        &self,
        route: &PeerRoute,
        address: &ManagerAddress,
        send_queue: &SendQueue,
        channel: &watch::Sender<Option<Channel>>,
    ) -> LinkError {
        let connected = tokio::select! {
            connected = self.peers.dialer.channel(address, route.id) => connected,
            () = self.route_changed(route) => return LinkError::AddressChanged,
        };
        let connected = match connected {
            Ok(connected) => connected,
            Err(refused @ PeerDialError::Tls { source: ConnectError::Revoked, .. }) => {
                return self.check_membership(route, address, refused).await;
            }
            Err(error) => return error.into(),
        };
        let directory = &self.peers.addresses;
        let (member, incarnation) = (directory.own_id(), directory.incarnation());
        let hello =
            v1::PeerHello { member_id: member, address: directory.own_address().to_string(), incarnation };
        let frames = send_queue.open(hello);
        channel.send_replace(Some(connected.clone()));
        tracing::debug!(member = self.member, %address, "connected to another manager");
        let mut client = PeersClient::new(connected);
        tokio::select! {
            ended = client.stream_raft(frames) => match ended {
                Ok(_) => LinkError::Closed,
                Err(status) => LinkError::Ended(Box::new(status)),
            },
            // Messages from now on belong to the new state; only peers in the same incarnation accept them.
            () = self.incarnation_changed(incarnation) => LinkError::RemovalReported,
        }
    }

    /// Asks a manager that refuses the certificate whether this manager was removed. It may lag.
    async fn check_membership(
        &self,
        route: &PeerRoute,
        address: &ManagerAddress,
        refused: PeerDialError,
    ) -> LinkError {
        let PeersInner { id, addresses, dialer, .. } = &*self.peers;
        let (id, member_id, incarnation) = (id.to_string(), addresses.own_id(), addresses.incarnation());
        let request = v1::CheckManagerRequest { id, member_id, incarnation };
        let answer = async {
            let channel = dialer.anonymous_channel(address, route.id).await?;
            Ok::<_, PeerDialError>(PeersClient::new(channel).check_manager(request).await)
        };
        match timeout(CHECK_TIMEOUT, answer).await {
            Ok(Ok(Err(status))) => LinkError::Ended(Box::new(status)),
            _ => refused.into(),
        }
    }

    /// Resolves when this manager's state has another incarnation.
    async fn incarnation_changed(&self, incarnation: u64) {
        let mut changes = self.peers.addresses.changes();
        while self.peers.addresses.incarnation() == incarnation {
            // The addresses exist as long as the peers.
            let _ = changes.changed().await;
        }
    }

    /// Handles a peer's rejection of this manager.
    fn handle_rejection(&self, status: &Status) {
        let (shared, own) = (&self.peers, self.peers.addresses.incarnation());
        if is_removal_status(status, shared.addresses.own_id(), shared.id)
            && self.store.since_leader_seen() >= LEADERLESS_BEFORE_REMOVAL
        {
            shared.mark_removed(RemovalReason::Removed);
        }
        if let Some(newer) = superseding_incarnation(status, own) {
            shared.mark_removed(RemovalReason::Superseded { own, newer });
        }
    }

    fn log_lost(&self, lost: &LinkError, address: &ManagerAddress, failures: u32) {
        let member = self.member;
        if matches!(lost, LinkError::AddressChanged | LinkError::RemovalReported) {
            return;
        }
        if let LinkError::Ended(status) = lost {
            self.handle_rejection(status);
        }
        // The first failure is a warning; repeated ones are debug messages.
        if failures == 0 {
            tracing::warn!(member, %address, %lost, "no connection to another manager");
        } else {
            tracing::debug!(member, %address, %lost, "no connection to another manager");
        }
    }
}
