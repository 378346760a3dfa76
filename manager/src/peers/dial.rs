//! Connections to other managers: mutual TLS with this manager's certificate, and the right manager at the other end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use warren_security::{
    ConnectError, Identity, IdentityError, LiveCertificate, Roots, TlsError, client_config,
};
use warren_types::{ManagerAddress, ManagerId, MemberId};

use super::directory::Directory;
use super::roster::{Refused, manager_of};

/// For the TCP connection, and for the TLS handshake after it.
const CONNECT_DEADLINE: Duration = Duration::from_secs(2);
/// A peer that is silent on an open connection is asked for a sign after the one, and given up after the other.
const KEEPALIVE: Duration = Duration::from_secs(1);
const KEEPALIVE_DEADLINE: Duration = Duration::from_millis(1500);
/// What may be on its way to us unread, on one stream and on one connection: as at the serving end.
const STREAM_WINDOW: u32 = 128 << 10;
const CONNECTION_WINDOW: u32 = 32 << 20;

/// Why no connection came about.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// Nobody has said yet where it is.
    #[error("nobody has said yet where member {0} is")]
    NoAddress(MemberId),
    /// Nobody is there.
    #[error("cannot reach {address}: {source}")]
    Unreachable {
        /// Where.
        address: ManagerAddress,
        /// Why not.
        source: io::Error,
    },
    /// The connection was not accepted.
    #[error("{address} did not accept the connection within {CONNECT_DEADLINE:?}")]
    Late {
        /// Where.
        address: ManagerAddress,
    },
    /// TLS did not come about.
    #[error("no secure connection to {address}: {source}")]
    Insecure {
        /// Where.
        address: ManagerAddress,
        /// Why not.
        source: ConnectError,
    },
    /// Its certificate cannot be read.
    #[error("{address} shows a certificate that cannot be read: {source}")]
    Certificate {
        /// Where.
        address: ManagerAddress,
        /// What is wrong.
        source: IdentityError,
    },
    /// Of another cluster, or not a manager.
    #[error("at {address}: {source}")]
    Stranger {
        /// Where.
        address: ManagerAddress,
        /// Who that is.
        source: Refused,
    },
    /// Another manager answers.
    #[error("at {address} is manager {found}, and {wanted} was wanted; it moved, or another took its place")]
    Other {
        /// Where.
        address: ManagerAddress,
        /// Who was looked for.
        wanted: ManagerId,
        /// Who is there.
        found: ManagerId,
    },
    /// HTTP/2 did not come about.
    #[error("cannot talk to {address}: {source}")]
    Transport {
        /// Where.
        address: ManagerAddress,
        /// Why not.
        source: tonic::transport::Error,
    },
}

/// A call found no connection, so that nothing of it was sent.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the connection was lost")]
pub struct Gone;

/// Whether a call failed before anything of it was sent.
pub fn was_not_sent(status: &tonic::Status) -> bool {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if error.is::<Gone>() || error.is::<DialError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Dials managers of one cluster. Cheap to clone.
#[derive(Clone)]
pub struct Dialer {
    tls: Arc<ClientConfig>,
    cluster: Arc<str>,
}

impl Dialer {
    /// Shows `certificate`, trusts `roots`, and speaks to managers of `cluster` only.
    ///
    /// # Errors
    /// The roots cannot be used.
    pub fn new(roots: &Roots, certificate: Arc<LiveCertificate>, cluster: &str) -> Result<Self, TlsError> {
        Ok(Self { tls: client_config(roots, Some(certificate))?, cluster: cluster.into() })
    }

    /// The cluster whose managers are spoken to.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// A connection to the manager `wanted`.
    async fn dial(
        &self,
        address: &ManagerAddress,
        wanted: ManagerId,
    ) -> Result<impl AsyncRead + AsyncWrite + Send + Unpin + use<>, DialError> {
        let address = || address.clone();
        let unreachable = |source| DialError::Unreachable { address: address(), source };
        let (host, port) = (address().host().to_owned(), address().port());
        let stream = timeout(CONNECT_DEADLINE, TcpStream::connect((host, port))).await;
        let stream = stream.map_err(|_| DialError::Late { address: address() })?.map_err(unreachable)?;
        // Each message is waited for: do not hold it back to fill a segment.
        stream.set_nodelay(true).map_err(unreachable)?;
        let secure = warren_security::connect(stream, self.tls.clone(), CONNECT_DEADLINE).await;
        let secure = secure.map_err(|source| DialError::Insecure { address: address(), source })?;
        let certificate = secure.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let certificate = certificate.expect("a server without a certificate does not pass TLS");
        let identity = Identity::from_der(certificate);
        let identity = identity.map_err(|source| DialError::Certificate { address: address(), source })?;
        let found = manager_of(&identity, &self.cluster);
        let found = found.map_err(|source| DialError::Stranger { address: address(), source })?;
        if found != wanted {
            return Err(DialError::Other { address: address(), wanted, found });
        }
        Ok(secure)
    }

    /// A channel over one connection to the manager `wanted`: when it is lost, calls fail.
    ///
    /// # Errors
    /// [`DialError`].
    pub async fn channel(&self, address: &ManagerAddress, wanted: ManagerId) -> Result<Channel, DialError> {
        let stream = self.dial(address, wanted).await?;
        let transport = |source| DialError::Transport { address: address.clone(), source };
        over(stream).await.map_err(transport)
    }

    /// A channel to `member`, wherever it is by then: it is dialled with the first call, and again with the first call
    /// after the connection was lost.
    pub fn lazily(&self, directory: Directory, member: MemberId) -> Channel {
        let dialer = self.clone();
        let connector = tower::service_fn(move |_: http::Uri| {
            let (dialer, directory) = (dialer.clone(), directory.clone());
            async move {
                let way = directory.way(member).ok_or(DialError::NoAddress(member))?;
                let mut failed = DialError::NoAddress(member);
                for address in &way.addresses {
                    match dialer.dial(address, way.id).await {
                        Ok(stream) => return Ok(TokioIo::new(stream)),
                        Err(error) => failed = error,
                    }
                }
                Err(failed)
            }
        });
        endpoint().connect_with_connector_lazy(connector)
    }
}

fn endpoint() -> Endpoint {
    // The address is never dialled, and https would be refused since TLS is done already.
    Endpoint::from_static("http://warren-manager")
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE_DEADLINE)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
}

/// A channel over exactly this connection.
async fn over<S>(stream: S) -> Result<Channel, tonic::transport::Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let stream = Arc::new(tokio::sync::Mutex::new(Some(stream)));
    let connector = tower::service_fn(move |_: http::Uri| {
        let stream = Arc::clone(&stream);
        async move { stream.lock().await.take().map(TokioIo::new).ok_or(Gone) }
    });
    endpoint().connect_with_connector(connector).await
}
