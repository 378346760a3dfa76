//! Connects to one of the known managers, in turn.

mod manager_list;

use std::io;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::Channel;
use warren_daemon::join::channel_over;
use warren_proto::v1;
use warren_proto::v1::sessions_client::SessionsClient;
use warren_security::{ConnectError, Identity, connect_accepted, without_certificate};
use warren_types::{ManagerAddress, ManagerId, NodeId};

use manager_list::ManagerList;

/// Time limit of the TCP connection, and of the TLS handshake after it.
const CONNECT_DEADLINE: Duration = Duration::from_secs(if cfg!(test) { 30 } else { 3 });
/// Time limit of the TCP connection with several managers: a lost machine must not keep a node from the
/// others.
const FAILOVER_CONNECT_DEADLINE: Duration = Duration::from_secs(1);
/// Time limit of the answer of a manager that refuses the certificate.
const CHECK_DEADLINE: Duration = Duration::from_secs(if cfg!(test) { 30 } else { 5 });

/// Connects to managers.
pub(crate) trait ManagerDialer: Send + Sync {
    /// Connects to the next manager.
    fn dial(&self) -> BoxFuture<'static, Result<ManagerConnection, ManagerDialError>>;

    /// The same without the certificate of this node, which managers refuse once it has expired. Connections that have
    /// no certificates are dialled as always.
    fn dial_anonymously(&self) -> BoxFuture<'static, Result<ManagerConnection, ManagerDialError>> {
        self.dial()
    }

    /// Number of known managers.
    fn manager_count(&self) -> usize {
        1
    }

    /// Replaces the list of managers.
    fn set_managers(&self, _managers: &[ManagerAddress]) {}

    /// Records the end of a good session with this manager.
    fn record_good_session(&self, _manager: &str) {}

    /// Asks a manager that refuses the certificate of this node whether the node was removed: its answer if that is an
    /// error.
    fn check_node(
        &self,
        _manager: String,
        _request: v1::CheckNodeRequest,
    ) -> BoxFuture<'static, Option<Status>> {
        std::future::ready(None).boxed()
    }
}

/// A dialer that all its users share.
pub(crate) type SharedDialer = Arc<dyn ManagerDialer>;

/// A dialer with a single manager.
impl<F> ManagerDialer for F
where
    F: Fn() -> BoxFuture<'static, Result<ManagerConnection, ManagerDialError>> + Send + Sync,
{
    fn dial(&self) -> BoxFuture<'static, Result<ManagerConnection, ManagerDialError>> {
        self()
    }
}

/// A connection to a manager.
pub(crate) struct ManagerConnection {
    /// Name for messages and logs.
    pub manager: String,
    /// The manager that the certificate of the other side is for, if it shows one.
    pub id: Option<ManagerId>,
    /// Local address, if it has one.
    pub dialled_from: Option<String>,
    /// The only connection; it is not re-established by itself.
    pub channel: Channel,
}

/// No connection was established.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManagerDialError {
    #[error("no manager address is known; configure at least one")]
    NoAddress,
    #[error("cannot reach manager {manager}: {source}; is it running, and is the address right?")]
    Unreachable { manager: String, source: io::Error },
    #[error("manager {manager} did not accept the connection within {deadline:?}")]
    Timeout { manager: String, deadline: Duration },
    #[error("TLS handshake with manager {manager} failed: {source}")]
    Insecure { manager: String, source: ConnectError },
    #[error("cannot open an HTTP/2 connection to manager {manager}: {source}")]
    Transport { manager: String, source: tonic::transport::Error },
}

impl ManagerDialError {
    /// The manager that refuses the certificate of this node, because it is revoked or has expired.
    pub fn refused_by(&self) -> Option<&str> {
        match self {
            Self::Insecure { manager, source: ConnectError::Revoked | ConnectError::Expired } => {
                Some(manager)
            }
            _ => None,
        }
    }

    /// Whether the manager has left the cluster, as far as this node knows.
    pub fn is_departed_manager(&self) -> bool {
        matches!(self, Self::Insecure { source: ConnectError::RevokedManager, .. })
    }

    /// Whether the other side is no manager by what this node trusts, whatever the time is.
    pub fn is_untrusted_manager(&self) -> bool {
        matches!(
            self,
            Self::Insecure { source, .. }
                if matches!(source, ConnectError::NotAManager(_)) && !source.is_outside_validity()
        )
    }

    /// Whether a manager refuses the certificate of this node because it is not valid now by the manager's clock.
    pub fn is_certificate_expired(&self) -> bool {
        matches!(self, Self::Insecure { source: ConnectError::Expired, .. })
    }
}

/// Dials managers over TLS as this node.
#[derive(Debug)]
pub(crate) struct TlsDialer {
    managers: std::sync::Mutex<ManagerList>,
    tls: Arc<ClientConfig>,
    anonymous: Arc<ClientConfig>,
}

impl TlsDialer {
    /// Dials `managers` (each `host:port`), and those that they announce, in turn.
    pub fn new(node: NodeId, managers: Vec<String>, tls: Arc<ClientConfig>) -> Self {
        let (managers, anonymous) = (ManagerList::new(node, managers), without_certificate(&tls));
        Self { managers: std::sync::Mutex::new(managers), tls, anonymous }
    }

    /// The same for a manager's own node: the configured address is that manager.
    pub fn for_manager_node(self) -> Self {
        let directory = self.managers.into_inner().unwrap_or_else(PoisonError::into_inner);
        Self { managers: std::sync::Mutex::new(directory.for_manager_node()), ..self }
    }

    fn managers(&self) -> MutexGuard<'_, ManagerList> {
        self.managers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dial_next(
        &self,
        tls: &Arc<ClientConfig>,
    ) -> BoxFuture<'static, Result<ManagerConnection, ManagerDialError>> {
        let (next, known) = {
            let mut directory = self.managers();
            (directory.next(), directory.len())
        };
        let tls = Arc::clone(tls);
        let deadline = if known > 1 { FAILOVER_CONNECT_DEADLINE } else { CONNECT_DEADLINE };
        async move { connect(next.ok_or(ManagerDialError::NoAddress)?, tls, deadline).await }.boxed()
    }
}

impl ManagerDialer for TlsDialer {
    fn dial(&self) -> BoxFuture<'static, Result<ManagerConnection, ManagerDialError>> {
        self.dial_next(&self.tls)
    }

    fn dial_anonymously(&self) -> BoxFuture<'static, Result<ManagerConnection, ManagerDialError>> {
        self.dial_next(&self.anonymous)
    }

    fn manager_count(&self) -> usize {
        self.managers().len()
    }

    fn set_managers(&self, managers: &[ManagerAddress]) {
        self.managers().set_discovered(managers);
    }

    fn record_good_session(&self, manager: &str) {
        self.managers().record_good_session(manager);
    }

    fn check_node(
        &self,
        manager: String,
        request: v1::CheckNodeRequest,
    ) -> BoxFuture<'static, Option<Status>> {
        let anonymous = Arc::clone(&self.anonymous);
        let answer = async move {
            let connected = connect(manager, anonymous, CONNECT_DEADLINE).await.ok()?;
            SessionsClient::new(connected.channel).check_node(request).await.err()
        };
        async move { timeout(CHECK_DEADLINE, answer).await.ok().flatten() }.boxed()
    }
}

async fn connect(
    manager: String,
    tls: Arc<ClientConfig>,
    deadline: Duration,
) -> Result<ManagerConnection, ManagerDialError> {
    let late = |_| ManagerDialError::Timeout { manager: manager.clone(), deadline };
    let unreachable = |source| ManagerDialError::Unreachable { manager: manager.clone(), source };
    let stream = timeout(deadline, TcpStream::connect(&manager)).await.map_err(late)?;
    let stream = stream.map_err(unreachable)?;
    // Reports and acknowledgements are small and latency-bound.
    stream.set_nodelay(true).map_err(unreachable)?;
    let dialled_from = stream.local_addr().ok().map(|address| address.ip().to_string());
    let secure = connect_accepted(stream, tls, CONNECT_DEADLINE).await;
    let secure = secure.map_err(|source| ManagerDialError::Insecure { manager: manager.clone(), source })?;
    let certificate = secure.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let identity = certificate.and_then(|certificate| Identity::from_der(certificate).ok());
    let id = identity.and_then(|identity| identity.id().parse().ok());
    let channel = channel_over(secure).await;
    let channel =
        channel.map_err(|source| ManagerDialError::Transport { manager: manager.clone(), source })?;
    Ok(ManagerConnection { manager, id, dialled_from, channel })
}

#[cfg(test)]
mod tests;
