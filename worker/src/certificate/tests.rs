use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use rustls::client::ResolvesClientCert;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response};
use warren_control::{ManualClock, Shutdown, SystemClock};
use warren_daemon::join::channel_over;
use warren_proto::status::{NODE_REMOVED, Problem};
use warren_proto::v1::membership_server::{Membership as MembershipService, MembershipServer};
use warren_security::{CertificateAuthority, ConnectError};
use warren_types::{NodeRole, Timestamp};

use super::*;
use crate::fixtures::{TIMEOUT, settings};
use crate::session::ManagerDialer;

const HOUR: Duration = Duration::from_secs(3600);

/// A manager that issues certificates for an hour, or fails as configured.
#[derive(Clone)]
struct RenewingManager {
    authority: Arc<Mutex<Arc<CertificateAuthority>>>,
    failures: Arc<Mutex<Vec<Problem>>>,
    requests: Arc<Mutex<Vec<String>>>,
}

#[tonic::async_trait]
impl MembershipService for RenewingManager {
    async fn join(&self, _: Request<v1::JoinRequest>) -> Result<Response<v1::JoinResponse>, Status> {
        Err(Status::unimplemented("join"))
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::RenewResponse>, Status> {
        let request = CertificateRequest::parse(&request.into_inner().certificate_request);
        let request = request.map_err(|error| Status::invalid_argument(error.to_string()))?;
        self.requests.lock().unwrap().push(request.node_id().to_string());
        if let Some(problem) = self.failures.lock().unwrap().pop() {
            return Err(problem.into());
        }
        let authority = Arc::clone(&self.authority.lock().unwrap());
        let certificate = authority.sign_node(NodeRole::Worker, &request, SystemTime::now(), HOUR).unwrap();
        let authorities = authority.roots().pem().to_owned();
        Ok(Response::new(v1::RenewResponse { certificate, authorities }))
    }

    async fn leave(&self, _: Request<v1::LeaveRequest>) -> Result<Response<v1::LeaveResponse>, Status> {
        Err(Status::unimplemented("leave"))
    }
}

struct Node {
    _dir: tempfile::TempDir,
    manager: RenewingManager,
    renewal: CertificateRenewal,
    desired_state: watch::Sender<DesiredState>,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Node {
    /// A node whose certificate, valid for an hour, was issued so long ago.
    fn new(age: Duration) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let cluster = settings().cluster.to_string();
        let authority = Arc::new(CertificateAuthority::create(&cluster, now - 24 * HOUR).unwrap());
        let store = MembershipStore::new(dir.path().join("member"));
        let request = CertificateRequest::create(&store.ensure_key().unwrap()).unwrap();
        let request = CertificateRequest::parse(&request).unwrap();
        let certificate = authority.sign_node(NodeRole::Worker, &request, now - age, HOUR).unwrap();
        let credentials = store.complete(&authority.roots(), &certificate).unwrap();
        let trust = Trust::new(&authority.roots()).unwrap();
        let authority = Arc::new(Mutex::new(authority));
        let manager = RenewingManager { authority, failures: Arc::default(), requests: Arc::default() };
        let (dialled, incoming) = mpsc::channel::<Result<DuplexStream, std::io::Error>>(8);
        let server = tonic::transport::Server::builder().add_service(MembershipServer::new(manager.clone()));
        let serve = server.serve_with_incoming(ReceiverStream::new(incoming));
        let server = tokio::spawn(async move { serve.await.unwrap() });
        let dial: SharedDialer = Arc::new(move || {
            let dialled = dialled.clone();
            async move {
                let (near, far) = tokio::io::duplex(1 << 16);
                dialled.send(Ok(far)).await.map_err(|_| ManagerDialError::NoAddress)?;
                let channel = channel_over(near).await;
                let memory = || "memory".to_owned();
                let channel =
                    channel.map_err(|source| ManagerDialError::Transport { manager: memory(), source })?;
                Ok(ManagerConnection { manager: memory(), id: None, dialled_from: None, channel })
            }
            .boxed()
        });
        let live = ReloadableCertificate::new(&credentials);
        let (desired_state, desired) = watch::channel(DesiredState::default());
        let renewal = CertificateRenewal {
            store,
            live,
            trust,
            desired_state: desired,
            expired: watch::Sender::new(false),
            dial,
            random: 0,
            clock: Arc::new(SystemClock::new()),
        };
        Self { _dir: dir, manager, renewal, desired_state, server }
    }

    /// The certificates on disk and on the wire, which must be equal.
    async fn shown_expiry(&self) -> SystemTime {
        let (credentials, _) = self.renewal.load().await.unwrap();
        let live = self.renewal.live.resolve(&[], &[]).unwrap();
        let of_disk = ReloadableCertificate::new(&credentials).resolve(&[], &[]).unwrap();
        assert_eq!(live.cert, of_disk.cert);
        credentials.expires_at()
    }

    fn request_count(&self) -> usize {
        self.manager.requests.lock().unwrap().len()
    }

    /// Runs the renewal of its certificate in the background.
    fn start(&self) -> (Shutdown, BackgroundTasks) {
        let CertificateRenewal { store, live, trust, desired_state, expired, dial, random, clock } =
            &self.renewal;
        let renewal = CertificateRenewal {
            store: store.clone(),
            live: Arc::clone(live),
            trust: Arc::clone(trust),
            desired_state: desired_state.clone(),
            expired: expired.clone(),
            dial: Arc::clone(dial),
            random: *random,
            clock: Arc::clone(clock),
        };
        let shutdown = Shutdown::new();
        let background_tasks = BackgroundTasks::new(shutdown.clone(), Arc::clone(clock), Arc::new(|| 0));
        renewal.start(&background_tasks, &shutdown);
        (shutdown, background_tasks)
    }
}

#[tokio::test]
async fn certificate_is_renewed_only_when_due() {
    let (young, now) = (Node::new(HOUR / 2), SystemTime::now());
    let before = young.shown_expiry().await;
    let again = young.renewal.ensure(now).await.unwrap();
    // Due after two thirds of its lifetime.
    assert!(again <= HOUR / 6 && again >= HOUR / 6 - Duration::from_secs(60), "{again:?}");
    assert_eq!((young.request_count(), young.shown_expiry().await), (0, before));

    let old = Node::new(HOUR * 5 / 6);
    let (before, identity) = (old.shown_expiry().await, old.renewal.live.identity());
    for _ in 0..2 {
        let again = old.renewal.ensure(now).await.unwrap();
        assert!(again >= HOUR / 2 && again <= HOUR * 3 / 4, "{again:?}");
        assert_eq!(old.request_count(), 1, "the second time there is nothing to do");
    }
    assert!(old.shown_expiry().await > before + HOUR / 2);
    assert_eq!(*old.manager.requests.lock().unwrap(), [identity.id()], "with the same key");
    assert_eq!(old.renewal.live.identity(), identity);
}

#[tokio::test]
async fn failed_renewal_keeps_old_certificate_and_reports_reason() {
    let node = Node::new(HOUR * 5 / 6);
    let (before, now) = (node.shown_expiry().await, SystemTime::now());
    node.manager.failures.lock().unwrap().push(Problem::new(Code::Unavailable, "NO_LEADER", "no leader"));
    let error = node.renewal.ensure(now).await.unwrap_err();
    assert!(error.to_string().ends_with("no leader"), "{error}");
    assert_eq!(node.shown_expiry().await, before);
    let gone = Problem::new(Code::FailedPrecondition, NODE_REMOVED, "the node was removed");
    node.manager.failures.lock().unwrap().push(gone);
    assert!(matches!(node.renewal.ensure(now).await, Err(RenewalError::Refused { .. })));
    assert_eq!(node.shown_expiry().await, before);

    std::fs::remove_dir_all(node._dir.path().join("member")).unwrap();
    assert!(matches!(node.renewal.ensure(now).await, Err(RenewalError::NotAMember(_))));
}

#[tokio::test]
async fn certificate_that_cannot_be_stored_is_in_use() {
    let (node, now) = (Node::new(HOUR * 2), SystemTime::now());
    let before = node.shown_expiry().await;
    node.renewal.expired.send_replace(true);
    let blocked = node._dir.path().join("member/.node.pem.partial");
    std::fs::create_dir(&blocked).unwrap();
    let refused = node.renewal.ensure(now).await;
    assert!(matches!(refused, Err(RenewalError::Store(NodeMembershipError::File(_)))), "{refused:?}");
    let shown = node.renewal.live.validity().end;
    assert!(shown > Timestamp(0) + now.duration_since(UNIX_EPOCH).unwrap(), "{shown}");
    assert!(!*node.renewal.expired.borrow(), "the session goes on");
    std::fs::remove_dir(&blocked).unwrap();
    node.renewal.ensure(now).await.unwrap();
    assert!(node.shown_expiry().await > before);
}

#[tokio::test]
async fn expired_certificate_is_renewed() {
    let (late, now) = (Node::new(100 * 24 * HOUR), SystemTime::now());
    let identity = late.renewal.live.identity();
    for _ in 0..2 {
        late.renewal.ensure(now).await.unwrap();
        assert_eq!(late.request_count(), 1, "the second time there is nothing to do");
    }
    assert!(late.shown_expiry().await > now);
    assert_eq!(late.renewal.live.identity(), identity);
}

/// Records how managers are dialled.
struct RecordingDialer {
    inner: SharedDialer,
    /// Whether managers refuse the certificate as expired.
    is_refused: bool,
    dials: Mutex<Vec<&'static str>>,
}

impl ManagerDialer for RecordingDialer {
    fn dial(&self) -> BoxFuture<'static, Result<ManagerConnection, ManagerDialError>> {
        self.dials.lock().unwrap().push("with certificate");
        if !self.is_refused {
            return self.inner.dial();
        }
        let manager = "memory".to_owned();
        let refused = ManagerDialError::Insecure { manager, source: ConnectError::Expired };
        std::future::ready(Err(refused)).boxed()
    }

    fn dial_anonymously(&self) -> BoxFuture<'static, Result<ManagerConnection, ManagerDialError>> {
        self.dials.lock().unwrap().push("without certificate");
        self.inner.dial()
    }
}

#[tokio::test]
async fn certificate_is_shown_for_its_renewal_unless_it_has_expired() {
    let (with, without) = ("with certificate", "without certificate");
    let rows: [(Duration, bool, bool, &[&str]); 4] = [
        (HOUR * 5 / 6, false, false, &[with]),
        // By the clock of a manager, as the session knows, or as this connection shows.
        (HOUR * 5 / 6, true, true, &[without]),
        (HOUR * 5 / 6, false, true, &[with, without]),
        (HOUR * 2, false, true, &[without]),
    ];
    for (age, is_known, is_refused, expected) in rows {
        let mut node = Node::new(age);
        let inner = Arc::clone(&node.renewal.dial);
        let dialer = Arc::new(RecordingDialer { inner, is_refused, dials: Mutex::default() });
        node.renewal.dial = dialer.clone();
        node.renewal.expired.send_replace(is_known);
        node.renewal.ensure(SystemTime::now()).await.unwrap();
        assert_eq!(*dialer.dials.lock().unwrap(), expected, "{age:?} {is_known} {is_refused}");
        assert_eq!((node.request_count(), *node.renewal.expired.borrow()), (1, false));
    }
}

/// Two managers in turn, the second of which is down; they refuse the certificate as expired.
struct HalfDownDialer {
    inner: SharedDialer,
    dials: AtomicUsize,
}

impl HalfDownDialer {
    fn dial_next(&self, is_shown: bool) -> BoxFuture<'static, Result<ManagerConnection, ManagerDialError>> {
        let is_up = self.dials.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
        let manager = "memory".to_owned();
        let failed = match (is_up, is_shown) {
            (true, false) => return self.inner.dial(),
            (true, true) => ManagerDialError::Insecure { manager, source: ConnectError::Expired },
            (false, _) => ManagerDialError::Unreachable { manager, source: std::io::Error::other("down") },
        };
        std::future::ready(Err(failed)).boxed()
    }
}

impl ManagerDialer for HalfDownDialer {
    fn dial(&self) -> BoxFuture<'static, Result<ManagerConnection, ManagerDialError>> {
        self.dial_next(true)
    }

    fn dial_anonymously(&self) -> BoxFuture<'static, Result<ManagerConnection, ManagerDialError>> {
        self.dial_next(false)
    }

    fn manager_count(&self) -> usize {
        2
    }
}

#[tokio::test]
async fn each_manager_is_asked_whoever_takes_turns_with_the_renewal() {
    // Expired by the clock of the node, or that of managers alone.
    for age in [HOUR * 2, HOUR * 5 / 6] {
        for dialled_by_session in [0, 1] {
            let mut node = Node::new(age);
            let inner = Arc::clone(&node.renewal.dial);
            let dials = AtomicUsize::new(dialled_by_session);
            node.renewal.dial = Arc::new(HalfDownDialer { inner, dials });
            node.renewal.ensure(SystemTime::now()).await.unwrap();
            assert_eq!(node.request_count(), 1, "{age:?} {dialled_by_session}");
        }
    }
}

#[tokio::test]
async fn node_whose_clock_is_ahead_does_not_renew_again_and_again() {
    let (node, ahead) = (Node::new(Duration::ZERO), SystemTime::now() + HOUR * 5 / 6);
    for renewals in [1, 2] {
        // It is due again at once by this clock.
        assert_eq!(node.renewal.ensure(ahead).await.unwrap(), HOUR / 12);
        assert_eq!(node.request_count(), renewals);
    }
}

/// Waits, by the paused clock, until the renewal has run this often.
async fn until_run(background_tasks: &BackgroundTasks, count: u64) {
    let runs = async {
        while background_tasks.snapshot().remove(0).runs < count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TIMEOUT, runs).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn clock_that_was_corrected_renews_nothing() {
    let mut node = Node::new(Duration::ZERO);
    let ahead = (SystemTime::now() + 2 * HOUR).duration_since(UNIX_EPOCH).unwrap();
    let clock = Arc::new(ManualClock::new(u64::try_from(ahead.as_millis()).unwrap()));
    clock.set_back(2 * HOUR);
    node.renewal.clock = clock;
    let (shutdown, background_tasks) = node.start();
    until_run(&background_tasks, 1).await;
    assert_eq!(node.request_count(), 0);
    shutdown.stop(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn certificate_that_a_manager_refuses_as_expired_is_renewed_at_once() {
    let node = Node::new(HOUR / 2);
    let problem = Problem::new(Code::Unavailable, "NO_LEADER", "no leader");
    node.manager.failures.lock().unwrap().push(problem);
    let (before, began) = (node.shown_expiry().await, tokio::time::Instant::now());
    let (shutdown, background_tasks) = node.start();
    let expired = node.renewal.expired.clone();
    until_run(&background_tasks, 1).await;
    assert_eq!(node.request_count(), 0, "it is not due by the clock of the node");
    // The first attempt fails, and the next refusal does not wait until it is repeated.
    for count in [2, 3] {
        expired.send_replace(true);
        until_run(&background_tasks, count).await;
    }
    assert!(began.elapsed() < SETTINGS.first_retry / 2, "{:?}", began.elapsed());
    assert_eq!((node.request_count(), *expired.borrow()), (2, false));
    assert!(node.shown_expiry().await > before);
    shutdown.stop(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn renewal_failure_is_reported_and_retried() {
    let node = Node::new(HOUR * 5 / 6);
    let problem = || Problem::new(Code::Unavailable, "NO_LEADER", "no leader");
    node.manager.failures.lock().unwrap().extend([problem(), problem()]);
    let began = tokio::time::Instant::now();
    let (shutdown, background_tasks) = node.start();
    let status = || background_tasks.snapshot().remove(0);
    let renewed = async {
        while status().runs < 3 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(TIMEOUT, renewed).await.unwrap();
    // Half of 10 s, then half of 20 s.
    assert!(began.elapsed() >= Duration::from_secs(15), "{:?}", began.elapsed());
    let status = status();
    assert_eq!((status.name, status.failures, status.consecutive_failures), ("worker.certificate", 2, 0));
    let error = status.last_failure.unwrap().error;
    assert!(error.contains("did not renew the certificate: no leader"), "{error}");
    assert!(node.shown_expiry().await > SystemTime::now() + HOUR / 2);
    shutdown.stop(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test]
async fn certificate_is_renewed_when_the_authority_was_replaced() {
    let (node, now) = (Node::new(HOUR / 2), SystemTime::now());
    let old = Arc::clone(&node.manager.authority.lock().unwrap());
    let next = old.successor(now).unwrap();
    let other = warren_types::NodeSettings { authority: Some(next.digest()), ..settings() };
    node.desired_state.send_modify(|desired| desired.settings = Some(other));
    // A manager that lags has the earlier authority, one that follows trusts both for a moment.
    let following = Arc::new(CertificateAuthority::parse_pem(&next.to_pem()).unwrap());
    assert_eq!(following.roots().digests(), [next.digest(), old.digest()]);
    for authority in [Arc::clone(&old), following] {
        *node.manager.authority.lock().unwrap() = authority;
        assert_eq!(node.renewal.ensure(now).await.unwrap(), MIN_CHECK_INTERVAL);
        assert_eq!(node.renewal.trust.roots().digests(), [old.digest()], "it is never one of two");
        assert_eq!(node.renewal.load().await.unwrap().1.digests(), [old.digest()]);
    }
    *node.manager.authority.lock().unwrap() = Arc::new(next.without_predecessors());
    let changes = node.renewal.trust.changes();
    assert!(node.renewal.ensure(now).await.unwrap() > MIN_CHECK_INTERVAL);
    assert!(changes.has_changed().unwrap(), "the session ends");
    let (credentials, roots) = node.renewal.load().await.unwrap();
    assert_eq!(roots.digests(), [next.digest()]);
    assert_eq!(node.renewal.trust.roots().digests(), [next.digest()]);
    roots.check_issued(&credentials).unwrap();
    node.shown_expiry().await;
    let before = node.request_count();
    node.renewal.ensure(now).await.unwrap();
    assert_eq!(node.request_count(), before, "the second time there is nothing to do");
}
