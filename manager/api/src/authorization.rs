//! Authorization: the table of methods and required roles, and the layer that checks every call against it.

use std::time::Duration;

use tokio::time::timeout;
use tonic::body::Body;
use tonic::{Request, Status};
use tower::Service;
use warren_peers::Peers;
use warren_security::{Peer, Role};

use super::middleware::{CallFuture, Middleware};
use super::relayed_caller::relayed_caller;

/// Deadline of a request without a certificate, including the time to send it: one cluster write plus slack.
const ANONYMOUS_DEADLINE: Duration = Duration::from_secs(12);

/// The role that a method requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequiredRole {
    /// A caller without an identity. Callers with an identity are rejected.
    Anonymous,
    /// Reads.
    Viewer,
    /// Reads and writes.
    Admin,
    /// The agent of a node.
    Worker,
    /// A manager. [`warren_replica::MemberDirectory`] decides which managers are admitted.
    Manager,
}

/// All methods. A method that is not listed is rejected.
pub const METHODS: [(&str, RequiredRole); 71] = [
    ("/warren.v1.Services/Create", RequiredRole::Admin),
    ("/warren.v1.Services/Get", RequiredRole::Viewer),
    ("/warren.v1.Services/List", RequiredRole::Viewer),
    ("/warren.v1.Services/Scale", RequiredRole::Admin),
    ("/warren.v1.Services/Remove", RequiredRole::Admin),
    ("/warren.v1.Services/Update", RequiredRole::Admin),
    ("/warren.v1.Services/Rollback", RequiredRole::Admin),
    ("/warren.v1.Services/Resume", RequiredRole::Admin),
    ("/warren.v1.Services/ListRevisions", RequiredRole::Viewer),
    // Not for viewers: it tells whether bytes are those of a secret.
    ("/warren.v1.Services/Forecast", RequiredRole::Admin),
    ("/warren.v1.Tasks/Get", RequiredRole::Viewer),
    ("/warren.v1.Tasks/List", RequiredRole::Viewer),
    ("/warren.v1.Tasks/Exec", RequiredRole::Admin),
    ("/warren.v1.Tasks/Restart", RequiredRole::Admin),
    ("/warren.v1.Nodes/Get", RequiredRole::Viewer),
    ("/warren.v1.Nodes/List", RequiredRole::Viewer),
    ("/warren.v1.Nodes/Update", RequiredRole::Admin),
    ("/warren.v1.Nodes/Remove", RequiredRole::Admin),
    ("/warren.v1.Nodes/Verify", RequiredRole::Admin),
    ("/warren.v1.Tokens/Create", RequiredRole::Admin),
    ("/warren.v1.Tokens/List", RequiredRole::Admin),
    ("/warren.v1.Tokens/Remove", RequiredRole::Admin),
    ("/warren.v1.SecretObjects/Create", RequiredRole::Admin),
    ("/warren.v1.SecretObjects/Update", RequiredRole::Admin),
    ("/warren.v1.SecretObjects/Get", RequiredRole::Viewer),
    ("/warren.v1.SecretObjects/Read", RequiredRole::Viewer),
    ("/warren.v1.SecretObjects/List", RequiredRole::Viewer),
    ("/warren.v1.SecretObjects/Remove", RequiredRole::Admin),
    ("/warren.v1.Networks/Create", RequiredRole::Admin),
    ("/warren.v1.Networks/Get", RequiredRole::Viewer),
    ("/warren.v1.Networks/List", RequiredRole::Viewer),
    ("/warren.v1.Networks/Remove", RequiredRole::Admin),
    ("/warren.v1.Volumes/Create", RequiredRole::Admin),
    ("/warren.v1.Volumes/Get", RequiredRole::Viewer),
    ("/warren.v1.Volumes/List", RequiredRole::Viewer),
    ("/warren.v1.Volumes/Remove", RequiredRole::Admin),
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
    ("/warren.v1.Images/Import", RequiredRole::Admin),
    ("/warren.v1.Images/Pull", RequiredRole::Admin),
    ("/warren.v1.Images/List", RequiredRole::Viewer),
    ("/warren.v1.Images/Prune", RequiredRole::Admin),
    ("/warren.v1.Images/Copy", RequiredRole::Admin),
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

/// Checks whether `peer` may call `path`.
///
/// # Errors
/// `Unauthenticated` without a certificate, `PermissionDenied` with one of another role, `Unimplemented` for a
/// method that does not exist.
pub fn authorize(peer: &Peer, path: &str) -> Result<(), Status> {
    let need = METHODS.iter().find(|(method, _)| *method == path).map(|(_, need)| *need);
    let role = match peer.origin() {
        Peer::Certificate { identity, .. } => identity.role(),
        // The file mode of the socket admits root and the administrators' group of this machine.
        Peer::Local { .. } => Role::Admin,
        Peer::Anonymous { .. } if need == Some(RequiredRole::Anonymous) => return Ok(()),
        Peer::Anonymous { .. } | Peer::Relayed { .. } => {
            return Err(Status::unauthenticated("a client certificate of this cluster is required"));
        }
    };
    let need = need.ok_or_else(|| Status::unimplemented(format!("there is no method {path}")))?;
    let allowed = match need {
        RequiredRole::Anonymous => {
            let message = format!(
                "{path} is only for machines that have not joined; the caller has the role {role:?}; call \
                 without a certificate"
            );
            return Err(Status::permission_denied(message));
        }
        RequiredRole::Viewer => matches!(role, Role::Viewer | Role::Admin),
        RequiredRole::Admin => role == Role::Admin,
        RequiredRole::Worker => role == Role::Worker,
        RequiredRole::Manager => role == Role::Manager,
    };
    let denied = || Status::permission_denied(format!("{path} needs the role {need:?}, this is a {role:?}"));
    allowed.then_some(()).ok_or_else(denied)
}

/// Whether `path` only reads, so that a repeated call is safe on any manager.
pub(super) fn is_read(path: &str) -> bool {
    METHODS.iter().any(|(method, need)| *method == path && *need == RequiredRole::Viewer)
}

/// The caller, for audit log lines.
pub fn caller_name<T>(request: &Request<T>) -> String {
    request.extensions().get::<Peer>().map_or_else(|| "unknown".to_owned(), Peer::to_string)
}

/// Checks every call against [`METHODS`] before a handler runs.
#[derive(Clone)]
pub struct AuthorizationLayer {
    /// Decides which managers may relay calls.
    pub peers: Peers,
}

impl Middleware for AuthorizationLayer {
    fn call<S>(&self, inner: &mut S, mut request: http::Request<Body>) -> CallFuture<S::Error>
    where
        S: Service<http::Request<Body>, Response = http::Response<Body>>,
        S::Future: Send + 'static,
    {
        let identified = match relayed_caller(&self.peers, &request) {
            Ok(Some(caller)) => {
                request.extensions_mut().insert(caller);
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(status) => Err(status),
        };
        let no_identity = || Err(Status::unauthenticated("the connection has no peer identity"));
        let peer = request.extensions().get::<Peer>();
        let origin = peer.map(Peer::origin);
        let is_anonymous = !matches!(origin, Some(Peer::Certificate { .. } | Peer::Local { .. }));
        let allowed = || peer.map_or_else(no_identity, |peer| authorize(peer, request.uri().path()));
        match identified.and_then(|()| allowed()) {
            Ok(()) if is_anonymous => {
                let answer = timeout(ANONYMOUS_DEADLINE, inner.call(request));
                let late =
                    || Status::deadline_exceeded(format!("request timed out after {ANONYMOUS_DEADLINE:?}"));
                Box::pin(async move { answer.await.unwrap_or_else(|_| Ok(late().into_http())) })
            }
            Ok(()) => Box::pin(inner.call(request)),
            Err(status) => {
                let response = status.into_http();
                Box::pin(async move { Ok(response) })
            }
        }
    }
}
