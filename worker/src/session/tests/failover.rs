//! A node with several managers: which one it connects to, when, and what it reports.

use std::time::SystemTime;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::net::TcpListener;
use warren_proto::v1::sessions_server::SessionsServer;
use warren_security::{
    CertificateAuthority, ConnectError, HandshakeLimits, Identity, ReloadableCertificate, Role, serve_tls,
    trusting_client_config, trusting_server_config,
};
use warren_types::{Id, ManagerAddress, ManagerId, NodeSettings};

use super::*;
use crate::fake_manager::new_service;
use crate::fixtures::TIMEOUT;
use crate::session::dial::ManagerDialer;

/// Managers that are dialled in turn; a dial of an unavailable one fails at once.
struct RotatingDialer {
    managers: Vec<SharedDialer>,
    state: Arc<Mutex<DialLog>>,
}

#[derive(Default)]
struct DialLog {
    unreachable: Vec<bool>,
    /// How many dials find a manager that has left, from the first one on.
    departed: usize,
    /// Dialled managers, with times.
    dialled: Vec<(usize, Instant)>,
    learned: Vec<ManagerAddress>,
    good_sessions: Vec<String>,
}

impl ManagerDialer for RotatingDialer {
    fn dial(&self) -> BoxFuture<'static, Result<ManagerConnection, ManagerDialError>> {
        let mut state = self.state.lock().unwrap();
        let turn = state.dialled.last().map_or(0, |(last, _)| (last + 1) % self.managers.len());
        state.dialled.push((turn, Instant::now()));
        let (away, has_left) = (state.unreachable[turn], state.dialled.len() <= state.departed);
        let dial = self.managers[turn].dial();
        async move {
            if away {
                return Err(ManagerDialError::NoAddress);
            }
            if has_left {
                let (manager, source) = (format!("m{turn}"), ConnectError::RevokedManager);
                return Err(ManagerDialError::Insecure { manager, source });
            }
            Ok(ManagerConnection { manager: format!("m{turn}"), id: Some(manager_id(turn)), ..dial.await? })
        }
        .boxed()
    }

    fn manager_count(&self) -> usize {
        self.managers.len()
    }

    fn set_managers(&self, managers: &[ManagerAddress]) {
        self.state.lock().unwrap().learned = managers.to_vec();
    }

    fn record_good_session(&self, manager: &str) {
        self.state.lock().unwrap().good_sessions.push(manager.to_owned());
    }
}

fn manager_id(number: usize) -> ManagerId {
    ManagerId(Id(u128::try_from(number).unwrap()))
}

fn node(desired_state: DesiredState, count: usize) -> (TestNode, Vec<FakeManager>, Arc<Mutex<DialLog>>) {
    let (managers, dials): (Vec<_>, Vec<_>) =
        std::iter::repeat_with(FakeManager::in_memory).take(count).unzip();
    let state = Arc::new(Mutex::new(DialLog { unreachable: vec![false; count], ..DialLog::default() }));
    let several = RotatingDialer { managers: dials, state: Arc::clone(&state) };
    (TestNode::with_dialer(desired_state, true, Arc::new(several), trust()), managers, state)
}

fn no_leader() -> tonic::Status {
    Problem::new(tonic::Code::Unavailable, "NO_LEADER", "the managers have no leader").into()
}

/// The settings of a node of a cluster with two managers.
fn of_two() -> NodeSettings {
    let managers = vec!["m0:8080".parse().unwrap(), "m1:8080".parse().unwrap()];
    NodeSettings { managers, ..settings() }
}

/// A good session of the manager, longer than one that only begins.
async fn good_session(manager: &mut FakeManager) -> FakeSession {
    let (mut session, _) = manager.next_session().await;
    session.welcome(&of_two()).await;
    let begun = Instant::now();
    while begun.elapsed() <= MIN_GOOD_SESSION {
        sync(&mut session).await;
    }
    session
}

fn batch(frame: &FromWorker) -> Option<v1::ReportBatch> {
    match frame {
        FromWorker::Reports(reports) => Some(reports.clone()),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn redirected_node_reconnects_at_once_with_state() {
    let (node, mut managers, dials) = node(DesiredState::default(), 3);
    let mut session = managers[0].next_welcomed_session().await;
    session.assign(7, vec![task(1)]).await;
    assert_eq!(ack(&mut session).await, at(7));
    node.context.reporter.report(report(1));
    // It is not stored there.
    session.next_matching(batch).await;
    tokio::time::sleep(MIN_GOOD_SESSION).await;
    let left = Instant::now();
    session.refuse(no_leader()).await;
    // A manager without a leader does not accept it.
    managers[1].next_session().await.0.refuse(no_leader()).await;
    let (mut next, hello) = managers[2].next_session().await;
    assert!(left.elapsed() <= 2 * MAX_FAILOVER_DELAY, "{:?}", left.elapsed());
    assert_eq!(hello.version.unwrap(), at(7).into());
    next.welcome(&settings()).await;
    assert_eq!(next.next_matching(batch).await.reports, [(&report(1)).into()]);
    // It is behind; its later assignments count.
    next.assign(6, vec![]).await;
    next.assign(8, vec![task(1), task(2)]).await;
    assert_eq!(ack(&mut next).await, at(8));
    assert_eq!(node.numbers(), [1, 2]);
    assert_eq!(dials.lock().unwrap().good_sessions, ["m0"]);
}

#[tokio::test(start_paused = true)]
async fn stopped_manager_is_replaced_by_another() {
    let (node, mut managers, _) = node(DesiredState::default(), 2);
    // No manager answers, and no connection is closed.
    let stopped = good_session(&mut managers[0]).await;
    let begun = Instant::now();
    let mut session = managers[1].next_welcomed_session().await;
    let most = settings().sync + periodic::MIN_ANSWER_TIMEOUT + MAX_FAILOVER_DELAY;
    assert!((periodic::SILENCE_TIMEOUT..=most).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    assert_eq!(sync(&mut session).await, initial_version());
    assert_eq!(node.context.connectivity.connectivity().borrow().disconnected_for(Instant::now()), None);
    stopped.wait_until_ended().await;
}

#[tokio::test(start_paused = true)]
async fn all_managers_are_tried_then_backoff() {
    let (_node, _managers, dials) = node(DesiredState::default(), 3);
    dials.lock().unwrap().unreachable = vec![true; 3];
    tokio::time::sleep(Duration::from_secs(60)).await;
    let made = std::mem::take(&mut dials.lock().unwrap().dialled);
    assert!(made.iter().map(|(turn, _)| *turn).eq((0..made.len()).map(|i| i % 3)), "in turn");
    for round in made.chunks_exact(3) {
        let lasted = round[2].1 - round[0].1;
        assert!(lasted <= 2 * MAX_FAILOVER_DELAY, "{lasted:?} for a round");
    }
    let pauses = made.chunks_exact(3).zip(made.chunks_exact(3).skip(1));
    let pauses: Vec<Duration> = pauses.map(|(one, other)| other[0].1 - one[2].1).collect();
    assert!(pauses.is_sorted() && pauses[0] >= MIN_BACKOFF / 2, "{pauses:?}");
    assert!(*pauses.last().unwrap() <= MAX_BACKOFF && pauses.len() >= 20, "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn short_sessions_back_off() {
    let (_node, mut managers, dials) = node(DesiredState::default(), 2);
    let begun = Instant::now();
    let mut sessions = 0;
    while begun.elapsed() < Duration::from_secs(60) {
        managers[sessions % 2].next_welcomed_session().await.refuse(no_leader()).await;
        sessions += 1;
    }
    assert!(sessions < 100, "{sessions}");
    assert!(dials.lock().unwrap().good_sessions.is_empty());
}

#[tokio::test(start_paused = true)]
async fn discovered_managers_are_dialled() {
    let (node, mut managers, dials) = node(DesiredState::default(), 2);
    let known: Vec<ManagerAddress> = vec!["m1:8080".parse().unwrap(), "m2:8080".parse().unwrap()];
    let (session, _) = managers[0].next_session().await;
    session.welcome(&NodeSettings { managers: known.clone(), ..settings() }).await;
    let mut desired_state = node.context.desired_state.subscribe();
    desired_state.wait_for(|desired_state| desired_state.settings.is_some()).await.unwrap();
    assert!(dials.lock().unwrap().learned.is_empty());
    let others = vec!["m3:8080".parse().unwrap()];
    session.send(Frame::Settings((&NodeSettings { managers: others.clone(), ..settings() }).into())).await;
    let news = |desired_state: &DesiredState| {
        desired_state.settings.as_ref().is_some_and(|settings| settings.managers == others)
    };
    desired_state.wait_for(news).await.unwrap();
    drop(session);
    managers[1].next_welcomed_session().await;
    assert_eq!(dials.lock().unwrap().learned, others);
}

#[tokio::test(start_paused = true)]
async fn disconnection_counts_from_last_frame() {
    let (node, mut managers, dials) = node(DesiredState::default(), 2);
    dials.lock().unwrap().unreachable[1] = true;
    let stopped = good_session(&mut managers[0]).await;
    let last_word = Instant::now();
    dials.lock().unwrap().unreachable[0] = true;
    let mut standing = node.context.connectivity.connectivity();
    standing.wait_for(|standing| standing.disconnected_for(Instant::now()).is_some()).await.unwrap();
    assert_eq!(standing.borrow().disconnected_for(Instant::now()), Some(last_word.elapsed()));
    assert!(last_word.elapsed() >= periodic::SILENCE_TIMEOUT);
    dials.lock().unwrap().unreachable[1] = false;
    // A manager that does not accept the node does not count.
    managers[1].next_session().await.0.refuse(no_leader()).await;
    assert!(standing.borrow().disconnected_for(Instant::now()).is_some());
    let session = managers[1].next_welcomed_session().await;
    standing.wait_for(|standing| standing.disconnected_for(Instant::now()).is_none()).await.unwrap();
    drop((stopped, session));
}

#[tokio::test(start_paused = true)]
async fn silent_manager_is_dropped_three_seconds_after_sync() {
    let (node, mut manager) = TestNode::start(DesiredState::default());
    let mut session = manager.next_welcomed_session().await;
    let first = |frame: &FromWorker| matches!(frame, FromWorker::Sync(_)).then_some(());
    session.next_matching(first).await;
    let asked = Instant::now();
    session.wait_until_ended().await;
    assert_eq!(asked.elapsed().as_secs(), periodic::SILENCE_TIMEOUT.as_secs());
    let mut next = manager.next_welcomed_session().await;
    assert_eq!(sync(&mut next).await, initial_version());
    assert!(*node.context.is_connected.borrow());
}

#[test]
fn departed_managers_are_accepted_in_every_other_round() {
    let mut round = FailedRound::default();
    let mut accepts = |found: [bool; 2]| {
        found.map(|is_departed| {
            round.record(is_departed, 2);
            round.accepts_departed
        })
    };
    assert_eq!(accepts([false, false]), [false, false], "none of them was reached");
    assert_eq!(accepts([true, false]), [false, true], "the other one was not reached");
    assert_eq!(accepts([false, false]), [true, false], "once");
}

#[tokio::test(start_paused = true)]
async fn session_with_a_manager_ends_once_the_node_knows_that_it_left() {
    let (node, mut managers, _) = node(DesiredState::default(), 2);
    let mut session = good_session(&mut managers[0]).await;
    let left = |number| NodeSettings { revoked_managers: vec![manager_id(number)], ..of_two() };
    session.send(Frame::Settings((&left(1)).into())).await;
    sync(&mut session).await;
    session.send(Frame::Settings((&left(0)).into())).await;
    session.wait_until_ended().await;
    let begun = Instant::now();
    let (mut session, _) = managers[1].next_session().await;
    assert!(begun.elapsed() <= 2 * MAX_FAILOVER_DELAY, "{:?}", begun.elapsed());
    session.welcome(&left(0)).await;
    sync(&mut session).await;
    assert_eq!(node.context.desired_state.borrow().settings, Some(left(0)));
}

#[tokio::test(start_paused = true)]
async fn manager_that_is_not_listed_is_left_later_also_after_a_round_that_accepts_all() {
    let left = |number| NodeSettings { revoked_managers: vec![manager_id(number)], ..of_two() };
    let known = DesiredState { settings: Some(left(1)), ..DesiredState::default() };
    let (_node, mut managers, dials) = node(known, 2);
    // A whole round, so that the next one accepts departed managers.
    dials.lock().unwrap().departed = 2;
    let (mut session, _) = managers[0].next_session().await;
    session.welcome(&left(1)).await;
    sync(&mut session).await;
    session.send(Frame::Settings((&left(0)).into())).await;
    session.wait_until_ended().await;
}

/// The new cluster was forced from the wrong manager, whose list has the right one.
#[tokio::test]
async fn departed_manager_is_tried_without_the_list() {
    let cluster = settings().cluster.to_string();
    let authority = CertificateAuthority::create(&cluster, SystemTime::now()).unwrap();
    let certificate = |role, id: String| {
        let identity = Identity::new(authority.cluster(), role, id).unwrap();
        ReloadableCertificate::new(&authority.issue(&identity, SystemTime::now()).unwrap())
    };
    let manager = ManagerId(Id(7));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let tls = trusting_server_config(
        Trust::new(&authority.roots()).unwrap(),
        certificate(Role::Manager, manager.to_string()),
    );
    // A loaded machine may pause a client in the middle of its handshake.
    let long = Duration::from_secs(60);
    let limits = HandshakeLimits { hello_timeout: long, handshake_timeout: long, ..Default::default() };
    let incoming = serve_tls(listener, tls.unwrap(), limits);
    let (service, mut sessions, _attached) = new_service();
    let server = tonic::transport::Server::builder().add_service(SessionsServer::new(service));
    let server = tokio::spawn(async move { server.serve_with_incoming(incoming).await.unwrap() });

    let trust = Trust::new(&authority.roots()).unwrap();
    let own = certificate(Role::Worker, settings().node.to_string());
    let tls = trusting_client_config(Arc::clone(&trust), Some(own)).unwrap();
    let dial = TlsDialer::new(settings().node, vec![address], tls);
    let listed = NodeSettings { revoked_managers: vec![manager], ..settings() };
    let known = DesiredState { settings: Some(listed.clone()), ..DesiredState::default() };
    let node = TestNode::with_dialer(known, true, Arc::new(dial), trust);
    let session = tokio::time::timeout(TIMEOUT, sessions.recv()).await;
    let mut session = session.expect("it is tried").expect("the server runs");
    assert!(matches!(session.next_frame().await, FromWorker::Hello(_)));
    // No other manager was reached, so that its session goes on, whatever it lists.
    session.welcome(&listed).await;
    session.send(Frame::Settings((&settings()).into())).await;
    let mut desired_state = node.context.desired_state.subscribe();
    let has_its_list = |known: &DesiredState| known.settings == Some(settings());
    tokio::time::timeout(TIMEOUT, desired_state.wait_for(has_its_list)).await.expect("it goes on").unwrap();
    server.abort();
}

/// A manager to which the certificate of the node has expired.
struct ExpiredDialer {
    /// Its answer to the question whether the node was removed.
    answer: Option<tonic::Status>,
}

impl ManagerDialer for ExpiredDialer {
    fn dial(&self) -> BoxFuture<'static, Result<ManagerConnection, ManagerDialError>> {
        let refused = ManagerDialError::Insecure { manager: "m1".to_owned(), source: ConnectError::Expired };
        std::future::ready(Err(refused)).boxed()
    }

    fn check_node(
        &self,
        manager: String,
        request: v1::CheckNodeRequest,
    ) -> BoxFuture<'static, Option<tonic::Status>> {
        assert_eq!((manager, request.node_id), ("m1".to_owned(), settings().node.to_string()));
        std::future::ready(self.answer.clone()).boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn node_with_expired_certificate_wakes_its_renewal_and_asks_whether_it_was_removed() {
    let started = |answer| {
        let dialer = Arc::new(ExpiredDialer { answer });
        TestNode::with_dialer(DesiredState::default(), true, dialer, trust())
    };
    let node = started(None);
    let mut expired = node.context.certificate_expired.subscribe();
    for _ in 0..3 {
        expired.changed().await.unwrap();
        assert!(*expired.borrow_and_update(), "each refusal wakes the renewal");
    }
    assert_eq!(*node.context.rejection.borrow(), None);

    let removed = started(Some(refusal(NODE_REMOVED)));
    let reason = "the manager's words".to_owned();
    assert_eq!(rejection(&removed).await, SessionRejection::Removed { reason, never_connected: true });
}
