//! Managers of one cluster in one process, with real connections and real stores; the test replaces the
//! drivers.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::net::TcpSocket;
use tokio::runtime::Runtime;
use tonic::transport::Server;
use warren_control::SystemClock;
use warren_core::{ApplyOutcome, FEATURE_LEVEL, State};
use warren_proto::v1;
use warren_proto::v1::peers_server::PeersServer;
use warren_security::{
    CertificateAuthority, Credentials as Shown, HandshakeLimits, Identity, PrivateKey, ReloadableCertificate,
    Role as CertificateRole, Trust, serve_tls, server_config,
};
use warren_store::timestamp::TimestampSource;
use warren_store::{DriverInbox, PublishedState, RaftInput, ReplicaRole, StatePublisher};
use warren_types::{ClusterId, Id, ManagerId, NodeRole, Timestamp, TokenHash, TokenId};

use super::super::local_calls::{AuditStream, LocalCalls, ProgressStream, RelayStream};
use super::super::server::{PeerServer, PeerServerParts};
use super::super::*;

/// Timeout of everything that a test waits for.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(30);
const AT: Timestamp = Timestamp(1);
const HASH: TokenHash = TokenHash([7; 32]);

/// The keys of the managers, by member id; each is made when it is first asked for.
static KEYS: Mutex<BTreeMap<MemberId, PrivateKey>> = Mutex::new(BTreeMap::new());

fn key(member: MemberId) -> PrivateKey {
    KEYS.lock().unwrap().entry(member).or_insert_with(|| PrivateKey::generate().unwrap()).clone()
}

pub fn id(member: MemberId) -> ManagerId {
    ManagerId(key(member).node_id().unwrap().0)
}

/// Resolves when the condition holds.
pub async fn until(what: &str, is_so: impl Fn() -> bool) {
    let is_so = async {
        while !is_so() {
            // Between two checks.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, is_so).await.unwrap_or_else(|_| panic!("waited too long for {what}"));
}

/// A received snapshot: its message and its bytes.
pub type Received = (Message, Bytes);

/// The snapshots of a manager, in memory.
#[derive(Clone)]
pub struct MemorySnapshots {
    pub own: Arc<Mutex<BTreeMap<u64, Bytes>>>,
    pub received: Arc<Mutex<Vec<Received>>>,
    /// While this is true, nothing becomes durable.
    pub is_held: watch::Sender<bool>,
    slow: watch::Receiver<bool>,
}

impl MemorySnapshots {
    fn new() -> Self {
        let (hold, slow) = watch::channel(false);
        Self { own: Arc::default(), received: Arc::default(), is_held: hold, slow }
    }
}

impl SnapshotAccess for MemorySnapshots {
    fn read(&self, meta: SnapshotMeta) -> BoxedFuture<Result<Bytes, String>> {
        let found = self.own.lock().unwrap().get(&meta.index).cloned();
        Box::pin(std::future::ready(found.ok_or_else(|| "there is none".into())))
    }

    fn receive(&self, message: Message, bytes: Bytes) -> BoxedFuture<Result<(), String>> {
        let mut files = self.clone();
        Box::pin(async move {
            files.received.lock().unwrap().push((message, bytes));
            // While a test blocks it.
            let _ = files.slow.wait_for(|slow| !slow).await;
            Ok(())
        })
    }
}

/// The member, without sessions.
struct NoSessions(MemberId);

#[tonic::async_trait]
impl LocalCalls for NoSessions {
    fn contacts(&self) -> Vec<v1::NodeContact> {
        Vec::new()
    }

    fn status(&self) -> v1::StatusResponse {
        v1::StatusResponse { member_id: self.0, ..Default::default() }
    }

    async fn list_node_reports(
        &self,
        _: MemberId,
        _: v1::ListNodeReportsRequest,
    ) -> Result<v1::ListNodeReportsResponse, tonic::Status> {
        Ok(v1::ListNodeReportsResponse::default())
    }

    async fn read_audit(&self, _: MemberId, _: v1::AuditRequest) -> Result<AuditStream, tonic::Status> {
        Err(tonic::Status::unimplemented("there is no audit log"))
    }

    async fn watch_progress(
        &self,
        _: MemberId,
        _: v1::WatchProgressRequest,
    ) -> Result<ProgressStream, tonic::Status> {
        Err(tonic::Status::not_found("there are no sessions"))
    }

    async fn await_network(
        &self,
        _: MemberId,
        _: v1::AwaitNetworkRequest,
    ) -> Result<v1::AwaitNetworkResponse, tonic::Status> {
        Ok(v1::AwaitNetworkResponse::default())
    }

    async fn relay_stream(
        &self,
        _: MemberId,
        _: tonic::Streaming<v1::RelayFrame>,
    ) -> Result<RelayStream, tonic::Status> {
        // A log that is followed, and in which nothing is written.
        Ok(Box::pin(tokio_stream::pending()))
    }
}

pub struct PeersFixture {
    pub authority: CertificateAuthority,
    /// Advertised addresses of the managers.
    pub addresses: BTreeMap<MemberId, SocketAddr>,
}

/// One running manager. Everything except the handles of the test is in its own runtime, so that it can be
/// killed like a process.
pub struct TestManager {
    pub peers: Peers,
    pub publisher: StatePublisher,
    pub inbox: DriverInbox,
    pub outgoing: PeerTransport,
    pub files: MemorySnapshots,
    pub listens: SocketAddr,
    /// `None` after it was killed.
    runtime: Option<Runtime>,
}

impl PeersFixture {
    pub fn new() -> Self {
        let authority = CertificateAuthority::create("c1", SystemTime::now()).unwrap();
        Self { authority, addresses: BTreeMap::new() }
    }

    /// The managers 1 to `count`, connected to each other.
    pub async fn of(count: MemberId) -> (Self, Vec<TestManager>) {
        let mut world = Self::new();
        let mut listeners = Vec::new();
        for member in 1..=count {
            listeners.push(world.listen(member));
        }
        let nodes = (1..).zip(listeners);
        let nodes: Vec<_> =
            nodes.map(|(member, listener)| world.start(member, listener, world.state())).collect();
        all_connected(&nodes).await;
        (world, nodes)
    }

    /// An address for a manager, which the others receive.
    pub fn listen(&mut self, member: MemberId) -> TcpListener {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        self.addresses.insert(member, listener.local_addr().unwrap());
        listener
    }

    pub fn credentials(&self, member: MemberId) -> Shown {
        let identity = Identity::new("c1", CertificateRole::Manager, id(member).to_string()).unwrap();
        self.authority.issue_for(&identity, key(member), SystemTime::now()).unwrap()
    }

    pub fn dialer(&self, member: MemberId) -> PeerDialer {
        let certificate = ReloadableCertificate::new(&self.credentials(member));
        PeerDialer::new(Trust::new(&self.authority.roots()).unwrap(), certificate, "c1").unwrap()
    }

    /// A state with the managers that have an address; 1 is the first.
    pub fn state(&self) -> State {
        let mut commands = vec![
            Command::CreateCluster {
                id: ClusterId(Id(1)),
                ranges: vec!["10.0.0.0/8".parse().unwrap()],
                feature_level: FEATURE_LEVEL,
                at: AT,
            },
            Command::CreateToken {
                id: TokenId(Id(5)),
                role: NodeRole::Manager,
                hash: HASH,
                expires_at: None,
                max_uses: None,
                labels: Default::default(),
                at: AT,
            },
        ];
        for (member, address) in &self.addresses {
            let (id, name) = (id(*member), format!("m{member}").parse().unwrap());
            let (address, level, at) = (address.to_string().parse().unwrap(), FEATURE_LEVEL, AT);
            commands.push(match member {
                1 => Command::RegisterMember { member: 1, id, name, address, level, at },
                _ => Command::JoinManager { hash: HASH, id, name, address, level, at },
            });
        }
        let mut state = State::new();
        for command in &commands {
            apply(&mut state, command);
        }
        state
    }

    pub fn start(&self, member: MemberId, listener: TcpListener, state: State) -> TestManager {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let inside = runtime.enter();
        let listens = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let certificate = ReloadableCertificate::new(&self.credentials(member));
        let roots = self.authority.roots();
        let address = self.addresses[&member].to_string().parse().unwrap();
        let credentials = PeerCredentials {
            cluster: "c1",
            id: id(member),
            trust: Trust::new(&roots).unwrap(),
            certificate: certificate.clone(),
        };
        let (peers, outgoing, unsent) = Peers::new(member, address, credentials).unwrap();
        let leader: Arc<dyn LeaderClient> = Arc::new(peers.clone());
        let (store, publisher, inbox) =
            Store::of_group(PublishedState::initial(state), member, leader, 4096, 1024);
        let (shutdown, files) = (Shutdown::new(), MemorySnapshots::new());
        peers.start(store.clone(), Arc::new(files.clone()), unsent, &shutdown);
        let server = PeerServer::new(PeerServerParts {
            peers: peers.clone(),
            store: store.clone(),
            clock: TimestampSource::new(Arc::new(SystemClock::new()), store),
            local_calls: Arc::new(NoSessions(member)),
            shutdown: shutdown.clone(),
        });
        let config = server_config(&roots, certificate).unwrap();
        // A loaded machine may pause a client in the middle of its handshake.
        let limits = HandshakeLimits {
            hello_timeout: TEST_TIMEOUT,
            handshake_timeout: TEST_TIMEOUT,
            ..Default::default()
        };
        let incoming = serve_tls(listener, config, limits);
        let service = PeersServer::new(server).max_decoding_message_size(MAX_PEER_MESSAGE);
        let serving = Server::builder()
            .max_concurrent_streams(Some(MAX_STREAMS))
            .initial_stream_window_size(Some(256 << 10))
            .add_service(service)
            .serve_with_incoming(incoming);
        tokio::spawn(serving);
        drop(inside);
        TestManager { peers, publisher, inbox, outgoing, files, listens, runtime: Some(runtime) }
    }
}

/// Applies the next command.
pub fn apply(state: &mut State, command: &Command) {
    let index = state.applied().index + 1;
    let outcome = state.apply(1, index, command);
    assert!(!matches!(outcome, ApplyOutcome::Rejected(_)), "{command:?}: {outcome:?}");
}

pub async fn all_connected(nodes: &[TestManager]) {
    for node in nodes {
        until("all connections", || {
            let connected = |member: &MemberId| node.peers.client(*member).is_some();
            node.peers.others().iter().filter(|member| connected(member)).count() == nodes.len() - 1
        })
        .await;
    }
}

impl TestManager {
    /// Simulates a killed process: every connection breaks. Resolves when nobody listens on its port. The socket keeps
    /// the port from all others but a listener on it, and refuses connections.
    pub async fn kill(mut self) -> TcpSocket {
        self.stop();
        let held = Mutex::new(None);
        let hold = || {
            let socket = TcpSocket::new_v4().unwrap();
            // As of the listener: two such sockets may share the port if at most one listens.
            socket.set_reuseaddr(true).unwrap();
            let is_free = socket.bind(self.listens).is_ok();
            *held.lock().unwrap() = is_free.then_some(socket);
            is_free
        };
        until("the port to be free", hold).await;
        held.into_inner().unwrap().expect("it is free")
    }

    fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// Sets the leader and the members that this manager knows.
    pub fn publish(&self, leader: MemberId, state: State) {
        let role = ReplicaRole {
            is_leader: leader == self.peers.own_id(),
            leader_id: Some(leader),
            term: 1,
            can_plan: leader == self.peers.own_id(),
        };
        let index = state.applied().index;
        let changes = Arc::new([StateChange::Member(0)]);
        let batch = warren_store::ChangeBatch { index, changes };
        // A leader that is the only voter needs no messages of others.
        let members = Arc::new(ConfState::of_voters([leader]));
        self.publisher.record_leader_seen();
        self.publisher
            .publish(PublishedState { role, members, ..PublishedState::initial(state) }, vec![batch]);
    }

    pub async fn next(&mut self) -> RaftInput {
        let heard = tokio::time::timeout(TEST_TIMEOUT, self.inbox.inputs.recv()).await;
        heard.expect("something is heard").expect("the store is there")
    }

    /// The next message; unreachable reports are skipped.
    pub async fn message(&mut self) -> Message {
        loop {
            match self.next().await {
                RaftInput::Message(message) => {
                    self.inbox.release(&message);
                    return message;
                }
                RaftInput::PeerUnreachable(_) => {}
                RaftInput::SnapshotReceived { .. } | RaftInput::SnapshotSent { .. } => {
                    panic!("no snapshot was sent")
                }
            }
        }
    }
}

impl Drop for TestManager {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A message with this number of entry bytes; none for a heartbeat.
pub fn message(from: MemberId, to: MemberId, index: u64, data: usize) -> Message {
    use warren_consensus::{EntryKind, RaftEntry};
    let entry =
        RaftEntry { index: index + 1, term: 1, kind: EntryKind::Command, data: Bytes::from(vec![7; data]) };
    Message {
        kind: if data == 0 { MessageKind::Heartbeat } else { MessageKind::Append },
        to,
        from,
        term: 1,
        log_term: 1,
        index,
        entries: if data == 0 { Vec::new() } else { vec![entry] },
        commit: 0,
        commit_term: 0,
        snapshot: None,
        request_snapshot: 0,
        reject: false,
        reject_hint: 0,
        context: Bytes::new(),
        priority: 0,
        acknowledged: Vec::new(),
    }
}

/// Announces a snapshot.
pub fn snapshot(from: MemberId, to: MemberId, index: u64) -> Message {
    let conf_state = ConfState::of_voters([from, to]);
    let meta = SnapshotMeta { index, term: 1, conf_state };
    Message { kind: MessageKind::Snapshot, snapshot: Some(meta), ..message(from, to, 0, 0) }
}
