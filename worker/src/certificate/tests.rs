use std::sync::Mutex;

use futures::FutureExt;
use rustls::client::ResolvesClientCert;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response};
use warren_control::{Shutdown, SystemClock};
use warren_process::joining::channel_over;
use warren_proto::status::{NODE_REMOVED, Problem};
use warren_proto::v1::membership_server::{Membership as MembershipService, MembershipServer};
use warren_security::CertificateAuthority;
use warren_types::NodeRole;

use super::*;
use crate::samples::settings;
use crate::scripted::PATIENCE;
use crate::session::Connected;

const HOUR: Duration = Duration::from_secs(3600);

/// A manager that gives out certificates for an hour, or fails as it is told.
#[derive(Clone)]
struct Manager {
    authority: Arc<CertificateAuthority>,
    fails: Arc<Mutex<Vec<Problem>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

#[tonic::async_trait]
impl MembershipService for Manager {
    async fn join(&self, _: Request<v1::JoinRequest>) -> Result<Response<v1::JoinResponse>, Status> {
        Err(Status::unimplemented("join"))
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::RenewResponse>, Status> {
        let request = CertificateRequest::parse(&request.into_inner().certificate_request);
        let request = request.map_err(|error| Status::invalid_argument(error.to_string()))?;
        self.asked.lock().unwrap().push(request.node_id().to_string());
        if let Some(problem) = self.fails.lock().unwrap().pop() {
            return Err(problem.into());
        }
        let certificate =
            self.authority.sign_node(NodeRole::Worker, &request, SystemTime::now(), HOUR).unwrap();
        Ok(Response::new(v1::RenewResponse { certificate }))
    }

    async fn leave(&self, _: Request<v1::LeaveRequest>) -> Result<Response<v1::LeaveResponse>, Status> {
        Err(Status::unimplemented("leave"))
    }
}

struct Node {
    _dir: tempfile::TempDir,
    manager: Manager,
    renewal: Renewal,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Node {
    /// A node whose certificate, good for an hour, was issued so long ago.
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
        let manager = Manager { authority, fails: Arc::default(), asked: Arc::default() };
        let (dialled, incoming) = mpsc::channel::<Result<DuplexStream, std::io::Error>>(8);
        let server = tonic::transport::Server::builder().add_service(MembershipServer::new(manager.clone()));
        let serve = server.serve_with_incoming(ReceiverStream::new(incoming));
        let server = tokio::spawn(async move { serve.await.unwrap() });
        let dial: Dial = Arc::new(move || {
            let dialled = dialled.clone();
            async move {
                let (near, far) = tokio::io::duplex(1 << 16);
                dialled.send(Ok(far)).await.map_err(|_| DialError::NoAddress)?;
                let channel = channel_over(near).await;
                let memory = || "memory".to_owned();
                let channel = channel.map_err(|source| DialError::Transport { manager: memory(), source })?;
                Ok(Connected { manager: memory(), dialled_from: None, channel })
            }
            .boxed()
        });
        let live = LiveCertificate::new(&credentials);
        let clock = Arc::new(SystemClock::new());
        let renewal = Renewal { store, live, dial, chance: 0, clock };
        Self { _dir: dir, manager, renewal, server }
    }

    /// The certificates on the disk and on the wire, which are to be the same.
    async fn shown(&self) -> SystemTime {
        let (credentials, _) = self.renewal.load().await.unwrap();
        let live = self.renewal.live.resolve(&[], &[]).unwrap();
        let of_disk = LiveCertificate::new(&credentials).resolve(&[], &[]).unwrap();
        assert_eq!(live.cert, of_disk.cert);
        credentials.expires_at()
    }

    fn asked(&self) -> usize {
        self.manager.asked.lock().unwrap().len()
    }
}

#[tokio::test]
async fn a_certificate_is_renewed_when_it_is_due_and_not_before() {
    let (young, now) = (Node::new(HOUR / 2), SystemTime::now());
    let before = young.shown().await;
    let again = young.renewal.ensure(now).await.unwrap();
    // Due after two thirds of its life.
    assert!(again <= HOUR / 6 && again >= HOUR / 6 - Duration::from_secs(5), "{again:?}");
    assert_eq!((young.asked(), young.shown().await), (0, before));

    let old = Node::new(HOUR * 5 / 6);
    let (before, identity) = (old.shown().await, old.renewal.live.identity());
    for _ in 0..2 {
        let again = old.renewal.ensure(now).await.unwrap();
        assert!(again >= HOUR / 2 && again <= HOUR * 2 / 3, "{again:?}");
        assert_eq!(old.asked(), 1, "the second time there is nothing to do");
    }
    assert!(old.shown().await > before + HOUR / 2);
    assert_eq!(*old.manager.asked.lock().unwrap(), [identity.id()], "with the same key");
    assert_eq!(old.renewal.live.identity(), identity);
}

#[tokio::test]
async fn what_cannot_be_renewed_says_why_and_stays() {
    let node = Node::new(HOUR * 5 / 6);
    let (before, now) = (node.shown().await, SystemTime::now());
    node.manager.fails.lock().unwrap().push(Problem::new(Code::Unavailable, "NO_LEADER", "no leader"));
    let error = node.renewal.ensure(now).await.unwrap_err();
    assert!(error.to_string().ends_with("no leader"), "{error}");
    assert_eq!(node.shown().await, before);
    let gone = Problem::new(Code::FailedPrecondition, NODE_REMOVED, "the node was removed");
    node.manager.fails.lock().unwrap().push(gone);
    assert!(matches!(node.renewal.ensure(now).await, Err(RenewalError::Refused { .. })));
    assert_eq!(node.shown().await, before);

    let late = Node::new(HOUR * 2);
    assert!(matches!(late.renewal.ensure(now).await, Err(RenewalError::Expired)));
    assert_eq!(late.asked(), 0, "no manager would talk to it");
    std::fs::remove_dir_all(late._dir.path().join("member")).unwrap();
    assert!(matches!(late.renewal.ensure(now).await, Err(RenewalError::NoMember(_))));
}

#[tokio::test(start_paused = true)]
async fn failures_are_shown_and_tried_again() {
    let mut node = Node::new(HOUR * 5 / 6);
    let problem = || Problem::new(Code::Unavailable, "NO_LEADER", "no leader");
    node.manager.fails.lock().unwrap().extend([problem(), problem()]);
    let (store, live) = (node.renewal.store.clone(), Arc::clone(&node.renewal.live));
    let dial = Arc::clone(&node.renewal.dial);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let renewal = Renewal { store, live, dial, chance: 0, clock: Arc::clone(&clock) };
    let renewal = std::mem::replace(&mut node.renewal, renewal);
    let shutdown = Shutdown::new();
    let loops = Loops::new(shutdown.clone(), clock, Arc::new(|| 0));
    let began = tokio::time::Instant::now();
    renewal.start(&loops);
    let status = || loops.snapshot().remove(0);
    let renewed = async {
        while status().runs < 3 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(PATIENCE, renewed).await.unwrap();
    // Half of 10 s, then half of 20 s.
    assert!(began.elapsed() >= Duration::from_secs(15), "{:?}", began.elapsed());
    let status = status();
    assert_eq!((status.name, status.failures, status.failures_in_a_row), ("worker.certificate", 2, 0));
    let error = status.last_failure.unwrap().error;
    assert!(error.contains("gave no new certificate: no leader"), "{error}");
    assert!(node.shown().await > SystemTime::now() + HOUR / 2);
    shutdown.stop(Duration::from_secs(5)).await.unwrap();
}
