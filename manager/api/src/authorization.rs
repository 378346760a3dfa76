//! Authorization: the table of methods and required roles, and the layer that checks every call against it.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tonic::body::Body;
use tonic::{Code, Request, Status};
use tower::Service;
use warren_core::State;
use warren_proto::Problem;
use warren_security::{Peer, Role};
use warren_types::{Timestamp, UserRole};

use super::Api;
use super::middleware::{CallFuture, Middleware};
use super::relayed_caller::relayed_caller;

/// Deadline of a request without a certificate, including the time to send it: one cluster write plus slack.
const ANONYMOUS_DEADLINE: Duration = Duration::from_secs(12);
/// Interval of the checks whether the caller of a stream is still permitted.
const PERMISSION_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Reason of the refusal of a user's certificate without a listed key.
pub const KEY_NOT_LISTED: &str = "KEY_NOT_LISTED";

/// The role that a method requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequiredRole {
    /// A caller without an identity. Callers with an identity are rejected.
    Anonymous,
    /// Reads.
    Viewer,
    /// Runs workloads, as far as [`super::admission`] allows it.
    Operator,
    /// Membership, users, and settings.
    Admin,
    /// The agent of a node.
    Worker,
    /// A manager. [`warren_replica::MemberDirectory`] decides which managers are admitted.
    Manager,
}

impl fmt::Display for RequiredRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Anonymous => "anonymous",
            Self::Viewer => UserRole::Viewer.as_str(),
            Self::Operator => UserRole::Operator.as_str(),
            Self::Admin => UserRole::Admin.as_str(),
            Self::Worker => Role::Worker.as_str(),
            Self::Manager => Role::Manager.as_str(),
        })
    }
}

/// All methods. A method that is not listed is rejected.
pub const METHODS: [(&str, RequiredRole); 77] = [
    ("/warren.v1.Services/Create", RequiredRole::Operator),
    ("/warren.v1.Services/Get", RequiredRole::Viewer),
    ("/warren.v1.Services/List", RequiredRole::Viewer),
    ("/warren.v1.Services/Scale", RequiredRole::Operator),
    ("/warren.v1.Services/Remove", RequiredRole::Operator),
    ("/warren.v1.Services/Update", RequiredRole::Operator),
    ("/warren.v1.Services/Rollback", RequiredRole::Operator),
    ("/warren.v1.Services/Resume", RequiredRole::Operator),
    ("/warren.v1.Services/ListRevisions", RequiredRole::Viewer),
    // Not for viewers: it tells whether bytes are those of a secret.
    ("/warren.v1.Services/Forecast", RequiredRole::Operator),
    ("/warren.v1.Tasks/Get", RequiredRole::Viewer),
    ("/warren.v1.Tasks/List", RequiredRole::Viewer),
    ("/warren.v1.Tasks/Exec", RequiredRole::Operator),
    ("/warren.v1.Tasks/Restart", RequiredRole::Operator),
    ("/warren.v1.Nodes/Get", RequiredRole::Viewer),
    ("/warren.v1.Nodes/List", RequiredRole::Viewer),
    ("/warren.v1.Nodes/Update", RequiredRole::Admin),
    ("/warren.v1.Nodes/Remove", RequiredRole::Admin),
    ("/warren.v1.Nodes/Verify", RequiredRole::Admin),
    ("/warren.v1.Tokens/Create", RequiredRole::Admin),
    ("/warren.v1.Tokens/List", RequiredRole::Admin),
    ("/warren.v1.Tokens/Remove", RequiredRole::Admin),
    ("/warren.v1.Users/Create", RequiredRole::Admin),
    ("/warren.v1.Users/Get", RequiredRole::Admin),
    ("/warren.v1.Users/List", RequiredRole::Admin),
    ("/warren.v1.Users/Update", RequiredRole::Admin),
    ("/warren.v1.Users/Remove", RequiredRole::Admin),
    ("/warren.v1.Users/Login", RequiredRole::Anonymous),
    ("/warren.v1.SecretObjects/Create", RequiredRole::Operator),
    ("/warren.v1.SecretObjects/Update", RequiredRole::Operator),
    ("/warren.v1.SecretObjects/Get", RequiredRole::Viewer),
    ("/warren.v1.SecretObjects/Read", RequiredRole::Operator),
    ("/warren.v1.SecretObjects/List", RequiredRole::Viewer),
    ("/warren.v1.SecretObjects/Remove", RequiredRole::Operator),
    ("/warren.v1.Networks/Create", RequiredRole::Operator),
    ("/warren.v1.Networks/Get", RequiredRole::Viewer),
    ("/warren.v1.Networks/List", RequiredRole::Viewer),
    ("/warren.v1.Networks/Remove", RequiredRole::Operator),
    ("/warren.v1.Volumes/Create", RequiredRole::Operator),
    ("/warren.v1.Volumes/Get", RequiredRole::Viewer),
    ("/warren.v1.Volumes/List", RequiredRole::Viewer),
    ("/warren.v1.Volumes/Remove", RequiredRole::Operator),
    ("/warren.v1.Membership/Join", RequiredRole::Anonymous),
    ("/warren.v1.Membership/Renew", RequiredRole::Worker),
    ("/warren.v1.Membership/Leave", RequiredRole::Worker),
    ("/warren.v1.Managers/Join", RequiredRole::Anonymous),
    ("/warren.v1.Managers/List", RequiredRole::Viewer),
    ("/warren.v1.Managers/Update", RequiredRole::Admin),
    ("/warren.v1.Managers/Remove", RequiredRole::Admin),
    ("/warren.v1.Managers/TransferLeadership", RequiredRole::Admin),
    ("/warren.v1.Managers/Backup", RequiredRole::Admin),
    ("/warren.v1.Logs/Read", RequiredRole::Viewer),
    ("/warren.v1.Cluster/Info", RequiredRole::Viewer),
    ("/warren.v1.Cluster/Update", RequiredRole::Admin),
    ("/warren.v1.Cluster/ListBackgroundTasks", RequiredRole::Viewer),
    ("/warren.v1.Cluster/Watch", RequiredRole::Viewer),
    ("/warren.v1.Cluster/StreamEvents", RequiredRole::Viewer),
    ("/warren.v1.Cluster/Why", RequiredRole::Viewer),
    ("/warren.v1.Images/Import", RequiredRole::Operator),
    ("/warren.v1.Images/Pull", RequiredRole::Operator),
    ("/warren.v1.Images/List", RequiredRole::Viewer),
    ("/warren.v1.Images/Prune", RequiredRole::Admin),
    ("/warren.v1.Images/Copy", RequiredRole::Operator),
    ("/warren.v1.Images/FindHolders", RequiredRole::Worker),
    ("/warren.v1.Sessions/Establish", RequiredRole::Worker),
    ("/warren.v1.Sessions/Attach", RequiredRole::Worker),
    ("/warren.v1.Sessions/FetchSecretObjects", RequiredRole::Worker),
    ("/warren.v1.Peers/StreamRaft", RequiredRole::Manager),
    ("/warren.v1.Peers/InstallSnapshot", RequiredRole::Manager),
    ("/warren.v1.Peers/ForwardProposals", RequiredRole::Manager),
    ("/warren.v1.Peers/ListContacts", RequiredRole::Manager),
    ("/warren.v1.Peers/Status", RequiredRole::Manager),
    ("/warren.v1.Peers/TransferLeadership", RequiredRole::Manager),
    ("/warren.v1.Peers/ListNodeReports", RequiredRole::Manager),
    ("/warren.v1.Peers/WatchProgress", RequiredRole::Manager),
    ("/warren.v1.Peers/AwaitNetwork", RequiredRole::Manager),
    ("/warren.v1.Peers/Relay", RequiredRole::Manager),
];

/// What a caller is in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallerRole {
    /// A user with a listed key, or somebody who may open the local socket.
    User(UserRole),
    /// The agent of a node.
    Worker,
    /// A manager.
    Manager,
    /// Without a certificate.
    Anonymous,
}

impl fmt::Display for CallerRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User(role) => role.as_str(),
            Self::Worker => Role::Worker.as_str(),
            Self::Manager => Role::Manager.as_str(),
            Self::Anonymous => "anonymous",
        })
    }
}

/// What `peer` is. A user's key must be listed in the state, whatever certificate it has: an administrator removes it
/// there.
///
/// # Errors
/// `Unauthenticated`, reason `KEY_NOT_LISTED`.
pub fn caller_role(peer: &Peer, state: &State, now: Timestamp) -> Result<CallerRole, Status> {
    match peer.origin() {
        Peer::Certificate { identity, key, .. } => match identity.role() {
            Role::Manager => Ok(CallerRole::Manager),
            Role::Worker => Ok(CallerRole::Worker),
            Role::User => {
                let holder = state.key_holder(key, now).filter(|holder| holder.name == identity.id());
                let role = holder.map(|holder| CallerRole::User(holder.role));
                role.ok_or_else(|| not_listed(identity.id()))
            }
        },
        // The file mode of the socket admits root and the administrators' group of this machine.
        Peer::Local { .. } => Ok(CallerRole::User(UserRole::Admin)),
        Peer::Anonymous { .. } | Peer::Relayed { .. } => Ok(CallerRole::Anonymous),
    }
}

fn not_listed(name: &str) -> Status {
    let message = format!(
        "the cluster does not list this key for user {name}: the user was removed or logged out, or has expired; an \
         administrator makes a new login token with `warren user token {name}`"
    );
    Problem::new(Code::Unauthenticated, KEY_NOT_LISTED, message).into()
}

/// Checks whether a caller with this role may call `path`.
///
/// # Errors
/// `Unauthenticated` without a certificate, `PermissionDenied` with one of another role, `Unimplemented` for a
/// method that does not exist.
pub fn authorize(role: CallerRole, path: &str) -> Result<(), Status> {
    let need = METHODS.iter().find(|(method, _)| *method == path).map(|(_, need)| *need);
    match (role, need) {
        (CallerRole::Anonymous, Some(RequiredRole::Anonymous)) => return Ok(()),
        (CallerRole::Anonymous, _) => {
            return Err(Status::unauthenticated("a client certificate of this cluster is required"));
        }
        _ => {}
    }
    let need = need.ok_or_else(|| Status::unimplemented(format!("there is no method {path}")))?;
    let least = match need {
        RequiredRole::Anonymous => {
            let message = format!(
                "{path} is only for callers without a certificate; the role of this one is {role}; call without one"
            );
            return Err(Status::permission_denied(message));
        }
        RequiredRole::Viewer => Some(UserRole::Viewer),
        RequiredRole::Operator => Some(UserRole::Operator),
        RequiredRole::Admin => Some(UserRole::Admin),
        RequiredRole::Worker | RequiredRole::Manager => None,
    };
    let allowed = match (role, least) {
        (CallerRole::User(role), Some(least)) => role >= least,
        (CallerRole::Worker, None) => need == RequiredRole::Worker,
        (CallerRole::Manager, None) => need == RequiredRole::Manager,
        _ => false,
    };
    let denied = || Status::permission_denied(format!("{path} needs the role {need}; the caller has the role {role}"));
    allowed.then_some(()).ok_or_else(denied)
}

/// Methods of operators that only read.
const OPERATOR_READS: [&str; 1] = ["/warren.v1.SecretObjects/Read"];

/// Whether `path` only reads, so that a repeated call is safe on any manager.
pub(super) fn is_read(path: &str) -> bool {
    METHODS.iter().any(|(method, need)| *method == path && *need == RequiredRole::Viewer)
        || OPERATOR_READS.contains(&path)
}

/// The caller, for audit log lines.
pub fn caller_name<T>(request: &Request<T>) -> String {
    request.extensions().get::<Peer>().map_or_else(|| "unknown".to_owned(), Peer::to_string)
}

/// Checks every call against [`METHODS`] before a handler runs.
#[derive(Clone)]
pub struct AuthorizationLayer(pub Api);

impl AuthorizationLayer {
    fn caller_role(&self, peer: Option<&Peer>, state: &State) -> Result<CallerRole, Status> {
        let peer = peer.ok_or_else(|| Status::unauthenticated("the connection has no peer identity"))?;
        caller_role(peer, state, self.0.clock.now())
    }

    /// As [`caller_role`], with the newest state: this manager may not have applied yet that a key is listed.
    ///
    /// # Errors
    /// As [`caller_role`] and [`Api::read_latest`]; the latter is not a refusal of the key, so that the client or
    /// [`super::proxy`] asks another manager.
    async fn latest_caller_role(&self, peer: Option<&Peer>) -> Result<CallerRole, Status> {
        self.caller_role(peer, &self.0.read_latest().await?.state)
    }
}

/// Handles the call of a caller with that role, or refuses it. A response lasts no longer than the permission.
fn handle<S>(
    layer: &AuthorizationLayer,
    role: Result<CallerRole, Status>,
    inner: &mut S,
    mut request: http::Request<Body>,
) -> CallFuture<S::Error>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
    S::Future: Send + 'static,
{
    let role = role.and_then(|role| authorize(role, request.uri().path()).map(|()| role));
    let role = match role {
        Ok(role) => role,
        Err(status) => {
            let response = status.into_http();
            return Box::pin(async move { Ok(response) });
        }
    };
    request.extensions_mut().insert(role);
    let watched = match request.extensions().get::<Peer>() {
        Some(peer) if matches!(role, CallerRole::User(_)) && !matches!(peer.origin(), Peer::Local { .. }) => {
            let (layer, path) = (layer.clone(), request.uri().path().to_owned());
            Some(Permission { layer, peer: peer.clone(), path })
        }
        _ => None,
    };
    let answer = inner.call(request);
    if let Some(permission) = watched {
        return Box::pin(async move {
            let next_check = Instant::now() + PERMISSION_CHECK_INTERVAL;
            let permitted = |inner| Body::new(PermittedBody { inner, permission, next_check, timer: None });
            Ok(answer.await?.map(permitted))
        });
    }
    if role != CallerRole::Anonymous {
        return Box::pin(answer);
    }
    let late = || Status::deadline_exceeded(format!("request timed out after {ANONYMOUS_DEADLINE:?}"));
    let answer = timeout(ANONYMOUS_DEADLINE, answer);
    Box::pin(async move { answer.await.unwrap_or_else(|_| Ok(late().into_http())) })
}

/// What a user called, to check the permission again.
struct Permission {
    layer: AuthorizationLayer,
    peer: Peer,
    path: String,
}

impl Permission {
    fn check(&self) -> Result<(), Status> {
        let role = self.layer.caller_role(Some(&self.peer), &self.layer.0.store.read().state)?;
        authorize(role, &self.path)
    }
}

/// A response to a user. A stream ends soon after the user is removed, expires, or has another role.
struct PermittedBody {
    inner: Body,
    permission: Permission,
    next_check: Instant,
    /// Ends at the next check; `None` while the response does not wait.
    timer: Option<Pin<Box<Sleep>>>,
}

impl http_body::Body for PermittedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        loop {
            if this.next_check <= Instant::now() {
                if let Err(status) = this.permission.check() {
                    this.inner = Body::empty();
                    let mut trailers = HeaderMap::new();
                    let added = status.add_header(&mut trailers);
                    return Poll::Ready(Some(added.map(|()| Frame::trailers(trailers))));
                }
                this.next_check = Instant::now() + PERMISSION_CHECK_INTERVAL;
                this.timer = None;
            }
            let frame = Pin::new(&mut this.inner).poll_frame(context);
            if frame.is_ready() {
                return frame;
            }
            let timer = this.timer.get_or_insert_with(|| Box::pin(sleep_until(this.next_check)));
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }
}

impl Middleware for AuthorizationLayer {
    fn call<S>(&self, inner: &mut S, mut request: http::Request<Body>) -> CallFuture<S::Error>
    where
        S: Service<http::Request<Body>, Response = http::Response<Body>> + Clone + Send + 'static,
        S::Future: Send + 'static,
    {
        match relayed_caller(&self.0.peers, &request) {
            Ok(Some(caller)) => {
                request.extensions_mut().insert(caller);
            }
            Ok(None) => {}
            Err(status) => return handle(self, Err(status), inner, request),
        }
        let role = self.caller_role(request.extensions().get(), &self.0.store.read().state);
        if !matches!(&role, Err(status) if Problem::from(status).reason == KEY_NOT_LISTED) {
            return handle(self, role, inner, request);
        }
        let (layer, mut inner) = (self.clone(), inner.clone());
        Box::pin(async move {
            let role = layer.latest_caller_role(request.extensions().get()).await;
            poll_fn(|context| inner.poll_ready(context)).await?;
            handle(&layer, role, &mut inner, request).await
        })
    }
}
