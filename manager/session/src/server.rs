//! The gRPC service for workers: accepts sessions and streams, and identifies their nodes.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_stream::StreamExt;
use tokio_stream::adapters::Map;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use warren_control::Shutdown;
use warren_core::Command;
use warren_core::session::{contains_version, was_removed};
use warren_proto::v1::manager_frame::Frame as Outgoing;
use warren_proto::v1::worker_frame::Frame as Incoming;
use warren_proto::v1::{self, sessions_server};
use warren_replica::{CATCH_UP_TIMEOUT, SessionAnswer};
use warren_security::{Peer, Role};
use warren_store::PublishedState;
use warren_store::incarnation::{LaterIncarnation, check_incarnation, incarnation_of};
use warren_store::problem::{
    leader_unknown, manager_behind, manager_stopping, node_removed, node_unknown, session_superseded,
    status_of, unexpected_answer,
};
use warren_types::{AssignmentVersion, MemberId, NetworkId, NodeDescription, NodeId};

use super::assignment_stream::AssignmentStream;
use super::frames::send;
use super::leader::LeaderWatch;
use super::registry::{BoxedFrame, FrameSender, RegisteredSession};
use super::secret_delivery::{DeliveryStream, SecretDelivery};
use super::session_handler::{SessionContext, SessionHandler, send_assignment};
use super::worker_streams::WorkerStream;
use super::{SessionRegistry, description};

/// Frames that may be queued for one worker before its session blocks.
const MAX_QUEUED_FRAMES: usize = 64;
/// Timeout of the first frame of a stream.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the final status may wait for room in the queue.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The session service: serves workers while a leader is known.
#[derive(Clone)]
pub struct SessionServer {
    /// What all sessions use.
    pub context: SessionContext,
    /// The sessions of this manager.
    pub registry: SessionRegistry,
    /// Delivers secrets, configs and access to registries.
    pub secret_delivery: SecretDelivery,
    /// Ends all sessions when the leader is lost.
    pub leader_watch: LeaderWatch,
    /// The later incarnation of the cluster that callers have seen.
    pub later_incarnation: LaterIncarnation,
    /// This manager.
    pub member_id: MemberId,
    /// Ends all sessions.
    pub shutdown: Shutdown,
}

/// The node id in the calling agent's certificate.
///
/// # Errors
/// The caller is not a worker.
pub fn calling_worker<T>(request: &Request<T>) -> Result<NodeId, Status> {
    match request.extensions().get::<Peer>().map(Peer::origin) {
        Some(Peer::Certificate { identity, .. }) if identity.role() == Role::Worker => identity
            .id()
            .parse()
            .map_err(|e| Status::unauthenticated(format!("the certificate's node id: {e}"))),
        _ => Err(Status::permission_denied("only a node's agent may call this")),
    }
}

impl SessionServer {
    /// Stores the session and returns its number. `has` is the assignment version that the node has.
    async fn open_session(
        &self,
        node: NodeId,
        description: NodeDescription,
        has: AssignmentVersion,
    ) -> Result<u64, Status> {
        let (manager, at) = (self.member_id, self.context.clock.now());
        let store = &self.context.store;
        let answer = store.propose(Command::OpenSession { node, description, manager, at }).await;
        match SessionAnswer::new(answer, &store.read().state, &node, has) {
            SessionAnswer::Opened(number) => Ok(number),
            SessionAnswer::NodeRemoved => Err(node_removed()),
            SessionAnswer::NodeUnknown => Err(node_unknown()),
            SessionAnswer::Failed(error) => Err(status_of(error)),
            SessionAnswer::Unexpected(other) => Err(unexpected_answer(&other)),
        }
    }

    /// Waits until this manager has applied the state that the node has seen: an older assignment must not be
    /// sent. Only a follower can lag.
    async fn catch_up(&self, has: AssignmentVersion) -> Result<(), Status> {
        let seen = |published: &PublishedState| contains_version(&published.state, has);
        let caught_up = self.context.store.wait_until(seen, Instant::now() + CATCH_UP_TIMEOUT).await;
        caught_up.then_some(()).ok_or_else(manager_behind)
    }

    /// Runs a session from hello to its end.
    async fn run(
        &self,
        node: NodeId,
        inbound: &mut Streaming<v1::WorkerFrame>,
        frames: &FrameSender,
    ) -> Result<(), Status> {
        // Boxed: a session lives for months, and its future has the size of everything it ever awaits inline.
        let (session, number, link) = Box::pin(self.begin(node, inbound, frames)).await?;
        SessionHandler { context: &self.context, session, node, session_number: number, frames }
            .run(link, inbound)
            .await
    }

    /// From hello to the first assignment.
    async fn begin(
        &self,
        node: NodeId,
        inbound: &mut Streaming<v1::WorkerFrame>,
        frames: &FrameSender,
    ) -> Result<(RegisteredSession, u64, AssignmentStream), Status> {
        let late = |_| Status::deadline_exceeded(format!("no hello within {HELLO_TIMEOUT:?}"));
        let hello = timeout(HELLO_TIMEOUT, inbound.next()).await.map_err(late)?;
        let Some(Incoming::Hello(hello)) = hello.transpose()?.and_then(|frame| frame.frame) else {
            return Err(Status::invalid_argument("the first frame of a session must be hello"));
        };
        let has = hello.version.map(AssignmentVersion::from).unwrap_or_default();
        let network_version = hello.network_version.map(AssignmentVersion::from).unwrap_or_default();
        // What is no id is no network that it has.
        let networks: Vec<NetworkId> = hello.networks.iter().filter_map(|id| id.parse().ok()).collect();
        // Checked before anything is written, and before the node receives the manager addresses.
        self.later_incarnation.check(&self.context.store, has.incarnation)?;
        if self.leader_watch.is_lost() {
            return Err(leader_unknown());
        }
        let number = tokio::select! {
            opened = self.open_session(node, description::parse(hello.description)?, has) => opened?,
            // Stop if the worker has left for another manager, where this session would supersede its new
            // one.
            () = frames.closed() => return Err(Status::cancelled("the worker closed the session")),
        };
        let session = self.registry.register(node, number, frames.clone(), Instant::now());
        let session = session.ok_or_else(session_superseded)?;
        let authority = match &hello.authorities[..] {
            [only] => only.parse().ok(),
            _ => None,
        };
        session.record_authority(authority);
        tracing::info!(%node, session = number, "session opened");
        let mut link = AssignmentStream::new(node);
        let settings = link.settings_update(&self.context.store.read().state)?;
        let welcome = v1::Welcome { session: number, settings, sent_at: self.context.clock.local_now().0 };
        send(frames, Outgoing::Welcome(welcome)).await?;
        self.catch_up(has.max(network_version)).await?;
        let first =
            link.first_frame(&self.context.store.read().state, has, self.context.clock.local_now())?;
        send_assignment(&self.context.withdrawals, frames, first).await?;
        link.network = self.context.networks.begin(network_version, &networks);
        let network =
            self.context.networks.next_update(&mut link.network, &self.context.store.read().state, &node);
        if let Some(network) = network {
            send(frames, Outgoing::Network(network)).await?;
        }
        Ok((session, number, link))
    }
}

#[tonic::async_trait]
impl sessions_server::Sessions for SessionServer {
    type EstablishStream =
        Map<ReceiverStream<BoxedFrame>, fn(BoxedFrame) -> Result<v1::ManagerFrame, Status>>;
    type AttachStream = ReceiverStream<Result<v1::StreamFrame, Status>>;
    type FetchSecretObjectsStream = DeliveryStream;

    async fn establish(
        &self,
        request: Request<Streaming<v1::WorkerFrame>>,
    ) -> Result<Response<Self::EstablishStream>, Status> {
        let node = calling_worker(&request)?;
        let mut inbound = request.into_inner();
        let (frames, outgoing) = mpsc::channel(MAX_QUEUED_FRAMES);
        // The worker may send hello only after it received the response headers, so the session runs in its
        // own task.
        let (server, leader, stop) = (self.clone(), self.leader_watch.clone(), self.shutdown.token());
        self.shutdown.spawn("session", async move {
            let ended = tokio::select! {
                ended = server.run(node, &mut inbound, &frames) => ended,
                () = leader.wait_lost() => Err(leader_unknown()),
                () = stop.cancelled() => Err(manager_stopping()),
            };
            if let Err(status) = ended {
                tracing::info!(%node, code = ?status.code(), "session ended: {}", status.message());
                // Best effort: the worker may have disconnected.
                let _ = frames.send_timeout(Box::new(Err(status)), CLOSE_TIMEOUT).await;
            }
        });
        let unbox: fn(BoxedFrame) -> _ = |frame| *frame;
        Ok(Response::new(ReceiverStream::new(outgoing).map(unbox)))
    }

    async fn attach(
        &self,
        request: Request<Streaming<v1::StreamFrame>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let node = calling_worker(&request)?;
        let mut inbound = request.into_inner();
        let (outbound, outgoing) = mpsc::channel(MAX_QUEUED_FRAMES);
        let streams = self.context.worker_streams.clone();
        self.shutdown.spawn_cancellable("attach", async move {
            let first = timeout(HELLO_TIMEOUT, inbound.next()).await;
            let refused = match first {
                Ok(Some(Ok(v1::StreamFrame { frame: Some(v1::stream_frame::Frame::StreamId(id)) }))) => {
                    let outbound = outbound.clone();
                    streams.attach(
                        &id,
                        node,
                        WorkerStream { permit: None, relay_permit: None, inbound, outbound },
                    )
                }
                _ => Err(Status::invalid_argument("the first frame of a stream must be its id")),
            };
            if let Err(status) = refused {
                // Best effort: the worker may have disconnected.
                let _ = outbound.send_timeout(Err(status), CLOSE_TIMEOUT).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }

    async fn fetch_secret_objects(
        &self,
        request: Request<v1::FetchSecretObjectsRequest>,
    ) -> Result<Response<Self::FetchSecretObjectsStream>, Status> {
        let node = calling_worker(&request)?;
        let SessionContext { store, worker_streams, .. } = &self.context;
        let published = store.read();
        let delivered =
            self.secret_delivery.deliver(&published.state, worker_streams, node, request.into_inner());
        delivered.await.map(Response::new)
    }

    async fn check_node(
        &self,
        request: Request<v1::CheckNodeRequest>,
    ) -> Result<Response<v1::CheckNodeResponse>, Status> {
        let v1::CheckNodeRequest { node_id, version } = request.into_inner();
        let node: NodeId =
            node_id.parse().map_err(|why| Status::invalid_argument(format!("nodeId: {why}")))?;
        let has = version.map(AssignmentVersion::from).unwrap_or_default();
        let published = self.context.store.read_linearizable().await.map_err(status_of)?;
        // A manager of the later incarnation may know the node. What a caller without a certificate has seen is not
        // recorded: it proves nothing about this manager.
        check_incarnation(incarnation_of(&published.state), has.incarnation)?;
        match published.state.node(&node) {
            Some(_) => Ok(Response::new(v1::CheckNodeResponse {})),
            None if was_removed(&published.state, &node, has) => Err(node_removed()),
            None => Err(node_unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of an asynchronous function's future.
    fn future_size<A, F>(_: impl FnOnce(A) -> F) -> usize {
        size_of::<F>()
    }

    /// A manager has one per worker, nearly all of them waiting.
    #[test]
    fn idle_session_future_is_small() {
        type Given = (&'static SessionServer, &'static mut Streaming<v1::WorkerFrame>, &'static FrameSender);
        let run = future_size(|(server, inbound, outbox): Given| {
            server.run(NodeId(warren_types::Id(1)), inbound, outbox)
        });
        assert!(run <= 1744, "{run} bytes");
        assert!(size_of::<AssignmentStream>() <= 192, "{} bytes", size_of::<AssignmentStream>());
    }
}
