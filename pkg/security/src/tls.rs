//! The TLS settings: version 1.3, both sides by certificate; HTTP/2 on the cluster's one port, HTTP/1.1 for clients of
//! other software.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::server::{ServerConfig, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{AlertDescription, CertificateError, ClientConfig, SignatureScheme};
use rustls_pki_types::{ServerName, UnixTime};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use warren_types::Timestamp;

use crate::credentials::certified_key;
use crate::trust::{ClientKind, ClientVerifier, TlsError, Trust, provider};
use crate::{Credentials, Identity, MANAGER_NAME, MaterialError, PrivateKey, Roots};

pub(crate) const HTTP_2: &[u8] = b"h2";
const HTTP_1: &[u8] = b"http/1.1";

/// The certificate that is shown to the other side from the next handshake on; it can be replaced while
/// connections are open.
pub struct ReloadableCertificate {
    current: ArcSwap<CurrentCertificate>,
}

struct CurrentCertificate {
    identity: Identity,
    validity: Range<Timestamp>,
    certified: Arc<CertifiedKey>,
}

impl CurrentCertificate {
    fn of(credentials: &Credentials) -> Arc<Self> {
        let at = |time: SystemTime| Timestamp(0) + time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Arc::new(Self {
            identity: credentials.identity().clone(),
            validity: at(credentials.issued_at())..at(credentials.expires_at()),
            certified: credentials.certified(),
        })
    }
}

impl ReloadableCertificate {
    /// Shows these until they are replaced.
    pub fn new(credentials: &Credentials) -> Arc<Self> {
        Arc::new(Self { current: ArcSwap::new(CurrentCertificate::of(credentials)) })
    }

    /// Shows other credentials in all handshakes that begin from now on.
    pub fn replace(&self, credentials: &Credentials) {
        self.current.store(CurrentCertificate::of(credentials));
    }

    /// Whose certificate is shown.
    pub fn identity(&self) -> Identity {
        self.current.load().identity.clone()
    }

    /// When the certificate that is shown was issued, and when it ends.
    pub fn validity(&self) -> Range<Timestamp> {
        self.current.load().validity.clone()
    }

    fn current_key(&self) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.load().certified))
    }
}

impl fmt::Debug for ReloadableCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LiveCertificate({})", self.current.load().identity)
    }
}

impl ResolvesClientCert for ReloadableCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.current_key()
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// The certificate that is shown to clients of other software ([`web_server_config`]); it can be replaced while
/// connections are open.
#[derive(Debug)]
pub struct WebCertificate {
    current: ArcSwap<CertifiedKey>,
}

impl WebCertificate {
    /// Shows this one until it is replaced: what [`crate::CertificateAuthority::issue_web_server`] returned.
    pub fn new((certificate, key): (String, PrivateKey)) -> Result<Arc<Self>, MaterialError> {
        Ok(Arc::new(Self { current: ArcSwap::new(certified_key(&certificate, &key)?) }))
    }

    /// Shows another one in all handshakes that begin from now on.
    pub fn replace(&self, (certificate, key): (String, PrivateKey)) -> Result<(), MaterialError> {
        self.current.store(certified_key(&certificate, &key)?);
        Ok(())
    }
}

impl ResolvesServerCert for WebCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load_full())
    }
}

/// What a manager shows: its certificate, and those of the authorities, by which a joiner recognises the cluster.
#[derive(Debug)]
struct ServerCertificateChain {
    own: Arc<ReloadableCertificate>,
    trust: Arc<Trust>,
}

impl ResolvesServerCert for ServerCertificateChain {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let own = self.own.current_key()?;
        let mut chain = own.cert.clone();
        let roots = self.trust.roots();
        chain.extend(roots.certificates().iter().filter(|root| !own.cert.contains(root)).cloned());
        Some(Arc::new(CertifiedKey::new(chain, Arc::clone(&own.key))))
    }
}

impl Roots {
    /// Checks that one of these authorities issued the credentials, whether or not they are valid today.
    pub fn check_issued(&self, credentials: &Credentials) -> Result<(), MaterialError> {
        let refused = |error: &dyn fmt::Display| MaterialError::NotIssued(error.to_string());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(self.store()), provider()).build();
        let verifier = verifier.map_err(|error| refused(&error))?;
        let certified = credentials.certified();
        let (own, rest) = certified.cert.split_first().expect("credentials have a certificate");
        let at = credentials.issued_at().duration_since(UNIX_EPOCH).unwrap_or_default();
        let verified = verifier.verify_client_cert(own, rest, UnixTime::since_unix_epoch(at));
        verified.map(drop).map_err(|error| refused(&error))
    }
}

/// The settings of the serving side, and what its clients are verified by.
#[derive(Clone, Debug)]
pub struct ServerTls {
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) trust: Arc<Trust>,
}

/// As [`trusting_server_config`], with authorities that are never replaced.
pub fn server_config(roots: &Roots, certificate: Arc<ReloadableCertificate>) -> Result<ServerTls, TlsError> {
    trusting_server_config(Trust::new(roots)?, certificate)
}

/// The serving side. A client that shows a certificate must show a valid one of an authority that is trusted, which is
/// not revoked; one that shows none is let in as [`crate::Peer::Anonymous`], since it must be able to join. The
/// certificates of the authorities are sent along, for those who know them by a digest only
/// ([`crate::connect_to_join`]).
pub fn trusting_server_config(
    trust: Arc<Trust>,
    certificate: Arc<ReloadableCertificate>,
) -> Result<ServerTls, TlsError> {
    let chain = Arc::new(ServerCertificateChain { own: certificate, trust: Arc::clone(&trust) });
    with_trust(chain, trust, ClientKind::Any, HTTP_2)
}

/// The serving side for clients of other software, over HTTP/1.1: they must show a valid certificate of an authority
/// that is trusted.
pub fn web_server_config(trust: Arc<Trust>, certificate: Arc<WebCertificate>) -> Result<ServerTls, TlsError> {
    with_trust(certificate, trust, ClientKind::OtherSoftware, HTTP_1)
}

fn with_trust(
    certificates: Arc<dyn ResolvesServerCert>,
    trust: Arc<Trust>,
    clients: ClientKind,
    protocol: &[u8],
) -> Result<ServerTls, TlsError> {
    let verifier = ClientVerifier::new(Arc::clone(&trust), clients);
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(certificates);
    config.alpn_protocols = vec![protocol.to_vec()];
    // A resumed session would carry the client's certificate over unverified, past its end. Connections here
    // live long, so that resuming would save little.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(ServerTls { config: Arc::new(config), trust })
}

/// As [`trusting_client_config`], with authorities that are never replaced.
pub fn client_config(
    roots: &Roots,
    certificate: Option<Arc<ReloadableCertificate>>,
) -> Result<Arc<ClientConfig>, TlsError> {
    trusting_client_config(Trust::new(roots)?, certificate)
}

/// The dialling side, with a certificate or without one. Use it through [`connect`], which
/// verifies the one right name.
pub fn trusting_client_config(
    trust: Arc<Trust>,
    certificate: Option<Arc<ReloadableCertificate>>,
) -> Result<Arc<ClientConfig>, TlsError> {
    // The verifier does what the library does, with the authorities of the moment.
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(trust);
    let mut config = match certificate {
        Some(certificate) => builder.with_client_cert_resolver(certificate),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![HTTP_2.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// The same dialling side without its certificate, to ask a manager that refuses it.
pub fn without_certificate(config: &ClientConfig) -> Arc<ClientConfig> {
    let mut config = config.clone();
    config.client_auth_cert_resolver = Arc::new(NoCertificate);
    Arc::new(config)
}

#[derive(Debug)]
struct NoCertificate;

impl ResolvesClientCert for NoCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

/// Why a connection to a manager did not become a secure one.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The other side took too long.
    #[error("no TLS handshake within {0:?}: the other side is overloaded, or not a Warren manager")]
    TimedOut(Duration),
    /// The other side is somebody else.
    #[error(
        "the other side is not a manager of this cluster: check the address, and that the context or \
         certificate in use is of the cluster that answers there"
    )]
    NotAManager(#[source] rustls::Error),
    /// The other side has left the cluster.
    #[error("the other side was a manager of this cluster once, and its certificate is revoked")]
    RevokedManager,
    /// The other side refuses the certificate of this side.
    #[error("the manager refuses the certificate of this side, which is revoked")]
    Revoked,
    /// The certificate of this side is not valid at this time by the clock of the other side.
    #[error("the manager refuses the certificate of this side, which is not valid now by its clock")]
    Expired,
    /// The connection broke, or the other side does not speak TLS 1.3.
    #[error("the TLS handshake failed")]
    Handshake(#[source] io::Error),
}

impl ConnectError {
    /// Whether the other side closed the connection without an alert. Managers do so if a client is slow to begin a
    /// handshake, as on a loaded machine, and beyond the number of connections that may wait.
    pub fn was_closed(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        let kinds = [BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof];
        matches!(self, Self::Handshake(error) if kinds.contains(&error.kind()))
    }

    /// Whether the certificate of the other side is not valid at this time by the clock of this machine.
    pub fn is_outside_validity(&self) -> bool {
        match self {
            Self::NotAManager(rustls::Error::InvalidCertificate(reason)) => is_outside_validity(reason),
            Self::NotAManager(_)
            | Self::RevokedManager
            | Self::Revoked
            | Self::Expired
            | Self::TimedOut(_)
            | Self::Handshake(_) => false,
        }
    }
}

pub(crate) fn is_outside_validity(reason: &CertificateError) -> bool {
    use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    matches!(reason, Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. })
}

/// Makes a connection to a manager secure, and makes sure that it is one: of the cluster in `config`, by
/// the name that only manager certificates carry.
///
/// A server that refuses this side's certificate says so after this returned (TLS 1.3 lets the client finish
/// first): the refusal is the error of the first read.
pub async fn connect<S>(
    stream: S,
    config: Arc<ClientConfig>,
    deadline: Duration,
) -> Result<TlsStream<S>, ConnectError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let name = ServerName::try_from(MANAGER_NAME).expect("the manager name is a DNS name");
    let handshake = TlsConnector::from(config).connect(name, stream);
    match tokio::time::timeout(deadline, handshake).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(ConnectError::of(error)),
        Err(_) => Err(ConnectError::TimedOut(deadline)),
    }
}

/// As [`connect`], and waits until the manager accepts the certificate of this side: a server of HTTP/2 says something
/// first.
///
/// # Errors
/// [`ConnectError`].
pub async fn connect_accepted<S>(
    stream: S,
    config: Arc<ClientConfig>,
    deadline: Duration,
) -> Result<TlsStream<S>, ConnectError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut stream = connect(stream, config, deadline).await?;
    let heard = tokio::time::timeout(deadline, stream.fill_buf()).await;
    match heard.map(|heard| heard.map(<[u8]>::is_empty)) {
        Ok(Ok(false)) => Ok(stream),
        Ok(Ok(true)) => Err(ConnectError::Handshake(io::ErrorKind::UnexpectedEof.into())),
        Ok(Err(error)) => Err(ConnectError::of(error)),
        Err(_) => Err(ConnectError::TimedOut(deadline)),
    }
}

impl ConnectError {
    fn of(error: io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::InvalidCertificate(CertificateError::Revoked)) => Self::RevokedManager,
            Some(refused @ rustls::Error::InvalidCertificate(_)) => Self::NotAManager(refused.clone()),
            Some(rustls::Error::AlertReceived(AlertDescription::CertificateRevoked)) => Self::Revoked,
            // TLS has one alert for both ends of the validity.
            Some(rustls::Error::AlertReceived(AlertDescription::CertificateExpired)) => Self::Expired,
            _ => Self::Handshake(error),
        }
    }
}
