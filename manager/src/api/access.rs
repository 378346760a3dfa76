//! Who may call what: the role × method table, in one place, and the layer that holds every call to it.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::timeout;
use tonic::{Request, Status};
use tower::{Layer, Service};
use warren_security::{Peer, Role};
use warren_types::NodeId;

use super::proxy::caller::relayed_caller;
use crate::peers::Peers;

/// How long a stranger's request may take, its own sending included: one write of the cluster, and slack.
const STRANGER_DEADLINE: Duration = Duration::from_secs(12);

/// Least that a caller must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Is nobody that the cluster knows. Whoever it knows has no business there.
    Stranger,
    /// May look.
    Viewer,
    /// May change.
    Admin,
    /// Is a node's agent.
    Worker,
    /// Is a manager. Which ones are let in of those, the service decides: see [`crate::peers::roster`].
    Manager,
}

/// Every method there is. What is not listed is refused.
pub const METHODS: [(&str, Need); 56] = [
    ("/warren.v1.Services/Create", Need::Admin),
    ("/warren.v1.Services/Get", Need::Viewer),
    ("/warren.v1.Services/List", Need::Viewer),
    ("/warren.v1.Services/Scale", Need::Admin),
    ("/warren.v1.Services/Remove", Need::Admin),
    ("/warren.v1.Services/Update", Need::Admin),
    ("/warren.v1.Services/Rollback", Need::Admin),
    ("/warren.v1.Services/History", Need::Viewer),
    ("/warren.v1.Tasks/Get", Need::Viewer),
    ("/warren.v1.Tasks/List", Need::Viewer),
    ("/warren.v1.Nodes/Get", Need::Viewer),
    ("/warren.v1.Nodes/List", Need::Viewer),
    ("/warren.v1.Nodes/Update", Need::Admin),
    ("/warren.v1.Nodes/Remove", Need::Admin),
    ("/warren.v1.Tokens/Create", Need::Admin),
    ("/warren.v1.Tokens/List", Need::Admin),
    ("/warren.v1.Tokens/Remove", Need::Admin),
    ("/warren.v1.Contents/Create", Need::Admin),
    ("/warren.v1.Contents/Update", Need::Admin),
    ("/warren.v1.Contents/Get", Need::Viewer),
    ("/warren.v1.Contents/Read", Need::Viewer),
    ("/warren.v1.Contents/List", Need::Viewer),
    ("/warren.v1.Contents/Remove", Need::Admin),
    ("/warren.v1.Volumes/Create", Need::Admin),
    ("/warren.v1.Volumes/Get", Need::Viewer),
    ("/warren.v1.Volumes/List", Need::Viewer),
    ("/warren.v1.Volumes/Remove", Need::Admin),
    ("/warren.v1.Membership/Join", Need::Stranger),
    ("/warren.v1.Membership/Renew", Need::Worker),
    ("/warren.v1.Membership/Leave", Need::Worker),
    ("/warren.v1.Managers/Join", Need::Stranger),
    ("/warren.v1.Managers/List", Need::Viewer),
    ("/warren.v1.Managers/Update", Need::Admin),
    ("/warren.v1.Managers/Remove", Need::Admin),
    ("/warren.v1.Managers/TransferLeadership", Need::Admin),
    ("/warren.v1.Managers/Backup", Need::Admin),
    ("/warren.v1.Logs/Read", Need::Viewer),
    ("/warren.v1.Cluster/Info", Need::Viewer),
    ("/warren.v1.Cluster/Loops", Need::Viewer),
    ("/warren.v1.Cluster/Watch", Need::Viewer),
    ("/warren.v1.Images/Import", Need::Admin),
    ("/warren.v1.Images/Pull", Need::Admin),
    ("/warren.v1.Images/List", Need::Viewer),
    ("/warren.v1.Images/Prune", Need::Admin),
    ("/warren.v1.Sessions/Establish", Need::Worker),
    ("/warren.v1.Sessions/Attach", Need::Worker),
    ("/warren.v1.Sessions/Fetch", Need::Worker),
    ("/warren.v1.Peers/Converse", Need::Manager),
    ("/warren.v1.Peers/Install", Need::Manager),
    ("/warren.v1.Peers/Forward", Need::Manager),
    ("/warren.v1.Peers/Contacts", Need::Manager),
    ("/warren.v1.Peers/Status", Need::Manager),
    ("/warren.v1.Peers/TransferLeadership", Need::Manager),
    ("/warren.v1.Peers/Heard", Need::Manager),
    ("/warren.v1.Peers/Progress", Need::Manager),
    ("/warren.v1.Peers/Relay", Need::Manager),
];

/// Whether `peer` may call `path`.
///
/// # Errors
/// `Unauthenticated` without a certificate, `PermissionDenied` with one of another role, `Unimplemented` for a
/// method that does not exist.
pub fn allow(peer: &Peer, path: &str) -> Result<(), Status> {
    let need = METHODS.iter().find(|(method, _)| *method == path).map(|(_, need)| *need);
    let role = match peer.origin() {
        Peer::Certificate { identity, .. } => identity.role(),
        // The socket's file mode lets in root and the group that administers this machine.
        Peer::Local { .. } => Role::Admin,
        Peer::Anonymous { .. } if need == Some(Need::Stranger) => return Ok(()),
        Peer::Anonymous { .. } | Peer::Relayed { .. } => {
            return Err(Status::unauthenticated("a client certificate of this cluster is needed"));
        }
    };
    let need = need.ok_or_else(|| Status::unimplemented(format!("there is no method {path}")))?;
    let allowed = match need {
        Need::Stranger => {
            let message = format!(
                "{path} is for machines that the cluster does not know yet, this is a {role:?} of it; call without \
                 a certificate"
            );
            return Err(Status::permission_denied(message));
        }
        Need::Viewer => matches!(role, Role::Viewer | Role::Admin),
        Need::Admin => role == Role::Admin,
        Need::Worker => role == Role::Worker,
        Need::Manager => role == Role::Manager,
    };
    let denied = || Status::permission_denied(format!("{path} needs the role {need:?}, this is a {role:?}"));
    allowed.then_some(()).ok_or_else(denied)
}

/// Whether calling `path` changes nothing, so that it may be called again wherever that is.
pub(super) fn is_read(path: &str) -> bool {
    METHODS.iter().any(|(method, need)| *method == path && *need == Need::Viewer)
}

/// Who is calling, for audit lines.
pub fn caller_of<T>(request: &Request<T>) -> String {
    request.extensions().get::<Peer>().map_or_else(|| "nobody known".to_owned(), Peer::to_string)
}

/// The node whose agent is calling, by its certificate.
///
/// # Errors
/// The caller is not a worker.
pub fn worker_of<T>(request: &Request<T>) -> Result<NodeId, Status> {
    match request.extensions().get::<Peer>().map(Peer::origin) {
        Some(Peer::Certificate { identity, .. }) if identity.role() == Role::Worker => identity
            .id()
            .parse()
            .map_err(|e| Status::unauthenticated(format!("the certificate's node id: {e}"))),
        _ => Err(Status::permission_denied("only a node's agent may call this")),
    }
}

/// Holds every call to the table before any handler sees it.
#[derive(Clone)]
pub struct AccessLayer {
    /// Knows which managers may relay calls.
    pub peers: Peers,
}

/// See [`AccessLayer`].
#[derive(Clone)]
pub struct Access<S> {
    inner: S,
    peers: Peers,
}

impl<S> Layer<S> for AccessLayer {
    type Service = Access<S>;

    fn layer(&self, inner: S) -> Access<S> {
        Access { inner, peers: self.peers.clone() }
    }
}

impl<S, B> Service<http::Request<B>> for Access<S>
where
    S: Service<http::Request<B>, Response = http::Response<tonic::body::Body>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<B>) -> Self::Future {
        let identified = match relayed_caller(&self.peers, &request) {
            Ok(Some(caller)) => {
                request.extensions_mut().insert(caller);
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(status) => Err(status),
        };
        let unknown = || Err(Status::unauthenticated("the connection does not say who is calling"));
        let peer = request.extensions().get::<Peer>();
        let origin = peer.map(Peer::origin);
        let stranger = !matches!(origin, Some(Peer::Certificate { .. } | Peer::Local { .. }));
        let allowed = || peer.map_or_else(unknown, |peer| allow(peer, request.uri().path()));
        match identified.and_then(|()| allowed()) {
            Ok(()) if stranger => {
                let answer = timeout(STRANGER_DEADLINE, self.inner.call(request));
                let late = || Status::deadline_exceeded(format!("not done within {STRANGER_DEADLINE:?}"));
                Box::pin(async move { answer.await.unwrap_or_else(|_| Ok(late().into_http())) })
            }
            Ok(()) => Box::pin(self.inner.call(request)),
            Err(status) => {
                let response = status.into_http();
                Box::pin(async move { Ok(response) })
            }
        }
    }
}
