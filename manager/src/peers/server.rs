//! The gRPC service that other managers dial. The table of roles lets in managers only ([`crate::api::access`]); here
//! each call is held to the members of the group as well.

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
use warren_security::Peer;
use warren_types::{ManagerId, MemberId};

use super::directory::Visit;
use super::receive::{Announced, Receiver};
use super::roster::{Caller, Refused, manager_of};
use super::sessions::{ProgressStream, RelayStream, SessionCalls};
use super::{End, Peers, codec, forward};
use crate::controllers::Waits;
use crate::durability;
use crate::raft::codec as commands;
use crate::session::Registry;
use crate::stamp::Stamp;
use crate::store::{Published, Store, TransferError};

/// How long a new stream may take to say what it is.
const HELLO: Duration = Duration::from_secs(5);
/// A manager that has heard of no leader for so long does not say who was removed: it may be the one that was.
const SURE: Duration = Duration::from_secs(2);

/// What the server is made from.
pub struct Parts {
    /// The ways to the others.
    pub peers: Peers,
    /// What they talk about.
    pub store: Store,
    /// Sessions of this manager.
    pub registry: Registry,
    /// Stamps forwarded commands.
    pub clock: Stamp,
    /// What the next change of the members waits for, if this manager leads.
    pub waits: Waits,
    /// Answers what concerns sessions.
    pub sessions: Arc<dyn SessionCalls>,
    /// Ends what goes on behind answered requests.
    pub shutdown: Shutdown,
}

/// Serves managers. Cheap to clone.
#[derive(Clone)]
pub struct PeerServer {
    parts: Arc<Parts>,
    snapshots: Receiver,
}

impl PeerServer {
    /// Serves from these.
    pub fn new(parts: Parts) -> Self {
        let Parts { peers, store, shutdown, .. } = &parts;
        let snapshots = Receiver::new(peers.clone(), store.clone(), shutdown.clone());
        Self { parts: Arc::new(parts), snapshots }
    }

    /// The manager that calls.
    fn manager<T>(&self, request: &Request<T>) -> Result<ManagerId, Status> {
        match request.extensions().get::<Peer>() {
            Some(Peer::Certificate { identity, .. }) => {
                Ok(manager_of(identity, self.parts.peers.shared.dialer.cluster())?)
            }
            _ => Err(Status::permission_denied("only managers may call this")),
        }
    }

    /// The member that calls.
    fn member<T>(&self, request: &Request<T>) -> Result<MemberId, Status> {
        let id = self.manager(request)?;
        self.parts.peers.shared.directory.caller(id).map_err(|refused| self.refusal(refused))
    }

    /// What the other one hears. That it was removed is said only by who is sure: one that leads, or hears of a leader.
    /// If it is in a later life of the cluster, this manager's own is over.
    fn refusal(&self, refused: Refused) -> Status {
        let Parts { peers, store, .. } = &*self.parts;
        if let Refused::NewerLife { own, found: life, .. } = refused {
            peers.shared.ends(End::Overtaken { own, life });
        }
        let sure = store.silence() < SURE && store.read().role.leader_id.is_some();
        if matches!(refused, Refused::Removed { .. }) && !sure {
            let message = format!("{refused}, as far as is known here; but no leader is heard of");
            return Problem::new(Code::Unavailable, "NO_LEADER", message).into();
        }
        refused.into()
    }

    /// Whether this manager leads, or hears a leader other than `from`.
    fn is_led(&self, from: MemberId) -> bool {
        let store = &self.parts.store;
        let role = store.read().role;
        role.leader || role.leader_id.is_some_and(|leader| leader != from) && store.silence() < SURE
    }

    /// A member that said hello may go on.
    fn goes_on(&self, visit: &Visit) -> Result<(), Status> {
        let current = visit.is_current(self.is_led(visit.member()));
        let current = current.map_err(|refused| self.refusal(refused))?;
        current.then_some(()).ok_or_else(|| Status::aborted("the member opened a newer conversation"))
    }

    /// Hears a member from its hello to its end.
    async fn hear(&self, id: ManagerId, inbound: &mut Streaming<v1::RaftFrame>) -> Result<(), Status> {
        let Parts { peers, store, .. } = &*self.parts;
        let over = peers.shared.over.clone();
        let late = |_| Status::deadline_exceeded(format!("no hello within {HELLO:?}"));
        let first = timeout(HELLO, inbound.message()).await.map_err(late)??;
        let Some(v1::PeerHello { member, address, incarnation: life }) = first.and_then(|frame| frame.hello)
        else {
            return Err(Status::invalid_argument("the first frame is a hello"));
        };
        let address =
            address.parse().map_err(|error| Status::invalid_argument(format!("address: {error}")))?;
        let directory = &peers.shared.directory;
        let mut changes = directory.changes();
        let visit = directory.visit(Caller { member, id, life }, address, self.is_led(member));
        let visit = visit.map_err(|refused| self.refusal(refused))?;
        loop {
            let frame = tokio::select! {
                biased;
                () = over.cancelled() => return Err(stopping()),
                _ = changes.changed() => {
                    self.goes_on(&visit)?;
                    continue;
                }
                frame = inbound.message() => frame?,
            };
            let Some(frame) = frame else { return Ok(()) };
            // Meanwhile a leader may be heard, from whom to learn whether this is a member.
            self.goes_on(&visit)?;
            for message in frame.messages {
                store.deliver(self.checked(message, &visit)?);
            }
        }
    }

    fn checked(&self, message: v1::RaftMessage, visit: &Visit) -> Result<Message, Status> {
        let message = codec::from_wire(message);
        let message = message.map_err(|error| Status::invalid_argument(error.to_string()))?;
        self.directed(&message)?;
        if message.from != visit.member() {
            let (own, other) = (visit.member(), message.from);
            return Err(Status::permission_denied(format!("member {own} speaks in the name of {other}")));
        }
        Ok(message)
    }

    fn directed(&self, message: &Message) -> Result<(), Status> {
        let own = self.parts.peers.own();
        if message.to == own { Ok(()) } else { Err(Refused::Misdirected { own, wanted: message.to }.into()) }
    }

    /// What a member announces to send.
    fn announced(&self, id: ManagerId, header: v1::InstallHeader) -> Result<Announced, Status> {
        let v1::InstallHeader { message, size, incarnation: life, digest } = header;
        let message = message.ok_or_else(|| Status::invalid_argument("header.message is missing"))?;
        let message = codec::from_wire(message);
        let message = message.map_err(|error| Status::invalid_argument(error.to_string()))?;
        self.directed(&message)?;
        let roster = self.parts.peers.shared.directory.roster();
        let caller = Caller { member: message.from, id, life };
        let admitted = roster.admit(caller, self.is_led(message.from));
        admitted.map_err(|refused| self.refusal(refused))?;
        match message.snapshot.clone() {
            Some(meta) if message.kind == MessageKind::Snapshot => {
                Ok(Announced { life, message, meta, size, digest })
            }
            _ => Err(Status::invalid_argument("header.message announces no snapshot")),
        }
    }
}

/// How this manager is; its view of the others if it leads.
pub fn own_status(store: &Store, registry: &Registry, waits: &Waits, peers: &Peers) -> v1::StatusResponse {
    let (published, why) = (store.read(), waits.read());
    let Published { state, index, role, held, durability, .. } = &*published;
    let peer = |peer: &warren_consensus::Peer| {
        let warren_consensus::Peer { id, matched, active, silent: _ } = *peer;
        v1::PeerStatus { member: id, matched, active }
    };
    v1::StatusResponse {
        member: store.own(),
        term: role.term,
        leader: role.leader_id.unwrap_or(0),
        applied: *index,
        digest: state.digest().value,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        peers: store.peers().iter().map(peer).collect(),
        held: held.as_ref().map_or_else(String::new, |held| held.why.to_string()),
        sessions: u32::try_from(registry.count()).unwrap_or(u32::MAX),
        waits: why.map_or_else(String::new, |why| why.to_string()),
        waits_for: why.and_then(|why| why.member()).unwrap_or(0),
        later_life: peers.later_life(),
        durability: durability::problem(*durability).unwrap_or_default(),
        digests: store
            .digests()
            .iter()
            .map(|it| v1::StateDigest { index: it.index, value: it.value })
            .collect(),
    }
}

pub(super) fn stopping() -> Status {
    Problem::new(Code::Unavailable, "STOPPING", "this manager is stopping").into()
}

/// Why this manager did not hand over, for whoever asked it to.
pub fn transfer_problem(error: TransferError) -> Status {
    let (code, reason) = match &error {
        TransferError::NotLeader => (Code::Unavailable, "NOT_LEADER"),
        TransferError::NotVoter(_) => (Code::FailedPrecondition, "NOT_A_VOTER"),
        TransferError::Alone => (Code::FailedPrecondition, "ALONE"),
        TransferError::Late(_) => (Code::DeadlineExceeded, "NOT_TAKEN_OVER"),
        TransferError::Stopping => (Code::Unavailable, "STOPPING"),
    };
    Problem::new(code, reason, error).into()
}

#[tonic::async_trait]
impl peers_server::Peers for PeerServer {
    type InstallStream = ReceiverStream<Result<v1::InstallAnswer, Status>>;
    type ProgressStream = ProgressStream;
    type RelayStream = RelayStream;

    async fn converse(
        &self,
        request: Request<Streaming<v1::RaftFrame>>,
    ) -> Result<Response<v1::ConverseDone>, Status> {
        let id = self.manager(&request)?;
        self.hear(id, &mut request.into_inner()).await?;
        Ok(Response::new(v1::ConverseDone {}))
    }

    async fn install(
        &self,
        request: Request<Streaming<v1::InstallFrame>>,
    ) -> Result<Response<Self::InstallStream>, Status> {
        let id = self.manager(&request)?;
        let mut inbound = request.into_inner();
        let late = |_| Status::deadline_exceeded(format!("no header within {HELLO:?}"));
        let first = timeout(HELLO, inbound.message()).await.map_err(late)??;
        let header = first.and_then(|frame| frame.header);
        let header = header.ok_or_else(|| Status::invalid_argument("the first frame has the header"))?;
        let announced = self.announced(id, header)?;
        let (answers, outgoing) = mpsc::channel(2);
        let snapshots = self.snapshots.clone();
        self.parts.shutdown.spawn("snapshot-receive", async move {
            if let Err(status) = snapshots.take(announced, inbound, &answers).await {
                tracing::info!(%id, error = status.message(), "a snapshot did not arrive");
                // The other end may be gone.
                let _ = answers.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }

    async fn forward(
        &self,
        request: Request<v1::ForwardRequest>,
    ) -> Result<Response<v1::ForwardResponse>, Status> {
        let began = Instant::now();
        self.member(&request)?;
        let v1::ForwardRequest { commands, within_ms } = request.into_inner();
        let count = commands.len();
        let decoded: Result<Vec<_>, _> = commands.iter().map(|bytes| commands::decode(bytes)).collect();
        // Of a newer version, perhaps: its writes wait until a manager leads that knows them.
        let decoded = decoded.map_err(|error| Problem::new(Code::InvalidArgument, "COMMAND", error))?;
        let within = Duration::from_millis(within_ms).saturating_sub(began.elapsed());
        if within.is_zero() {
            let results = (0..count).map(|_| forward::late()).collect();
            return Ok(Response::new(v1::ForwardResponse { results }));
        }
        let Parts { store, clock, .. } = &*self.parts;
        let places = store.propose_for(decoded, clock.now(), within).await;
        let results = places.into_iter().map(forward::to_wire).collect();
        Ok(Response::new(v1::ForwardResponse { results }))
    }

    async fn contacts(
        &self,
        request: Request<v1::ContactsRequest>,
    ) -> Result<Response<v1::ContactsResponse>, Status> {
        self.member(&request)?;
        let Parts { store, registry, .. } = &*self.parts;
        let (asked, term) = (request.into_inner().term, store.read().role.term);
        if asked < term {
            let message = format!("the leader of term {asked} asks, and it is term {term} by now");
            return Err(Problem::new(Code::FailedPrecondition, "STALE_LEADER", message).into());
        }
        let now = Instant::now();
        let contact = |contact: crate::session::registry::Contact| v1::Contact {
            node_id: contact.node.to_string(),
            session: contact.session,
            age_ms: u64::try_from(now.saturating_duration_since(contact.at).as_millis()).unwrap_or(u64::MAX),
        };
        let contacts = registry.contacts().into_iter().map(contact).collect();
        Ok(Response::new(v1::ContactsResponse { contacts }))
    }

    async fn status(
        &self,
        request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        self.member(&request)?;
        let Parts { store, registry, waits, peers, .. } = &*self.parts;
        Ok(Response::new(own_status(store, registry, waits, peers)))
    }

    async fn transfer_leadership(
        &self,
        request: Request<v1::TransferRequest>,
    ) -> Result<Response<v1::TransferResponse>, Status> {
        let from = self.member(&request)?;
        let to = Some(request.into_inner().to).filter(|to| *to != 0);
        tracing::info!(from, to, "another manager asks this one to hand over");
        self.parts.store.transfer_leadership(to).await.map_err(transfer_problem)?;
        Ok(Response::new(v1::TransferResponse {}))
    }

    async fn heard(&self, request: Request<v1::HeardRequest>) -> Result<Response<v1::HeardResponse>, Status> {
        let from = self.member(&request)?;
        self.parts.sessions.heard(from, request.into_inner()).await.map(Response::new)
    }

    async fn progress(
        &self,
        request: Request<v1::ProgressRequest>,
    ) -> Result<Response<Self::ProgressStream>, Status> {
        let from = self.member(&request)?;
        self.parts.sessions.progress(from, request.into_inner()).await.map(Response::new)
    }

    async fn relay(
        &self,
        request: Request<Streaming<v1::RelayFrame>>,
    ) -> Result<Response<Self::RelayStream>, Status> {
        let from = self.member(&request)?;
        self.parts.sessions.relay(from, request.into_inner()).await.map(Response::new)
    }
}
