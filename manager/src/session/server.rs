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
use warren_types::{AssignmentVersion, MemberId, NodeDescription, NodeId};

use super::conversation::{Conversation, send, send_frame};
use super::fetch::Deliveries;
use super::leader::{LeaderWatch, is_lost};
use super::link::Link;
use super::registry::Outbox;
use super::streams::Attached;
use super::{Registry, Streams};
use crate::api::access::worker_of;
use crate::api::problem::{behind, no_leader, node_removed, node_unknown, status_of, stopping, superseded};
use crate::api::{Api, description};
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
    /// This manager.
    member: MemberId,
    shutdown: Shutdown,
}

impl SessionServer {
    /// Serves workers of the same store, registry and streams as the API has, as long as a leader is heard of.
    pub fn start(api: &Api) -> Self {
        let Api { store, registry, streams, clock, content_key, member, loops, shutdown, .. } = api.clone();
        let leader = LeaderWatch::start(store.clone(), &loops);
        Self { store, registry, streams, clock, content_key, leader, member, shutdown }
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
            Ok(other) => Err(Status::internal(format!("opening a session was answered with {other:?}"))),
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
        mut inbound: Streaming<v1::WorkerFrame>,
        outbox: &Outbox,
    ) -> Result<(), Status> {
        let late = |_| Status::deadline_exceeded(format!("no hello within {HELLO:?}"));
        let hello = timeout(HELLO, inbound.next()).await.map_err(late)?;
        let Some(Incoming::Hello(hello)) = hello.transpose()?.and_then(|frame| frame.frame) else {
            return Err(Status::invalid_argument("the first frame of a session is hello"));
        };
        let has = hello.version.map(AssignmentVersion::from).unwrap_or_default();
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
        Conversation { server: self, session, node, number, outbox }.run(link, inbound).await
    }
}

/// Whether `state`, in which the node is not, knows for sure that the node was removed.
///
/// It must have written that down, and the node must not have been there after it: a state that was restored from
/// between the removal and a later joining knows of the removal as well. So what the node has seen must be of this
/// life of the cluster, or of an earlier one, and lie before the removal. One that says nothing of what it has seen is
/// unknown, and not removed.
fn was_removed(state: &State, node: &NodeId, has: AssignmentVersion) -> bool {
    let incarnation = state.cluster().map_or(0, |cluster| cluster.incarnation);
    let seen_before = |removal: u64| (1..=incarnation).contains(&has.incarnation) && has.index < removal;
    state.removed_at(node).is_some_and(seen_before)
}

/// Whether `state` contains everything that a node with this version has seen.
fn contains(state: &State, has: AssignmentVersion) -> bool {
    let incarnation = state.cluster().map_or(0, |cluster| cluster.incarnation);
    AssignmentVersion { incarnation, index: state.applied().index } >= has
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
        let (server, leader, stop) = (self.clone(), self.leader.clone(), self.shutdown.token());
        self.shutdown.spawn("session", async move {
            let ended = tokio::select! {
                ended = server.run(node, inbound, &outbox) => ended,
                () = leader.lost() => Err(no_leader()),
                () = stop.cancelled() => Err(stopping()),
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

#[cfg(test)]
mod tests {
    use super::*;
    use warren_types::{ClusterId, Id, NodeRole, Timestamp};

    const AT: Timestamp = Timestamp(1);

    /// A node joined at index 2 and was removed at index 3; something else happened at 4.
    fn state() -> State {
        let mut state = State::new();
        let (id, ranges) = (NodeId(Id(7)), vec!["10.0.0.0/8".parse().unwrap()]);
        let register = |id, name: &str| Command::RegisterNode {
            id,
            name: name.parse().unwrap(),
            role: NodeRole::Worker,
            description: NodeDescription::default(),
            at: AT,
        };
        let commands = [
            Command::CreateCluster { id: ClusterId(Id(1)), ranges, level: warren_core::LEVEL, at: AT },
            register(id, "n7"),
            Command::RemoveNode { id, force: true, at: AT },
            register(NodeId(Id(8)), "n8"),
        ];
        for (index, command) in (1..).zip(&commands) {
            state.apply(1, index, command);
        }
        state
    }

    #[test]
    fn only_who_saw_nothing_after_its_removal_was_removed() {
        let (state, node) = (state(), NodeId(Id(7)));
        let life = state.cluster().unwrap().incarnation;
        let seen = |incarnation, index| AssignmentVersion { incarnation, index };
        for (node, has, wanted) in [
            (node, seen(life, 2), true),
            (node, seen(life, 3), false),
            (node, seen(life, 4), false),
            (node, seen(life + 1, 2), false),
            (node, seen(0, 2), false),
            (node, AssignmentVersion::default(), false),
            (NodeId(Id(9)), seen(life, 2), false),
        ] {
            assert_eq!(was_removed(&state, &node, has), wanted, "{node} {has:?}");
        }
    }

    #[test]
    fn a_state_contains_what_was_seen_up_to_its_index_and_of_earlier_lives() {
        let state = state();
        let life = state.cluster().unwrap().incarnation;
        for (incarnation, index, wanted) in
            [(0, 0, true), (life, 4, true), (life, 5, false), (life - 1, 99, true), (life + 1, 1, false)]
        {
            assert_eq!(contains(&state, AssignmentVersion { incarnation, index }), wanted);
        }
        assert!(!contains(&State::new(), AssignmentVersion { incarnation: 1, index: 1 }));
    }
}
