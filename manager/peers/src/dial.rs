//! Connections to other managers: mutual TLS, and a check that the expected manager answers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use warren_replica::PeerRejection;
use warren_security::{
    ConnectError, Identity, IdentityError, ReloadableCertificate, TlsError, Trust, connect_accepted,
    trusting_client_config, without_certificate,
};
use warren_types::{ManagerAddress, ManagerId, MemberId};

use super::addresses::PeerAddresses;
use super::rejection::manager_id;

/// For the TCP connection, and again for the TLS handshake. Longer in tests of this crate: a loaded machine may pause
/// either side.
const CONNECT_DEADLINE: Duration = Duration::from_secs(if cfg!(test) { 30 } else { 2 });
/// Idle time before a keepalive ping, and the time to wait for its reply. The latter is longer in tests as well.
const KEEPALIVE: Duration = Duration::from_secs(1);
const KEEPALIVE_DEADLINE: Duration = Duration::from_millis(if cfg!(test) { 5000 } else { 1500 });
/// Flow control windows per stream and per connection, and the largest frame; the same as on the server.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 64 << 20;
const MAX_FRAME: u32 = 128 << 10;

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum PeerDialError {
    /// No address of the member is known.
    #[error("address of member {0} is unknown")]
    NoAddress(MemberId),
    /// The TCP connection failed.
    #[error("cannot reach {address}: {source}")]
    Unreachable {
        /// The address.
        address: ManagerAddress,
        /// The cause.
        source: io::Error,
    },
    /// The connection timed out.
    #[error("timeout connecting to {address} after {CONNECT_DEADLINE:?}")]
    Timeout {
        /// The address.
        address: ManagerAddress,
    },
    /// The TLS handshake failed.
    #[error("TLS handshake with {address} failed: {source}")]
    Tls {
        /// The address.
        address: ManagerAddress,
        /// The cause.
        source: ConnectError,
    },
    /// The peer's certificate is invalid.
    #[error("invalid certificate of {address}: {source}")]
    Certificate {
        /// The address.
        address: ManagerAddress,
        /// The cause.
        source: IdentityError,
    },
    /// The peer belongs to another cluster or is not a manager.
    #[error("{address}: {source}")]
    NotAPeer {
        /// The address.
        address: ManagerAddress,
        /// Why it is rejected.
        source: PeerRejection,
    },
    /// The certificate has a manager's id and another key.
    #[error(
        "{address} has a certificate of manager {found} that is not for its key: somebody has the CA's key"
    )]
    ForeignKey {
        /// The address.
        address: ManagerAddress,
        /// The id in the certificate.
        found: ManagerId,
    },
    /// Another manager answered.
    #[error("{address} is manager {found}, expected {desired}; the manager moved or was replaced")]
    WrongManager {
        /// The address.
        address: ManagerAddress,
        /// The expected manager.
        desired: ManagerId,
        /// The manager that answered.
        found: ManagerId,
    },
    /// The HTTP/2 handshake failed.
    #[error("HTTP/2 handshake with {address} failed: {source}")]
    Transport {
        /// The address.
        address: ManagerAddress,
        /// The cause.
        source: tonic::transport::Error,
    },
}

/// A call had no connection; nothing of it was sent.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the connection was lost")]
pub struct NotConnected;

/// Whether a call failed before any of it was sent.
pub fn was_not_sent(status: &tonic::Status) -> bool {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if error.is::<NotConnected>() || error.is::<PeerDialError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Dials managers of one cluster. Cheap to clone.
#[derive(Clone)]
pub struct PeerDialer {
    tls: Arc<ClientConfig>,
    anonymous: Arc<ClientConfig>,
    cluster: Arc<str>,
}

impl PeerDialer {
    /// Presents `certificate`, and accepts only managers of `cluster`.
    ///
    /// # Errors
    /// The CAs are invalid.
    pub fn new(
        trust: Arc<Trust>,
        certificate: Arc<ReloadableCertificate>,
        cluster: &str,
    ) -> Result<Self, TlsError> {
        let tls = trusting_client_config(trust, Some(certificate))?;
        Ok(Self { anonymous: without_certificate(&tls), tls, cluster: cluster.into() })
    }

    /// The cluster whose managers are dialled.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Connects to the manager with the given id, which has accepted the certificate then.
    async fn dial(
        &self,
        tls: &Arc<ClientConfig>,
        address: &ManagerAddress,
        expected: ManagerId,
    ) -> Result<impl AsyncRead + AsyncWrite + Send + Unpin + use<>, PeerDialError> {
        let address = || address.clone();
        let unreachable = |source| PeerDialError::Unreachable { address: address(), source };
        let (host, port) = (address().host().to_owned(), address().port());
        let stream = timeout(CONNECT_DEADLINE, TcpStream::connect((host, port))).await;
        let stream =
            stream.map_err(|_| PeerDialError::Timeout { address: address() })?.map_err(unreachable)?;
        // Messages are latency-sensitive: do not delay them to fill a segment.
        stream.set_nodelay(true).map_err(unreachable)?;
        let tls_stream = connect_accepted(stream, tls.clone(), CONNECT_DEADLINE).await;
        let tls_stream = tls_stream.map_err(|source| PeerDialError::Tls { address: address(), source })?;
        let certificate = tls_stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let certificate = certificate.expect("a server without a certificate does not pass TLS");
        let (identity, key) = Identity::with_key_from_der(certificate)
            .map_err(|source| PeerDialError::Certificate { address: address(), source })?;
        let found = manager_id(&identity, &self.cluster);
        let found = found.map_err(|source| PeerDialError::NotAPeer { address: address(), source })?;
        if found != expected {
            return Err(PeerDialError::WrongManager { address: address(), desired: expected, found });
        }
        if !identity.is_of_key(&key) {
            return Err(PeerDialError::ForeignKey { address: address(), found });
        }
        Ok(tls_stream)
    }

    /// A channel over one connection to the manager; calls fail when the connection is lost.
    ///
    /// # Errors
    /// [`PeerDialError`].
    pub async fn channel(
        &self,
        address: &ManagerAddress,
        desired: ManagerId,
    ) -> Result<Channel, PeerDialError> {
        self.channel_with(&self.tls, address, desired).await
    }

    /// The same without a certificate, to ask a manager that refuses it.
    ///
    /// # Errors
    /// [`PeerDialError`].
    pub async fn anonymous_channel(
        &self,
        address: &ManagerAddress,
        desired: ManagerId,
    ) -> Result<Channel, PeerDialError> {
        self.channel_with(&self.anonymous, address, desired).await
    }

    async fn channel_with(
        &self,
        tls: &Arc<ClientConfig>,
        address: &ManagerAddress,
        desired: ManagerId,
    ) -> Result<Channel, PeerDialError> {
        let stream = self.dial(tls, address, desired).await?;
        let transport = |source| PeerDialError::Transport { address: address.clone(), source };
        channel_over(stream).await.map_err(transport)
    }

    /// A channel to `member` at its current address: dialled by the first call, and again by the first call
    /// after the connection was lost.
    pub fn lazy_channel(&self, directory: PeerAddresses, member: MemberId) -> Channel {
        let dialer = self.clone();
        let connector = tower::service_fn(move |_: http::Uri| {
            let (dialer, directory) = (dialer.clone(), directory.clone());
            async move {
                let route = directory.route(member).ok_or(PeerDialError::NoAddress(member))?;
                let mut failed = PeerDialError::NoAddress(member);
                for address in &route.addresses {
                    match dialer.dial(&dialer.tls, address, route.id).await {
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
    // The address is never dialled; https would be rejected, since TLS is established already.
    Endpoint::from_static("http://warren-manager")
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE_DEADLINE)
        .keep_alive_while_idle(true)
        .max_frame_size(MAX_FRAME)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
}

/// A channel over this connection only.
async fn channel_over<S>(stream: S) -> Result<Channel, tonic::transport::Error>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let stream = Arc::new(tokio::sync::Mutex::new(Some(stream)));
    let connector = tower::service_fn(move |_: http::Uri| {
        let stream = Arc::clone(&stream);
        async move { stream.lock().await.take().map(TokioIo::new).ok_or(NotConnected) }
    });
    endpoint().connect_with_connector(connector).await
}
