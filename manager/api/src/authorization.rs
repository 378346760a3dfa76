//! Authorization: the layer that checks every call against the table of [`super::methods`].

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
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
use warren_security::{Identity, Peer, Role};
use warren_store::problem::status_of;
use warren_types::{PublicKeyHash, Timestamp, UserRole, Violation};

use super::Api;
use super::audited_call::AuditedCall;
use super::methods::{CallerRole, METHODS, RequiredRole};
use super::middleware::{CallFuture, Middleware};
use super::relayed_caller::relayed_caller;

/// Deadline of a request without a certificate, including the time to send it: one cluster write plus slack.
const ANONYMOUS_DEADLINE: Duration = Duration::from_secs(12);
/// Interval of the checks whether the caller of a stream is still permitted.
const PERMISSION_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Reason of the refusal of a user's certificate without a listed key.
pub const KEY_NOT_LISTED: &str = "KEY_NOT_LISTED";
/// Reason of the refusal of a machine's certificate for the key of another.
pub const FOREIGN_KEY: &str = "FOREIGN_KEY";

/// What `peer` is. A user's key must be listed in the state, whatever certificate it has: an administrator removes it
/// there. The certificate of a node must be for the key of the node.
///
/// # Errors
/// `Unauthenticated`, reason `KEY_NOT_LISTED` or `FOREIGN_KEY`.
pub fn caller_role(peer: &Peer, state: &State, now: Timestamp) -> Result<CallerRole, Status> {
    match peer.origin() {
        Peer::Certificate { identity, key, .. } => match identity.role() {
            Role::Manager => Ok(CallerRole::Manager),
            Role::Worker => match identity.id().parse().ok().and_then(|id| state.node(&id)) {
                Some(node) if !identity.is_of_node(node, key) => Err(foreign_key(identity)),
                _ => Ok(CallerRole::Worker),
            },
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

/// Refuses a manager's certificate for the key of somebody else, whoever signed it.
///
/// # Errors
/// `Unauthenticated`, reason `FOREIGN_KEY`.
fn check_manager_key(peer: Option<&Peer>) -> Result<(), Status> {
    let Some(Peer::Certificate { identity, key, .. }) = peer else { return Ok(()) };
    if identity.role() != Role::Manager || identity.is_of_key(key) {
        return Ok(());
    }
    Err(foreign_key(identity))
}

fn foreign_key(identity: &Identity) -> Status {
    let message = format!(
        "the certificate of {identity} is for the key of another; the cluster knows the key of this id"
    );
    Problem::new(Code::Unauthenticated, FOREIGN_KEY, message).into()
}

fn not_listed(name: &str) -> Status {
    let message = format!(
        "the cluster does not list this key for user {name}: the user was removed or logged out, or has expired, or \
         the key was revoked; an administrator makes a new login token with `warren user token {name}`"
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
        (CallerRole::Anonymous, Some(RequiredRole::Anonymous | RequiredRole::Renewal(_))) => return Ok(()),
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
        RequiredRole::Worker | RequiredRole::Manager | RequiredRole::Renewal(_) => None,
    };
    let allowed = match (role, least) {
        (CallerRole::User(role), Some(least)) => role >= least,
        (CallerRole::User(_), None) => need == RequiredRole::Renewal(Role::User),
        (CallerRole::Worker, None) => {
            matches!(need, RequiredRole::Worker | RequiredRole::Renewal(Role::Worker))
        }
        (CallerRole::Manager, None) => need == RequiredRole::Manager,
        _ => false,
    };
    let denied =
        || Status::permission_denied(format!("{path} needs the role {need}; the caller has the role {role}"));
    allowed.then_some(()).ok_or_else(denied)
}

/// Checks that a caller with a certificate requests another one for its own key only.
///
/// # Errors
/// `InvalidArgument`, with the path of the request.
pub(super) fn check_own_key<T>(request: &Request<T>, key: &PublicKeyHash) -> Result<(), Status> {
    match request.extensions().get::<Peer>().map(Peer::origin) {
        Some(Peer::Certificate { key: shown, .. }) if shown != key => {
            let message = "is for another key than the certificate of the connection; a certificate is renewed with \
                           its key";
            Err(status_of(Violation::new("certificateRequest", message)))
        }
        _ => Ok(()),
    }
}

/// Checks every call against [`METHODS`] before a handler runs.
#[derive(Clone)]
pub struct AuthorizationLayer(pub Arc<Api>);

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
    if let Some(call) = request.extensions().get::<AuditedCall>() {
        call.permitted_as(role);
    }
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
        if let Err(status) = check_manager_key(request.extensions().get()) {
            return handle(self, Err(status), inner, request);
        }
        match relayed_caller(&self.0.peers, &request) {
            Ok(Some(caller)) => {
                if let Some(call) = request.extensions().get::<AuditedCall>() {
                    call.relayed();
                }
                request.extensions_mut().insert(caller);
            }
            Ok(None) => {}
            Err(status) => return handle(self, Err(status), inner, request),
        }
        let role = self.caller_role(request.extensions().get(), &self.0.store.read().state);
        let is_unlisted =
            |status: &Status| [KEY_NOT_LISTED, FOREIGN_KEY].contains(&Problem::from(status).reason.as_str());
        if !role.as_ref().err().is_some_and(is_unlisted) {
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
