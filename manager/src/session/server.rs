//! The gRPC service that workers dial, up to the moment where a session or stream is known to be whose.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_stream::StreamExt;
use tokio_stream::adapters::Map;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use warren_control::Shutdown;
use warren_core::session::{contains, was_removed};
use warren_core::{Answer, Command, Refusal};
use warren_proto::v1::manager_frame::Frame as Outgoing;
use warren_proto::v1::worker_frame::Frame as Incoming;
use warren_proto::v1::{self, sessions_server};
use warren_security::ContentKey;
use warren_types::{AssignmentVersion, MemberId, NodeDescription, NodeId};

use super::conversation::{Conversation, send, send_frame};
use super::fetch::Deliveries;
use super::leader::{LeaderWatch, is_lost};
use super::link::Link;
use super::registry::{Outbox, Parcel, Registered};
use super::streams::Attached;
use super::{Registry, Streams};
use crate::api::access::worker_of;
use crate::api::problem::{
    behind, no_leader, node_removed, node_unknown, status_of, stopping, superseded, unexpected,
};
use crate::api::{Api, description, life};
use crate::peers::Peers;
use crate::stamp::Stamp;
use crate::store::{ProposeError, Published, Store};

/// Frames that may wait for one worker before its session waits for it.
const OUTBOX: usize = 64;
/// How long a new stream may take to say hello.
const HELLO: Duration = Duration::from_secs(5);
/// How long this manager may take to apply what a node has seen already.
const CATCH_UP: Duration = Duration::from_secs(5);
/// How long the last word to a worker may wait for room.
const FAREWELL: Duration = Duration::from_secs(1);

/// Serves workers.
#[derive(Clone)]
pub struct SessionServer {
    pub(super) store: Store,
    pub(super) registry: Registry,
    pub(super) streams: Streams,
    pub(super) clock: Stamp,
    pub(super) content_key: Arc<ContentKey>,
    leader: LeaderWatch,
    peers: Peers,
    /// This manager.
    member: MemberId,
    shutdown: Shutdown,
}

impl SessionServer {
    /// Serves workers of the same store, registry and streams as the API has, as long as a leader is heard of.
    pub fn start(api: &Api) -> Self {
        let Api { store, registry, streams, clock, content_key, leader, peers, member, shutdown, .. } =
            api.clone();
        Self { store, registry, streams, clock, content_key, leader, peers, member, shutdown }
    }

    /// Makes the session a fact and answers its number. `has` is what the node has seen of the cluster.
    async fn open(
        &self,
        node: NodeId,
        description: NodeDescription,
        has: AssignmentVersion,
    ) -> Result<u64, Status> {
        let (manager, at) = (self.member, self.clock.now());
        match self.store.propose(Command::OpenSession { node, description, manager, at }).await {
            Err(ProposeError::Rejected(Refusal::NotFound { .. })) => {
                let published = self.store.read();
                Err(if was_removed(&published.state, &node, has) { node_removed() } else { node_unknown() })
            }
            Err(error) => Err(status_of(error)),
            Ok(Answer::Session { number }) => Ok(number),
            Ok(other) => Err(unexpected(&other)),
        }
    }

    /// Waits until this manager has applied what the node has seen: an older assignment must not be said. Only a
    /// manager that follows can be behind.
    async fn catch_up(&self, has: AssignmentVersion) -> Result<(), Status> {
        let seen = |published: &Published| contains(&published.state, has);
        let caught_up = self.store.until(seen, Instant::now() + CATCH_UP).await;
        caught_up.then_some(()).ok_or_else(behind)
    }

    /// From hello to the session's end.
    async fn run(
        &self,
        node: NodeId,
        inbound: &mut Streaming<v1::WorkerFrame>,
        outbox: &Outbox,
    ) -> Result<(), Status> {
        // In a box, as all that is short: a session is there for months, with room for whatever it ever waits for.
        let (session, number, link) = Box::pin(self.begin(node, inbound, outbox)).await?;
        Conversation { server: self, session, node, number, outbox }.run(link, inbound).await
    }

    /// From hello to the first word on what the node should have.
    async fn begin(
        &self,
        node: NodeId,
        inbound: &mut Streaming<v1::WorkerFrame>,
        outbox: &Outbox,
    ) -> Result<(Registered, u64, Link), Status> {
        let late = |_| Status::deadline_exceeded(format!("no hello within {HELLO:?}"));
        let hello = timeout(HELLO, inbound.next()).await.map_err(late)?;
        let Some(Incoming::Hello(hello)) = hello.transpose()?.and_then(|frame| frame.frame) else {
            return Err(Status::invalid_argument("the first frame of a session is hello"));
        };
        let has = hello.version.map(AssignmentVersion::from).unwrap_or_default();
        // Before anything is written, and before the node is told where the managers are.
        life::check(&self.store, &self.peers, has.incarnation)?;
        if is_lost(&self.store) {
            return Err(no_leader());
        }
        let number = tokio::select! {
            opened = self.open(node, description::parse(hello.description)?, has) => opened?,
            // It has gone to another manager meanwhile, where its session would be pushed out by this one.
            () = outbox.closed() => return Err(Status::cancelled("the worker closed the session")),
        };
        let session = self.registry.register(node, number, outbox.clone(), Instant::now());
        let session = session.ok_or_else(superseded)?;
        tracing::info!(%node, session = number, "session opened");
        let mut link = Link::new(node);
        let settings = link.settings(&self.store.read().state)?;
        let welcome = v1::Welcome { session: number, settings, at: self.clock.wall().0 };
        send(outbox, Outgoing::Welcome(welcome)).await?;
        self.catch_up(has).await?;
        let first = link.open(&self.store.read().state, has, self.clock.wall())?;
        send_frame(outbox, first).await?;
        Ok((session, number, link))
    }
}

#[tonic::async_trait]
impl sessions_server::Sessions for SessionServer {
    type EstablishStream = Map<ReceiverStream<Parcel>, fn(Parcel) -> Result<v1::ManagerFrame, Status>>;
    type AttachStream = ReceiverStream<Result<v1::StreamFrame, Status>>;
    type FetchStream = Deliveries;

    async fn establish(
        &self,
        request: Request<Streaming<v1::WorkerFrame>>,
    ) -> Result<Response<Self::EstablishStream>, Status> {
        let node = worker_of(&request)?;
        let mut inbound = request.into_inner();
        let (outbox, outgoing) = mpsc::channel(OUTBOX);
        // The worker's hello may come only after it saw our headers, so the rest happens behind the answer.
        let (server, leader, stop) = (self.clone(), self.leader.clone(), self.shutdown.token());
        self.shutdown.spawn("session", async move {
            let ended = tokio::select! {
                ended = server.run(node, &mut inbound, &outbox) => ended,
                () = leader.lost() => Err(no_leader()),
                () = stop.cancelled() => Err(stopping()),
            };
            if let Err(status) = ended {
                tracing::info!(%node, code = ?status.code(), "session ended: {}", status.message());
                // The worker may be gone already; then nobody reads why.
                let _ = outbox.send_timeout(Box::new(Err(status)), FAREWELL).await;
            }
        });
        let unpack: fn(Parcel) -> _ = |parcel| *parcel;
        Ok(Response::new(ReceiverStream::new(outgoing).map(unpack)))
    }

    async fn attach(
        &self,
        request: Request<Streaming<v1::StreamFrame>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let node = worker_of(&request)?;
        let mut inbound = request.into_inner();
        let (outbound, outgoing) = mpsc::channel(OUTBOX);
        let streams = self.streams.clone();
        crate::background::spawn(&self.shutdown, "attach", async move {
            let first = timeout(HELLO, inbound.next()).await;
            let refused = match first {
                Ok(Some(Ok(v1::StreamFrame { frame: Some(v1::stream_frame::Frame::StreamId(id)) }))) => {
                    let outbound = outbound.clone();
                    streams.attach(&id, node, Attached { place: None, relayed: None, inbound, outbound })
                }
                _ => Err(Status::invalid_argument("the first frame of a stream names it")),
            };
            if let Err(status) = refused {
                // The worker may be gone already; then nobody reads why.
                let _ = outbound.send_timeout(Err(status), FAREWELL).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }

    async fn fetch(&self, request: Request<v1::FetchRequest>) -> Result<Response<Self::FetchStream>, Status> {
        let node = worker_of(&request)?;
        self.deliver(node, request.into_inner()).map(Response::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of what an asynchronous function gives.
    fn size<A, F>(_: impl FnOnce(A) -> F) -> usize {
        size_of::<F>()
    }

    /// A manager has as many of them as workers, nearly all of which wait.
    #[test]
    fn a_session_that_waits_takes_little() {
        type Given = (&'static SessionServer, &'static mut Streaming<v1::WorkerFrame>, &'static Outbox);
        let run =
            size(|(server, inbound, outbox): Given| server.run(NodeId(warren_types::Id(1)), inbound, outbox));
        assert!(run <= 1536, "{run} bytes");
        assert!(size_of::<Link>() <= 128, "{} bytes", size_of::<Link>());
    }
}
