use std::ops::Range;
use std::sync::Mutex;
use std::time::SystemTime;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use tonic::transport::Server;
use tonic::{Request, Response};
use warren_daemon::join::channel_over;
use warren_proto::status::{NODE_REMOVED, NODE_UNKNOWN, OTHER_INCARNATION, Problem};
use warren_proto::v1::membership_server::{Membership, MembershipServer};
use warren_security::{CertificateAuthority, CertificateRequest, ConnectError, PrivateKey};
use warren_types::{NodeRole, Timestamp};

use super::*;
use crate::session::{ManagerDialError, ManagerDialer};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn authority() -> CertificateAuthority {
    CertificateAuthority::create("c1", SystemTime::now() - 10 * DAY).unwrap()
}

fn check() -> v1::CheckNodeRequest {
    v1::CheckNodeRequest { node_id: "n".to_owned(), version: Some(v1::AssignmentVersion::default()) }
}

fn refusal(code: Code, reason: &str) -> Status {
    Problem::new(code, reason, "the manager's words").into()
}

/// A node whose certificate was issued yesterday, with the dialer that `dial` makes for it.
fn leaving(
    authority: &CertificateAuthority,
    dial: impl FnOnce(&Arc<ReloadableCertificate>) -> SharedDialer,
) -> LeavingNode {
    let key = PrivateKey::generate().unwrap();
    let request = CertificateRequest::parse(&CertificateRequest::create(&key).unwrap()).unwrap();
    let signed = authority.sign_node(NodeRole::Worker, &request, SystemTime::now() - DAY, 90 * DAY).unwrap();
    let credentials = Credentials::new(signed, key).unwrap();
    let certificate = ReloadableCertificate::new(&credentials);
    LeavingNode { dial: dial(&certificate), check: check(), credentials, certificate, is_renewed: false }
}

/// Managers that refuse the certificate as revoked, with what each answers without it.
struct RefusingManagers {
    answers: Vec<Option<Status>>,
    dialled: Mutex<usize>,
}

impl ManagerDialer for RefusingManagers {
    fn dial(&self) -> BoxFuture<'static, Result<ManagerConnection, ManagerDialError>> {
        let mut dialled = self.dialled.lock().unwrap();
        let manager = dialled.to_string();
        *dialled += 1;
        let refused = ManagerDialError::Insecure { manager, source: ConnectError::Revoked };
        std::future::ready(Err(refused)).boxed()
    }

    fn manager_count(&self) -> usize {
        self.answers.len()
    }

    fn check_node(
        &self,
        manager: String,
        request: v1::CheckNodeRequest,
    ) -> BoxFuture<'static, Option<Status>> {
        assert_eq!(request, check());
        std::future::ready(self.answers[manager.parse::<usize>().unwrap()].clone()).boxed()
    }
}

#[tokio::test]
async fn refused_node_has_left_only_if_a_manager_says_so() {
    let request_from = async |answers: Vec<Option<Status>>| {
        let dial = Arc::new(RefusingManagers { answers, dialled: Mutex::default() });
        leaving(&authority(), |_| dial).request_leave(false).await
    };
    let status = |reason: &str| Some(refusal(Code::FailedPrecondition, reason));
    for reason in [NODE_REMOVED, NODE_UNKNOWN] {
        let left = request_from(vec![None, status(OTHER_INCARNATION), status(reason)]).await;
        assert_eq!(left.unwrap(), 0, "{reason}");
    }
    let refused = request_from(vec![None, status(OTHER_INCARNATION)]).await.unwrap_err();
    assert_eq!(refused.kind, ExitKind::Unreachable);
}

/// A manager that renews certificates unless it is to refuse that, and lets nodes go.
#[derive(Clone)]
struct RenewingManager {
    authority: Arc<CertificateAuthority>,
    refusal: Option<Status>,
}

#[tonic::async_trait]
impl Membership for RenewingManager {
    async fn join(&self, _: Request<v1::JoinRequest>) -> Result<Response<v1::JoinResponse>, Status> {
        Err(Status::unimplemented("join"))
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::RenewResponse>, Status> {
        if let Some(refusal) = self.refusal.clone() {
            return Err(refusal);
        }
        let request = CertificateRequest::parse(&request.into_inner().certificate_request).unwrap();
        let signed = self.authority.sign_node(NodeRole::Worker, &request, SystemTime::now(), 90 * DAY);
        let authorities = self.authority.roots().pem().to_owned();
        Ok(Response::new(v1::RenewResponse { certificate: signed.unwrap(), authorities }))
    }

    async fn leave(&self, _: Request<v1::LeaveRequest>) -> Result<Response<v1::LeaveResponse>, Status> {
        Ok(Response::new(v1::LeaveResponse { tasks: 0 }))
    }
}

/// Dials a manager that refuses a certificate as expired.
struct ExpiredDialer {
    manager: RenewingManager,
    shown: Arc<ReloadableCertificate>,
    /// The validity of the certificate that it refuses; each is refused without one.
    refused: Option<Range<Timestamp>>,
    /// Its answer to the question whether the node was removed.
    answer: Option<Status>,
}

impl ManagerDialer for ExpiredDialer {
    fn dial(&self) -> BoxFuture<'static, Result<ManagerConnection, ManagerDialError>> {
        if self.refused.as_ref().is_some_and(|refused| *refused != self.shown.validity()) {
            return self.dial_anonymously();
        }
        let refused = ManagerDialError::Insecure { manager: "m1".to_owned(), source: ConnectError::Expired };
        std::future::ready(Err(refused)).boxed()
    }

    fn dial_anonymously(&self) -> BoxFuture<'static, Result<ManagerConnection, ManagerDialError>> {
        let server = Server::builder().add_service(MembershipServer::new(self.manager.clone()));
        async move {
            let (near, far) = tokio::io::duplex(1 << 16);
            let incoming = stream::iter([Ok::<_, std::io::Error>(far)]).chain(stream::pending());
            tokio::spawn(server.serve_with_incoming(incoming));
            let manager = "m1".to_owned();
            match channel_over(near).await {
                Ok(channel) => Ok(ManagerConnection { manager, id: None, dialled_from: None, channel }),
                Err(source) => Err(ManagerDialError::Transport { manager, source }),
            }
        }
        .boxed()
    }

    fn check_node(&self, _: String, _: v1::CheckNodeRequest) -> BoxFuture<'static, Option<Status>> {
        std::future::ready(self.answer.clone()).boxed()
    }
}

#[tokio::test]
async fn certificate_that_a_manager_refuses_as_expired_is_renewed_to_leave() {
    // By the clock of the node, its certificate is valid.
    let leave = async |refusal: Option<Status>, answer: Option<Status>, accepts_renewed: bool| {
        let authority = Arc::new(authority());
        let mut node = leaving(&authority, |shown| {
            let manager = RenewingManager { authority: Arc::clone(&authority), refusal };
            let refused = accepts_renewed.then(|| shown.validity());
            Arc::new(ExpiredDialer { manager, shown: Arc::clone(shown), refused, answer })
        });
        node.request_leave(false).await.map_err(|failure| (failure.kind, failure.hint))
    };
    assert_eq!(leave(None, None, true).await, Ok(0));
    let removed = refusal(Code::FailedPrecondition, NODE_REMOVED);
    assert_eq!(leave(Some(removed.clone()), Some(removed), true).await, Ok(0));
    let another_key = refusal(Code::PermissionDenied, "ANOTHER_KEY");
    let refused = leave(Some(another_key), None, true).await;
    assert_eq!(refused, Err((ExitKind::Denied, NOT_RENEWED.to_owned())));
    let no_leader = refusal(Code::Unavailable, "NO_LEADER");
    let failed = Err((ExitKind::Unreachable, NO_MANAGER.to_owned()));
    assert_eq!(leave(Some(no_leader), None, true).await, failed);
    assert_eq!(leave(None, None, false).await, failed, "it is renewed once");
}
