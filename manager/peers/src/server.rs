//! The gRPC service for other managers. The role table admits managers only (`manager/api/src/authorization.rs`);
//! this module also checks each call against the members of the cluster.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};
use warren_consensus::{Message, MessageKind};
use warren_control::Shutdown;
use warren_proto::v1::peers_server;
use warren_proto::{Problem, v1};
use warren_replica::{PeerCaller, PeerRejection};
use warren_security::Peer;
use warren_store::Store;
use warren_store::codec as commands;
use warren_store::problem::{manager_stopping, status_of};
use warren_store::timestamp::TimestampSource;
use warren_types::{ManagerId, MemberId};

use super::addresses::InboundConnection;
use super::local_calls::{AuditStream, LocalCalls, ProgressStream, RelayStream};
use super::rejection::{manager_id, rejection_status};
use super::snapshot_receive::{AnnouncedSnapshot, SnapshotReceiver};
use super::{Peers, RemovalReason, codec, forward};

/// Timeout of the first frame of a stream.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// Dependencies of the server.
pub struct PeerServerParts {
    /// Links to the other managers.
    pub peers: Peers,
    /// Replicated state of this manager.
    pub store: Store,
    /// Source of timestamps for forwarded commands.
    pub clock: TimestampSource,
    /// Handles the calls that concern this manager and its sessions.
    pub local_calls: Arc<dyn LocalCalls>,
    /// Ends tasks that outlive the request that started them.
    pub shutdown: Shutdown,
}

/// The peer service. Cheap to clone.
#[derive(Clone)]
pub struct PeerServer {
    parts: Arc<PeerServerParts>,
    snapshot_receiver: SnapshotReceiver,
}

impl PeerServer {
    /// Creates the service.
    pub fn new(parts: PeerServerParts) -> Self {
        let PeerServerParts { peers, store, shutdown, .. } = &parts;
        let snapshots = SnapshotReceiver::new(peers.clone(), store.clone(), shutdown.clone());
        Self { parts: Arc::new(parts), snapshot_receiver: snapshots }
    }

    /// The calling manager.
    fn calling_manager<T>(&self, request: &Request<T>) -> Result<ManagerId, Status> {
        match request.extensions().get::<Peer>() {
            Some(Peer::Certificate { identity, .. }) => {
                manager_id(identity, self.parts.peers.shared.dialer.cluster()).map_err(rejection_status)
            }
            _ => Err(Status::permission_denied("only managers may call this")),
        }
    }

    /// The calling member.
    fn calling_member<T>(&self, request: &Request<T>) -> Result<MemberId, Status> {
        let id = self.calling_manager(request)?;
        self.parts
            .peers
            .shared
            .addresses
            .identify_caller(id)
            .map_err(|refused| self.rejection_status(refused))
    }

    /// The error for a rejected caller. A removal is reported only by a manager that leads or knows a leader.
    /// If the caller is in a later incarnation of the cluster, this manager is superseded.
    fn rejection_status(&self, rejection: PeerRejection) -> Status {
        let PeerServerParts { peers, store, .. } = &*self.parts;
        if let PeerRejection::NewerIncarnation { own, found: newer, .. } = rejection {
            peers.shared.mark_removed(RemovalReason::Superseded { own, newer });
        }
        let may_report = store.read().role.may_report_removal(store.since_leader_seen());
        if matches!(rejection, PeerRejection::Removed { .. }) && !may_report {
            let message = format!("{rejection}, according to the local state; no leader is known");
            return Problem::new(Code::Unavailable, "NO_LEADER", message).into();
        }
        rejection_status(rejection)
    }

    /// Whether this manager leads, or knows a leader other than `from`.
    fn is_led(&self, from: MemberId) -> bool {
        let store = &self.parts.store;
        store.read().role.has_leader_besides(from, store.since_leader_seen())
    }

    /// Checks that the connected member is still admitted and has no newer connection.
    fn check_still_admitted(&self, connection: &InboundConnection) -> Result<(), Status> {
        let current = connection.is_current(self.is_led(connection.member_id()));
        let current = current.map_err(|refused| self.rejection_status(refused))?;
        current.then_some(()).ok_or_else(|| Status::aborted("the member opened a newer raft stream"))
    }

    /// Receives messages of a member from its hello to the end of the stream.
    async fn receive_messages(
        &self,
        id: ManagerId,
        inbound: &mut Streaming<v1::RaftFrame>,
    ) -> Result<(), Status> {
        let PeerServerParts { peers, store, .. } = &*self.parts;
        let transport_closed = peers.shared.transport_closed.clone();
        let late = |_| Status::deadline_exceeded(format!("no hello within {HELLO_TIMEOUT:?}"));
        let first = timeout(HELLO_TIMEOUT, inbound.message()).await.map_err(late)??;
        let Some(v1::PeerHello { member_id: member, address, incarnation }) =
            first.and_then(|frame| frame.hello)
        else {
            return Err(Status::invalid_argument("the first frame must be a hello"));
        };
        let address =
            address.parse().map_err(|error| Status::invalid_argument(format!("address: {error}")))?;
        let directory = &peers.shared.addresses;
        let mut changes = directory.changes();
        let connection = directory.accept_connection(
            PeerCaller { member_id: member, id, incarnation },
            address,
            self.is_led(member),
        );
        let connection = connection.map_err(|refused| self.rejection_status(refused))?;
        loop {
            let frame = tokio::select! {
                biased;
                () = transport_closed.cancelled() => return Err(manager_stopping()),
                _ = changes.changed() => {
                    self.check_still_admitted(&connection)?;
                    continue;
                }
                frame = inbound.message() => frame?,
            };
            let Some(frame) = frame else { return Ok(()) };
            // A leader may be known by now; its state decides whether this is a member.
            self.check_still_admitted(&connection)?;
            for message in frame.messages {
                store.receive_message(self.parse_message(message, &connection)?);
            }
        }
    }

    fn parse_message(
        &self,
        message: v1::RaftMessage,
        connection: &InboundConnection,
    ) -> Result<Message, Status> {
        let message = codec::from_wire(message);
        let message = message.map_err(|error| Status::invalid_argument(error.to_string()))?;
        self.check_receiver(&message)?;
        if message.from != connection.member_id() {
            let (own, other) = (connection.member_id(), message.from);
            return Err(Status::permission_denied(format!(
                "member {own} sent a message with the sender {other}"
            )));
        }
        Ok(message)
    }

    fn check_receiver(&self, message: &Message) -> Result<(), Status> {
        let own = self.parts.peers.own_id();
        if message.to == own {
            Ok(())
        } else {
            Err(rejection_status(PeerRejection::WrongReceiver { own, wanted: message.to }))
        }
    }

    /// Parses the announcement of a snapshot.
    fn parse_announcement(
        &self,
        id: ManagerId,
        header: v1::SnapshotHeader,
    ) -> Result<AnnouncedSnapshot, Status> {
        let v1::SnapshotHeader { message, size, incarnation, digest } = header;
        let message = message.ok_or_else(|| Status::invalid_argument("header.message is missing"))?;
        let message = codec::from_wire(message);
        let message = message.map_err(|error| Status::invalid_argument(error.to_string()))?;
        self.check_receiver(&message)?;
        let directory = self.parts.peers.shared.addresses.members();
        let caller = PeerCaller { member_id: message.from, id, incarnation };
        let admitted = directory.admit(caller, self.is_led(message.from));
        admitted.map_err(|refused| self.rejection_status(refused))?;
        match message.snapshot.clone() {
            Some(meta) if message.kind == MessageKind::Snapshot => {
                Ok(AnnouncedSnapshot { incarnation, message, meta, size, digest })
            }
            _ => Err(Status::invalid_argument("header.message is not a snapshot message")),
        }
    }
}

#[tonic::async_trait]
impl peers_server::Peers for PeerServer {
    type InstallSnapshotStream = ReceiverStream<Result<v1::SnapshotAck, Status>>;
    type WatchProgressStream = ProgressStream;
    type RelayStream = RelayStream;
    type ReadAuditStream = AuditStream;

    async fn stream_raft(
        &self,
        request: Request<Streaming<v1::RaftFrame>>,
    ) -> Result<Response<v1::StreamRaftResponse>, Status> {
        let id = self.calling_manager(&request)?;
        self.receive_messages(id, &mut request.into_inner()).await?;
        Ok(Response::new(v1::StreamRaftResponse {}))
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<v1::SnapshotFrame>>,
    ) -> Result<Response<Self::InstallSnapshotStream>, Status> {
        let id = self.calling_manager(&request)?;
        let mut inbound = request.into_inner();
        let late = |_| Status::deadline_exceeded(format!("no header within {HELLO_TIMEOUT:?}"));
        let first = timeout(HELLO_TIMEOUT, inbound.message()).await.map_err(late)??;
        let header = first.and_then(|frame| frame.header);
        let header =
            header.ok_or_else(|| Status::invalid_argument("the first frame must have the header"))?;
        let announced = self.parse_announcement(id, header)?;
        let (answers, outgoing) = mpsc::channel(2);
        let snapshots = self.snapshot_receiver.clone();
        self.parts.shutdown.spawn("snapshot-receive", async move {
            if let Err(status) = snapshots.receive(announced, inbound, &answers).await {
                tracing::info!(%id, error = status.message(), "receiving a snapshot failed");
                // The sender may have disconnected.
                let _ = answers.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }

    async fn forward_proposals(
        &self,
        request: Request<v1::ForwardProposalsRequest>,
    ) -> Result<Response<v1::ForwardProposalsResponse>, Status> {
        let began = Instant::now();
        self.calling_member(&request)?;
        let v1::ForwardProposalsRequest { commands, within_ms } = request.into_inner();
        let count = commands.len();
        let decoded: Result<Vec<_>, _> = commands.iter().map(|bytes| commands::decode(bytes)).collect();
        // It may be a command of a newer version: its writes wait for a leader that knows it.
        let decoded = decoded.map_err(|error| Problem::new(Code::InvalidArgument, "COMMAND", error))?;
        let within = Duration::from_millis(within_ms).saturating_sub(began.elapsed());
        if within.is_zero() {
            let results = (0..count).map(|_| forward::expired()).collect();
            return Ok(Response::new(v1::ForwardProposalsResponse { results }));
        }
        let PeerServerParts { store, clock, .. } = &*self.parts;
        let positions = store.propose_forwarded(decoded, clock.now(), within).await;
        let results = positions.into_iter().map(forward::to_wire).collect();
        Ok(Response::new(v1::ForwardProposalsResponse { results }))
    }

    async fn list_contacts(
        &self,
        request: Request<v1::ListContactsRequest>,
    ) -> Result<Response<v1::ListContactsResponse>, Status> {
        self.calling_member(&request)?;
        let (leader_term, term) = (request.into_inner().term, self.parts.store.read().role.term);
        if leader_term < term {
            let message = format!("stale leader of term {leader_term}: the current term is {term}");
            return Err(Problem::new(Code::FailedPrecondition, "STALE_LEADER", message).into());
        }
        let contacts = self.parts.local_calls.contacts();
        Ok(Response::new(v1::ListContactsResponse { contacts }))
    }

    async fn status(
        &self,
        request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        self.calling_member(&request)?;
        Ok(Response::new(self.parts.local_calls.status()))
    }

    async fn transfer_leadership(
        &self,
        request: Request<v1::TransferRequest>,
    ) -> Result<Response<v1::TransferResponse>, Status> {
        let from = self.calling_member(&request)?;
        let to = Some(request.into_inner().to).filter(|to| *to != 0);
        tracing::info!(from, to, "leadership transfer requested by another manager");
        self.parts.store.transfer_leadership(to).await.map_err(status_of)?;
        Ok(Response::new(v1::TransferResponse {}))
    }

    async fn list_node_reports(
        &self,
        request: Request<v1::ListNodeReportsRequest>,
    ) -> Result<Response<v1::ListNodeReportsResponse>, Status> {
        let from = self.calling_member(&request)?;
        self.parts.local_calls.list_node_reports(from, request.into_inner()).await.map(Response::new)
    }

    async fn watch_progress(
        &self,
        request: Request<v1::WatchProgressRequest>,
    ) -> Result<Response<Self::WatchProgressStream>, Status> {
        let from = self.calling_member(&request)?;
        self.parts.local_calls.watch_progress(from, request.into_inner()).await.map(Response::new)
    }

    async fn await_network(
        &self,
        request: Request<v1::AwaitNetworkRequest>,
    ) -> Result<Response<v1::AwaitNetworkResponse>, Status> {
        let from = self.calling_member(&request)?;
        self.parts.local_calls.await_network(from, request.into_inner()).await.map(Response::new)
    }

    async fn check_manager(
        &self,
        request: Request<v1::CheckManagerRequest>,
    ) -> Result<Response<v1::CheckManagerResponse>, Status> {
        let v1::CheckManagerRequest { id, member_id, incarnation } = request.into_inner();
        let id = id.parse().map_err(|why| Status::invalid_argument(format!("id: {why}")))?;
        let directory = self.parts.peers.shared.addresses.members();
        match directory.admit(PeerCaller { member_id, id, incarnation }, false) {
            Err(left @ (PeerRejection::Removed { .. } | PeerRejection::OlderIncarnation { .. })) => {
                Err(self.rejection_status(left))
            }
            // What else a caller without a certificate says has no consequence.
            _ => Ok(Response::new(v1::CheckManagerResponse {})),
        }
    }

    async fn relay(
        &self,
        request: Request<Streaming<v1::RelayFrame>>,
    ) -> Result<Response<Self::RelayStream>, Status> {
        let from = self.calling_member(&request)?;
        self.parts.local_calls.relay_stream(from, request.into_inner()).await.map(Response::new)
    }

    async fn read_audit(
        &self,
        request: Request<v1::AuditRequest>,
    ) -> Result<Response<Self::ReadAuditStream>, Status> {
        let from = self.calling_member(&request)?;
        self.parts.local_calls.read_audit(from, request.into_inner()).await.map(Response::new)
    }
}
