//! The gRPC service that workers dial, up to the moment where a session or stream is known to be whose.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use warren_control::Shutdown;
use warren_core::{Answer, Command, Refusal, State};
use warren_proto::v1::manager_frame::Frame as Outgoing;
use warren_proto::v1::worker_frame::Frame as Incoming;
use warren_proto::v1::{self, sessions_server};
use warren_security::ContentKey;
use warren_types::{AssignmentVersion, NodeDescription, NodeId};

use super::conversation::{Conversation, send, send_frame};
use super::fetch::Deliveries;
use super::link::Link;
use super::registry::Outbox;
use super::streams::Attached;
use super::{Registry, Streams};
use crate::api::access::worker_of;
use crate::api::problem::{node_removed, node_unknown, status_of};
use crate::api::{Api, description};
use crate::stamp::Stamp;
use crate::store::{ProposeError, Store};

/// Frames that may wait for one worker before its session waits for it.
const OUTBOX: usize = 64;
/// How long a new stream may take to say hello.
const HELLO: Duration = Duration::from_secs(5);
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
    shutdown: Shutdown,
}

impl SessionServer {
    /// Serves workers of the same store, registry and streams as the API has.
    pub fn of(api: &Api) -> Self {
        let Api { store, registry, streams, clock, content_key, shutdown, .. } = api.clone();
        Self { store, registry, streams, clock, content_key, shutdown }
    }

    /// Makes the session a fact and answers its number. `has` is what the node has seen of the cluster.
    async fn open(
        &self,
        node: NodeId,
        description: NodeDescription,
        has: AssignmentVersion,
    ) -> Result<u64, Status> {
        let command = Command::OpenSession { node, description, at: self.clock.now() };
        match self.store.propose(command).await {
            Err(ProposeError::Rejected(Refusal::NotFound { .. })) => {
                let published = self.store.read();
                Err(if was_removed(&published.state, has) { node_removed() } else { node_unknown() })
            }
            Err(error) => Err(status_of(error)),
            Ok(Answer::Session { number }) => Ok(number),
            Ok(other) => Err(Status::internal(format!("opening a session was answered with {other:?}"))),
        }
    }

    /// From hello to the session's end.
    async fn run(
        &self,
        node: NodeId,
        mut inbound: Streaming<v1::WorkerFrame>,
        outbox: &Outbox,
    ) -> Result<(), Status> {
        let late = |_| Status::deadline_exceeded(format!("no hello within {HELLO:?}"));
        let hello = timeout(HELLO, inbound.next()).await.map_err(late)?;
        let Some(Incoming::Hello(hello)) = hello.transpose()?.and_then(|frame| frame.frame) else {
            return Err(Status::invalid_argument("the first frame of a session is hello"));
        };
        let has = hello.version.map(AssignmentVersion::from).unwrap_or_default();
        let number = self.open(node, description::parse(hello.description)?, has).await?;
        let superseded = || Status::aborted("the node opened a newer session");
        let session = self.registry.register(node, number, outbox.clone(), Instant::now());
        let session = session.ok_or_else(superseded)?;
        tracing::info!(%node, session = number, "session opened");
        let mut link = Link::new(node);
        let (welcome, first) = {
            let published = self.store.read();
            let (settings, now) = (link.settings(&published.state)?, self.clock.wall());
            let welcome = v1::Welcome { session: number, settings, at: now.0 };
            (welcome, link.open(&published.state, has, now)?)
        };
        send(outbox, Outgoing::Welcome(welcome)).await?;
        send_frame(outbox, first).await?;
        Conversation { server: self, session, node, number, outbox }.run(link, inbound).await
    }
}

/// Whether a node that is not in `state`, which has applied an entry that was just committed, must have been removed.
///
/// It must when the state contains all that the node has seen, which its own registration is a part of: the same life
/// of the cluster, at or after the index of the node's assignment. A state that was restored from before the node
/// joined is behind it, or of another life; then the node is unknown, and not removed. So is one that says nothing of
/// what it has seen.
fn was_removed(state: &State, has: AssignmentVersion) -> bool {
    let incarnation = state.cluster().map(|cluster| cluster.incarnation);
    incarnation == Some(has.incarnation) && has.index <= state.applied().index
}

#[tonic::async_trait]
impl sessions_server::Sessions for SessionServer {
    type EstablishStream = ReceiverStream<Result<v1::ManagerFrame, Status>>;
    type AttachStream = ReceiverStream<Result<v1::StreamFrame, Status>>;
    type FetchStream = Deliveries;

    async fn establish(
        &self,
        request: Request<Streaming<v1::WorkerFrame>>,
    ) -> Result<Response<Self::EstablishStream>, Status> {
        let node = worker_of(&request)?;
        let inbound = request.into_inner();
        let (outbox, outgoing) = mpsc::channel(OUTBOX);
        // The worker's hello may come only after it saw our headers, so the rest happens behind the answer.
        let (server, stop) = (self.clone(), self.shutdown.token());
        self.shutdown.spawn("session", async move {
            let ended = tokio::select! {
                ended = server.run(node, inbound, &outbox) => ended,
                () = stop.cancelled() => Err(Status::unavailable("this manager stops")),
            };
            if let Err(status) = ended {
                tracing::info!(%node, code = ?status.code(), "session ended: {}", status.message());
                // The worker may be gone already; then nobody reads why.
                let _ = outbox.send_timeout(Err(status), FAREWELL).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(outgoing)))
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
                    streams.attach(&id, node, Attached { place: None, inbound, outbound: outbound.clone() })
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
