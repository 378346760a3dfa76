//! Opens a connection to one of the managers that this node knows, one after the other.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use warren_security::ConnectError;

use crate::session::Dial;

/// For the TCP connection, and for the TLS handshake after it.
const CONNECT_DEADLINE: Duration = Duration::from_secs(3);

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
    managers: Vec<String>,
    tls: Arc<ClientConfig>,
    next: AtomicUsize,
}

impl Dialer {
    /// Dials `managers` (each `host:port`) in turn.
    pub fn new(managers: Vec<String>, tls: Arc<ClientConfig>) -> Self {
        Self { managers, tls, next: AtomicUsize::new(0) }
    }

    /// The dialer as the session uses it.
    pub fn into_dial(self) -> Dial {
        let dialer = Arc::new(self);
        Arc::new(move || {
            let dialer = Arc::clone(&dialer);
            async move { dialer.dial().await }.boxed()
        })
    }

    async fn dial(&self) -> Result<Connected, DialError> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let place = turn.checked_rem(self.managers.len()).ok_or(DialError::NoAddress)?;
        let manager = self.managers[place].clone();
        let late = |_| DialError::Timeout { manager: manager.clone(), deadline: CONNECT_DEADLINE };
        let unreachable = |source| DialError::Unreachable { manager: manager.clone(), source };
        let stream = timeout(CONNECT_DEADLINE, TcpStream::connect(&manager)).await.map_err(late)?;
        let stream = stream.map_err(unreachable)?;
        // Reports and acknowledgements are small and waited for.
        stream.set_nodelay(true).map_err(unreachable)?;
        let dialled_from = stream.local_addr().ok().map(|address| address.ip().to_string());
        let secure = warren_security::connect(stream, Arc::clone(&self.tls), CONNECT_DEADLINE).await;
        let secure = secure.map_err(|source| DialError::Insecure { manager: manager.clone(), source })?;
        let channel = channel(secure).await;
        let channel = channel.map_err(|source| DialError::Transport { manager: manager.clone(), source })?;
        Ok(Connected { manager, dialled_from, channel })
    }
}

/// A channel over exactly this connection: when it is lost, calls fail instead of dialling again.
pub(crate) async fn channel<S>(stream: S) -> Result<Channel, tonic::transport::Error>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let stream = Arc::new(Mutex::new(Some(stream)));
    let connector = tower::service_fn(move |_| {
        let stream = Arc::clone(&stream);
        async move {
            let gone = || io::Error::new(io::ErrorKind::NotConnected, "the connection was lost");
            stream.lock().await.take().map(TokioIo::new).ok_or_else(gone)
        }
    });
    // The address is never dialled, and https would be refused since TLS is done already.
    Endpoint::from_static("http://manager").connect_with_connector(connector).await
}

#[cfg(test)]
mod tests;
