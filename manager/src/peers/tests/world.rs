//! Some managers of one cluster in one process, with real connections and real stores, and a test in place of the
//! drivers.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::runtime::Runtime;
use tonic::transport::Server;
use warren_control::SystemClock;
use warren_core::{LEVEL, Outcome};
use warren_proto::v1;
use warren_proto::v1::peers_server::PeersServer;
use warren_security::{
    CertificateAuthority, Credentials as Shown, Identity, LiveCertificate, Role as CertificateRole,
    StrangerLimits, serve_tls, server_config,
};
use warren_types::{ClusterId, Id, ManagerId, NodeRole, Timestamp, TokenHash, TokenId};

use super::super::server::{Parts, PeerServer};
use super::super::sessions::{ProgressStream, RelayStream, SessionCalls};
use super::super::*;
use crate::controllers::Waits;
use crate::session::Registry;
use crate::stamp::Stamp;
use crate::store::{Heard, Inbox, Published, Publisher, Role};

/// For anything that a test waits for.
pub const PATIENCE: Duration = Duration::from_secs(30);
const AT: Timestamp = Timestamp(1);
const HASH: TokenHash = TokenHash([7; 32]);

pub fn id(member: MemberId) -> ManagerId {
    ManagerId(Id(100 + u128::from(member)))
}

/// Resolves when it is so.
pub async fn until(what: &str, is_so: impl Fn() -> bool) {
    let is_so = async {
        while !is_so() {
            // Between two looks.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, is_so).await.unwrap_or_else(|_| panic!("waited too long for {what}"));
}

/// A snapshot that arrived: the message that announced it, and its bytes.
pub type Received = (Message, Bytes);

/// The snapshots of a manager, in memory.
#[derive(Clone)]
pub struct Files {
    pub own: Arc<Mutex<BTreeMap<u64, Bytes>>>,
    pub received: Arc<Mutex<Vec<Received>>>,
    /// As long as this is true, nothing becomes durable.
    pub hold: watch::Sender<bool>,
    slow: watch::Receiver<bool>,
}

impl Files {
    fn new() -> Self {
        let (hold, slow) = watch::channel(false);
        Self { own: Arc::default(), received: Arc::default(), hold, slow }
    }
}

impl Snapshots for Files {
    fn read(&self, meta: SnapshotMeta) -> Later<Result<Bytes, String>> {
        let found = self.own.lock().unwrap().get(&meta.index).cloned();
        Box::pin(std::future::ready(found.ok_or_else(|| "there is none".into())))
    }

    fn receive(&self, message: Message, bytes: Bytes) -> Later<Result<(), String>> {
        let mut files = self.clone();
        Box::pin(async move {
            files.received.lock().unwrap().push((message, bytes));
            // As long as a test holds it up.
            let _ = files.slow.wait_for(|slow| !slow).await;
            Ok(())
        })
    }
}

/// Nobody has sessions here.
struct NoSessions;

#[tonic::async_trait]
impl SessionCalls for NoSessions {
    async fn heard(&self, _: MemberId, _: v1::HeardRequest) -> Result<v1::HeardResponse, tonic::Status> {
        Ok(v1::HeardResponse::default())
    }

    async fn progress(&self, _: MemberId, _: v1::ProgressRequest) -> Result<ProgressStream, tonic::Status> {
        Err(tonic::Status::not_found("there are no sessions"))
    }

    async fn relay(
        &self,
        _: MemberId,
        _: tonic::Streaming<v1::RelayFrame>,
    ) -> Result<RelayStream, tonic::Status> {
        // A log that is followed, and in which nothing is written.
        Ok(Box::pin(tokio_stream::pending()))
    }
}

pub struct World {
    pub authority: CertificateAuthority,
    /// Where managers say that they are.
    pub addresses: BTreeMap<MemberId, SocketAddr>,
}

/// One running manager. All of it but what the test itself holds is in a runtime of its own, so that it can be ended as
/// a process is.
pub struct Node {
    pub peers: Peers,
    pub publisher: Publisher,
    pub inbox: Inbox,
    pub outgoing: Outgoing,
    pub files: Files,
    pub listens: SocketAddr,
    /// `None` once it was killed.
    runtime: Option<Runtime>,
}

impl World {
    pub fn new() -> Self {
        let authority = CertificateAuthority::create("c1", SystemTime::now()).unwrap();
        Self { authority, addresses: BTreeMap::new() }
    }

    /// The managers 1 to `count`, which know each other; and reach each other by then.
    pub async fn of(count: MemberId) -> (Self, Vec<Node>) {
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

    /// A place for a manager, which the others are told.
    pub fn listen(&mut self, member: MemberId) -> TcpListener {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        self.addresses.insert(member, listener.local_addr().unwrap());
        listener
    }

    pub fn credentials(&self, member: MemberId) -> Shown {
        let identity = Identity::new("c1", CertificateRole::Manager, id(member).to_string()).unwrap();
        self.authority.issue(&identity, SystemTime::now()).unwrap()
    }

    pub fn dialer(&self, member: MemberId) -> Dialer {
        let certificate = LiveCertificate::new(&self.credentials(member));
        Dialer::new(&self.authority.roots(), certificate, "c1").unwrap()
    }

    /// A state with the managers that have an address; 1 is the first.
    pub fn state(&self) -> State {
        let mut commands = vec![
            Command::CreateCluster {
                id: ClusterId(Id(1)),
                ranges: vec!["10.0.0.0/8".parse().unwrap()],
                level: LEVEL,
                at: AT,
            },
            Command::CreateToken {
                id: TokenId(Id(5)),
                role: NodeRole::Manager,
                hash: HASH,
                expires_at: None,
                max_uses: None,
                at: AT,
            },
        ];
        for (member, address) in &self.addresses {
            let (id, name) = (id(*member), format!("m{member}").parse().unwrap());
            let (address, level, at) = (address.to_string().parse().unwrap(), LEVEL, AT);
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

    pub fn start(&self, member: MemberId, listener: TcpListener, state: State) -> Node {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let inside = runtime.enter();
        let listens = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let certificate = LiveCertificate::new(&self.credentials(member));
        let roots = self.authority.roots();
        let address = self.addresses[&member].to_string().parse().unwrap();
        let credentials =
            Credentials { cluster: "c1", id: id(member), roots: &roots, certificate: certificate.clone() };
        let (peers, outgoing, unsent) = Peers::new(member, address, credentials).unwrap();
        let leader: Arc<dyn Leader> = Arc::new(peers.clone());
        let (store, publisher, inbox) = Store::of_group(Published::first(state), member, leader, 4096, 1024);
        let (shutdown, files) = (Shutdown::new(), Files::new());
        peers.start(store.clone(), Arc::new(files.clone()), unsent, &shutdown);
        let server = PeerServer::new(Parts {
            peers: peers.clone(),
            store: store.clone(),
            registry: Registry::default(),
            clock: Stamp::new(Arc::new(SystemClock::new()), store),
            waits: Waits::default(),
            sessions: Arc::new(NoSessions),
            shutdown: shutdown.clone(),
        });
        let config = server_config(&roots, certificate).unwrap();
        let incoming = serve_tls(listener, config, StrangerLimits::default());
        let service = PeersServer::new(server).max_decoding_message_size(MAX_MESSAGE);
        let serving = Server::builder()
            .max_concurrent_streams(Some(crate::server::MAX_STREAMS))
            .initial_stream_window_size(Some(128 << 10))
            .add_service(service)
            .serve_with_incoming(incoming);
        tokio::spawn(serving);
        drop(inside);
        Node { peers, publisher, inbox, outgoing, files, listens, runtime: Some(runtime) }
    }
}

/// Applies the next command.
pub fn apply(state: &mut State, command: &Command) {
    let index = state.applied().index + 1;
    let outcome = state.apply(1, index, command);
    assert!(!matches!(outcome, Outcome::Rejected(_)), "{command:?}: {outcome:?}");
}

pub async fn all_connected(nodes: &[Node]) {
    for node in nodes {
        until("all connections", || {
            let connected = |member: &MemberId| node.peers.client(*member).is_some();
            node.peers.others().iter().filter(|member| connected(member)).count() == nodes.len() - 1
        })
        .await;
    }
}

impl Node {
    /// As if its process were killed: every connection breaks. Resolves when its port is free again.
    pub async fn kill(mut self) {
        self.end();
        until("the port to be free", || TcpListener::bind(self.listens).is_ok()).await;
    }

    fn end(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    /// This manager knows of a leader from now on, and of these members.
    pub fn publish(&self, leader: MemberId, state: State) {
        let role = Role {
            leader: leader == self.peers.own(),
            leader_id: Some(leader),
            term: 1,
            may_plan: leader == self.peers.own(),
        };
        let index = state.applied().index;
        let changes = Arc::new([Change::Member(0)]);
        let batch = crate::store::Batch { index, changes };
        // A leader that is the only voter never waits for a word of others.
        let members = Arc::new(ConfState::of_voters([leader]));
        self.publisher.heard_leader();
        self.publisher.publish(Published { role, members, ..Published::first(state) }, vec![batch]);
    }

    pub async fn next(&mut self) -> Heard {
        let heard = tokio::time::timeout(PATIENCE, self.inbox.heard.recv()).await;
        heard.expect("something is heard").expect("the store is there")
    }

    /// The next message; that somebody could not be reached meanwhile is passed over.
    pub async fn message(&mut self) -> Message {
        loop {
            match self.next().await {
                Heard::Message(message) => {
                    self.inbox.took(&message);
                    return message;
                }
                Heard::Unreachable(_) => {}
                Heard::Snapshot { .. } | Heard::SnapshotSent { .. } => panic!("no snapshot was sent"),
            }
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end();
    }
}

/// A message with so many bytes of entries; none for a heartbeat.
pub fn message(from: MemberId, to: MemberId, index: u64, data: usize) -> Message {
    use warren_consensus::{Entry, EntryKind};
    let entry =
        Entry { index: index + 1, term: 1, kind: EntryKind::Command, data: Bytes::from(vec![7; data]) };
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
