//! The TLS connections of a client, and the renewal of its certificate: a connection is opened with one that has half
//! of its lifetime left, if the manager issues another one. The key stays, since the cluster lists it.

use std::error::Error as StdError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::client::TlsStream;
use tonic::transport::Endpoint;
use tower::service_fn;
use warren_proto::v1;
use warren_proto::v1::users_client::UsersClient;
use warren_security::{
    CaDigest, CertificateRequest, ConnectError, Credentials, PrivateKey, ReloadableCertificate, Roots,
    client_config, connect, connect_accepted, without_certificate,
};

use crate::contexts::ClientIdentity;
use crate::error::{ClientDialError, DialErrorKind, Error};

/// Deadline of a connection: TCP, TLS, and the renewal before it.
pub(crate) const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// Delays before a handshake that the manager ended without an alert is repeated.
const HANDSHAKE_PAUSES: [Duration; 3] =
    [Duration::from_millis(50), Duration::from_millis(200), Duration::from_millis(500)];
/// Deadline of a renewal; it leaves time for the connection.
const RENEWAL_DEADLINE: Duration = Duration::from_secs(3);
/// Certificates are valid from this long before they are issued.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(5 * 60);

/// A certificate to request for the key of a client.
#[derive(Debug, Clone, Copy, Default)]
pub struct CertificateOptions {
    /// Lifetime, at most 365 days; `None`: 24 hours.
    pub ttl: Option<Duration>,
    /// The only certificate authority that the client trusts from now on; `None`: as before.
    pub authority: Option<CaDigest>,
}

/// By how much the clock of this machine differs from that of a manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockDifference {
    /// The difference.
    pub by: Duration,
    /// Whether the clock of this machine is ahead.
    pub is_ahead: bool,
}

impl ClockDifference {
    /// `None` if a certificate that is issued at `issued_at`, which is now, is valid for this machine too.
    fn between(issued_at: SystemTime, now: SystemTime) -> Option<Self> {
        let (by, is_ahead) = match now.duration_since(issued_at) {
            Ok(by) => (by, true),
            Err(behind) => (behind.duration(), false),
        };
        (by > MAX_CLOCK_DIFFERENCE).then_some(Self { by, is_ahead })
    }
}

/// The TLS settings of a client with its certificate.
pub(crate) struct ClientTls {
    /// As it was given.
    identity: ClientIdentity,
    roots: Roots,
    with_certificate: Arc<ClientConfig>,
    /// To renew a certificate that has expired, which managers refuse.
    without_certificate: Arc<ClientConfig>,
    certificate: Arc<ReloadableCertificate>,
    state: Mutex<CertificateState>,
}

struct CertificateState {
    current: Credentials,
    clock_difference: Option<ClockDifference>,
}

impl ClientTls {
    /// The certificate of the client, and the CA that verifies managers.
    pub fn new(identity: &ClientIdentity) -> Result<Arc<Self>, Error> {
        let roots = Roots::parse(&identity.ca).map_err(|error| unusable(&error))?;
        let key = PrivateKey::parse(&identity.key.0).map_err(|error| unusable(&error))?;
        let current =
            Credentials::new(identity.certificate.clone(), key).map_err(|error| unusable(&error))?;
        let certificate = ReloadableCertificate::new(&current);
        let with_certificate =
            client_config(&roots, Some(Arc::clone(&certificate))).map_err(|error| unusable(&error))?;
        let without_certificate = without_certificate(&with_certificate);
        let state = Mutex::new(CertificateState { current, clock_difference: None });
        let identity = identity.clone();
        Ok(Arc::new(Self { identity, roots, with_certificate, without_certificate, certificate, state }))
    }

    /// Opens a connection to the manager at `address`.
    pub async fn connect(&self, address: &str) -> Result<TlsStream<TcpStream>, ClientDialError> {
        if self.state().current.is_past_half(SystemTime::now()) {
            Box::pin(self.renew(address)).await?;
        }
        dial(address, Arc::clone(&self.with_certificate)).await
    }

    /// The identity with the certificate that is shown.
    pub fn identity(&self) -> ClientIdentity {
        self.identity_with(&self.state().current)
    }

    /// How the clock of this machine differed at the last renewal.
    pub fn clock_difference(&self) -> Option<ClockDifference> {
        self.state().clock_difference
    }

    /// Shows this certificate from the next connection on.
    pub fn show(&self, issued: Credentials) {
        self.certificate.replace(&issued);
        self.state().current = issued;
    }

    /// The identity with another certificate, which is not shown.
    pub async fn issue(&self, address: &str, options: CertificateOptions) -> Result<ClientIdentity, Error> {
        let (issued, authorities) = self.request(address, options).await?;
        let identity = self.identity_with(&issued);
        if options.authority.is_none() {
            return Ok(identity);
        }
        let checked = Roots::parse(&authorities).and_then(|roots| roots.check_issued(&issued));
        checked.map_err(|error| unusable(&error))?;
        Ok(ClientIdentity { ca: authorities, ..identity })
    }

    /// Renews the certificate. One that has not expired stays if that fails.
    async fn renew(&self, address: &str) -> Result<(), ClientDialError> {
        match self.request(address, CertificateOptions::default()).await {
            Ok((issued, _)) => {
                let difference = ClockDifference::between(issued.issued_at(), SystemTime::now());
                self.show(issued);
                self.state().clock_difference = difference;
                Ok(())
            }
            Err(_) if SystemTime::now() < self.state().current.expires_at() => Ok(()),
            Err(error) => Err(ClientDialError::from_renewal(error)),
        }
    }

    /// A certificate for the key, and the authorities (PEM) that the manager trusts.
    async fn request(
        &self,
        address: &str,
        options: CertificateOptions,
    ) -> Result<(Credentials, String), Error> {
        let late = |_| Error::NoAnswer { address: address.to_owned(), after: RENEWAL_DEADLINE };
        let key = self.state().current.key().clone();
        let certificate_request = CertificateRequest::create(&key).map_err(|error| unusable(&error))?;
        let millis = |ttl: Duration| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1);
        let message = v1::RenewUserRequest {
            certificate_request,
            ttl_ms: options.ttl.map_or(0, millis),
            ca_digest: options.authority.map(|digest| digest.to_string()).unwrap_or_default(),
        };
        let answer = timeout(RENEWAL_DEADLINE, self.call_renew(address, message)).await.map_err(late)??;
        let v1::RenewUserResponse { certificate, authorities } = answer;
        let issued = Credentials::new(certificate, key).map_err(|error| unusable(&error))?;
        self.roots.check_issued(&issued).map_err(|error| unusable(&error))?;
        Ok((issued, authorities))
    }

    async fn call_renew(
        &self,
        address: &str,
        message: v1::RenewUserRequest,
    ) -> Result<v1::RenewUserResponse, Error> {
        let is_valid = self.state().current.is_valid(SystemTime::now());
        let shown = is_valid.then(|| Arc::clone(&self.with_certificate));
        let (dialled, anonymous) = (address.to_owned(), Arc::clone(&self.without_certificate));
        let connector = service_fn(move |_: Uri| {
            let (address, shown, anonymous) = (dialled.clone(), shown.clone(), Arc::clone(&anonymous));
            async move { dial_to_renew(&address, shown, anonymous).await.map(TokioIo::new) }
        });
        let channel = endpoint().connect_with_connector(connector).await;
        let channel = channel.map_err(|error| Error::from_connect(address, None, &error))?;
        let answer = UsersClient::new(channel).renew(message).await;
        let answer = answer.map_err(|status| Error::from_status(address, RENEWAL_DEADLINE, None, &status))?;
        Ok(answer.into_inner())
    }

    fn identity_with(&self, shown: &Credentials) -> ClientIdentity {
        ClientIdentity { certificate: shown.certificate_pem().to_owned(), ..self.identity.clone() }
    }

    fn state(&self) -> MutexGuard<'_, CertificateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Largest HTTP/2 frame of a manager, as managers take them.
const MAX_FRAME: u32 = 128 << 10;

/// The scheme is http, since the connector adds TLS and https would be refused.
pub(crate) fn endpoint() -> Endpoint {
    Endpoint::from_static("http://warren-manager").max_frame_size(MAX_FRAME)
}

async fn dial(address: &str, config: Arc<ClientConfig>) -> Result<TlsStream<TcpStream>, ClientDialError> {
    let handshake = |stream| connect(stream, Arc::clone(&config), CONNECT_DEADLINE);
    dial_with(address, handshake).await?.map_err(|error| handshake_error(&error))
}

/// Repeats a handshake that the manager ended without an alert.
async fn dial_with<F>(
    address: &str,
    handshake: impl Fn(TcpStream) -> F,
) -> Result<Result<TlsStream<TcpStream>, ConnectError>, ClientDialError>
where
    F: Future<Output = Result<TlsStream<TcpStream>, ConnectError>>,
{
    let started = Instant::now();
    for pause in HANDSHAKE_PAUSES {
        let outcome = handshake(dial_tcp(address).await?).await;
        // Another attempt must not exceed the deadline, which would hide this error.
        if !outcome.as_ref().is_err_and(ConnectError::was_closed)
            || started.elapsed() + pause > CONNECT_DEADLINE / 2
        {
            return Ok(outcome);
        }
        sleep(pause).await;
    }
    Ok(handshake(dial_tcp(address).await?).await)
}

/// Shows the certificate, if there is one, unless it has expired by the clock of the manager: managers bound the
/// connections without a certificate.
pub(crate) async fn dial_to_renew(
    address: &str,
    with_certificate: Option<Arc<ClientConfig>>,
    without_certificate: Arc<ClientConfig>,
) -> Result<TlsStream<TcpStream>, ClientDialError> {
    if let Some(config) = with_certificate {
        let handshake = |stream| connect_accepted(stream, Arc::clone(&config), CONNECT_DEADLINE);
        match dial_with(address, handshake).await? {
            Err(ConnectError::Expired) => {}
            accepted => return accepted.map_err(|error| handshake_error(&error)),
        }
    }
    dial(address, without_certificate).await
}

async fn dial_tcp(address: &str) -> Result<TcpStream, ClientDialError> {
    let stream = TcpStream::connect(address).await;
    let stream = stream.map_err(|error| ClientDialError::new(DialErrorKind::Unreachable, error))?;
    // Requests and responses are small and synchronous: disable the Nagle delay.
    stream.set_nodelay(true).map_err(|error| ClientDialError::new(DialErrorKind::Unreachable, error))?;
    Ok(stream)
}

fn handshake_error(error: &ConnectError) -> ClientDialError {
    let kind = match error {
        ConnectError::NotAManager(_) | ConnectError::RevokedManager => DialErrorKind::Untrusted,
        ConnectError::Revoked | ConnectError::Expired => DialErrorKind::Denied,
        ConnectError::TimedOut(_) | ConnectError::Handshake(_) => DialErrorKind::Unreachable,
    };
    let hint = match error.is_outside_validity() {
        true => "; compare the clock of this machine with that of the manager",
        false => "",
    };
    ClientDialError::new(kind, with_cause(error) + hint)
}

fn unusable(error: &dyn StdError) -> Error {
    Error::Identity { why: with_cause(error) }
}

fn with_cause(error: &dyn StdError) -> String {
    match error.source() {
        Some(cause) => format!("{error} ({cause})"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_clock_is_noticed_beyond_five_minutes() {
        let issued_at = SystemTime::now();
        let [slack, hour] = [300, 3600].map(Duration::from_secs);
        for now in [issued_at - slack, issued_at, issued_at + slack] {
            assert_eq!(ClockDifference::between(issued_at, now), None);
        }
        for (now, is_ahead) in [(issued_at + hour, true), (issued_at - hour, false)] {
            let expected = Some(ClockDifference { by: hour, is_ahead });
            assert_eq!(ClockDifference::between(issued_at, now), expected);
        }
    }
}
