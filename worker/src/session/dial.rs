//! Opens a connection to one of the managers that this node knows, one after the other.

mod roster;

use std::io;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::transport::Channel;
use warren_process::joining::channel_over;
use warren_security::ConnectError;
use warren_types::{ManagerAddress, NodeId};

use roster::Roster;

/// For the TCP connection, and for the TLS handshake after it.
const CONNECT_DEADLINE: Duration = Duration::from_secs(3);
/// For the TCP connection where there are others: a machine that is gone must not keep a node from those that are left.
const DEADLINE_AMONG_OTHERS: Duration = Duration::from_secs(1);

/// The way to managers.
pub(crate) trait Dialling: Send + Sync {
    /// Connects to the next of them.
    fn dial(&self) -> BoxFuture<'static, Result<Connected, DialError>>;

    /// How many there are.
    fn known(&self) -> usize {
        1
    }

    /// These are the managers by now.
    fn learn(&self, _managers: &[ManagerAddress]) {}

    /// A session with this one was a good one, and is over.
    fn lasted(&self, _manager: &str) {}
}

/// The way to managers, as all that need one share it.
pub(crate) type Dial = Arc<dyn Dialling>;

/// The way to the only manager there is.
impl<F> Dialling for F
where
    F: Fn() -> BoxFuture<'static, Result<Connected, DialError>> + Send + Sync,
{
    fn dial(&self) -> BoxFuture<'static, Result<Connected, DialError>> {
        self()
    }
}

/// A connection to a manager.
pub(crate) struct Connected {
    /// For people and logs.
    pub manager: String,
    /// This end's address, when it has one.
    pub dialled_from: Option<String>,
    /// The one connection; it is not opened again by itself.
    pub channel: Channel,
}

/// Why no connection came about.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("this node knows no manager's address; give at least one")]
    NoAddress,
    #[error("cannot reach manager {manager}: {source}; is it running, and is the address right?")]
    Unreachable { manager: String, source: io::Error },
    #[error("manager {manager} did not accept the connection within {deadline:?}")]
    Timeout { manager: String, deadline: Duration },
    #[error("no secure connection to {manager}: {source}")]
    Insecure { manager: String, source: ConnectError },
    #[error("cannot talk to manager {manager}: {source}")]
    Transport { manager: String, source: tonic::transport::Error },
}

/// Knows the managers and this node's identity.
#[derive(Debug)]
pub(crate) struct Dialer {
    roster: std::sync::Mutex<Roster>,
    tls: Arc<ClientConfig>,
}

impl Dialer {
    /// Dials `managers` (each `host:port`) for this node, and those that it learns of, in turn.
    pub fn new(node: NodeId, managers: Vec<String>, tls: Arc<ClientConfig>) -> Self {
        Self { roster: std::sync::Mutex::new(Roster::new(node, managers)), tls }
    }

    /// The same for a manager's own node: what it was told is that manager.
    pub fn of_manager(self) -> Self {
        let roster = self.roster.into_inner().unwrap_or_else(PoisonError::into_inner);
        Self { roster: std::sync::Mutex::new(roster.of_manager()), ..self }
    }

    fn roster(&self) -> MutexGuard<'_, Roster> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Dialling for Dialer {
    fn dial(&self) -> BoxFuture<'static, Result<Connected, DialError>> {
        let (next, known) = {
            let mut roster = self.roster();
            (roster.next(), roster.len())
        };
        let tls = Arc::clone(&self.tls);
        let deadline = if known > 1 { DEADLINE_AMONG_OTHERS } else { CONNECT_DEADLINE };
        async move { connect(next.ok_or(DialError::NoAddress)?, tls, deadline).await }.boxed()
    }

    fn known(&self) -> usize {
        self.roster().len()
    }

    fn learn(&self, managers: &[ManagerAddress]) {
        self.roster().learn(managers);
    }

    fn lasted(&self, manager: &str) {
        self.roster().lasted(manager);
    }
}

async fn connect(
    manager: String,
    tls: Arc<ClientConfig>,
    deadline: Duration,
) -> Result<Connected, DialError> {
    let late = |_| DialError::Timeout { manager: manager.clone(), deadline };
    let unreachable = |source| DialError::Unreachable { manager: manager.clone(), source };
    let stream = timeout(deadline, TcpStream::connect(&manager)).await.map_err(late)?;
    let stream = stream.map_err(unreachable)?;
    // Reports and acknowledgements are small and waited for.
    stream.set_nodelay(true).map_err(unreachable)?;
    let dialled_from = stream.local_addr().ok().map(|address| address.ip().to_string());
    let secure = warren_security::connect(stream, tls, CONNECT_DEADLINE).await;
    let secure = secure.map_err(|source| DialError::Insecure { manager: manager.clone(), source })?;
    let channel = channel_over(secure).await;
    let channel = channel.map_err(|source| DialError::Transport { manager: manager.clone(), source })?;
    Ok(Connected { manager, dialled_from, channel })
}

#[cfg(test)]
mod tests;
