//! Opens connections: TCP with mutual TLS, or the manager's unix socket.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;
use warren_security::{
    ConnectError, Credentials, LiveCertificate, MaterialError, Roots, client_config, connect,
};

use crate::contexts::{Identity, Target};
use crate::error::Error;
use crate::refusal::{Listening, Refusal};

/// For TCP and TLS together.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// A manager that is silent on an open connection for both of these is gone.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEP_ALIVE_DEADLINE: Duration = Duration::from_secs(5);

/// Why no connection came about. Travels through the layers of the transport and is found again at their end.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{why}")]
pub(crate) struct DialError {
    kind: Kind,
    why: String,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Unreachable,
    Untrusted,
    Denied,
}

impl DialError {
    fn new(kind: Kind, why: impl ToString) -> Self {
        Self { kind, why: why.to_string() }
    }

    /// The same for whoever asked for a call to `address`.
    pub fn at(self, address: String) -> Error {
        let why = self.why;
        match self.kind {
            Kind::Unreachable => Error::Unreachable { address, why },
            Kind::Untrusted => Error::Untrusted { address, why },
            Kind::Denied => Error::Denied { address, why },
        }
    }
}

/// Connects to the target now, and again whenever the connection is lost and something is to be sent.
pub(crate) async fn channel(target: &Target, refusal: &Refusal) -> Result<Channel, Error> {
    // The scheme is http, since TLS is the connector's business here and https would be refused.
    let endpoint = Endpoint::from_static("http://warren-manager")
        .http2_keep_alive_interval(KEEP_ALIVE_EVERY)
        .keep_alive_timeout(KEEP_ALIVE_DEADLINE);
    let connected = match target {
        Target::Unix { socket } => {
            let socket = socket.clone();
            let connector = service_fn(move |_: Uri| {
                let socket = socket.clone();
                async move { within_deadline(dial_unix(socket)).await.map(TokioIo::new) }
            });
            endpoint.connect_with_connector(connector).await
        }
        Target::Tcp { address, identity } => {
            let (address, config) = (address.to_string(), tls(identity)?);
            let refusal = refusal.clone();
            let connector = service_fn(move |_: Uri| {
                let (dial, refusal) = (dial_tls(address.clone(), Arc::clone(&config)), refusal.clone());
                async move {
                    let stream = within_deadline(dial).await?;
                    Ok::<_, DialError>(TokioIo::new(Listening::new(stream, refusal)))
                }
            });
            endpoint.connect_with_connector(connector).await
        }
    };
    connected.map_err(|error| Error::from_connect(&target.to_string(), refusal.get(), &error))
}

async fn within_deadline<T>(dial: impl Future<Output = Result<T, DialError>>) -> Result<T, DialError> {
    let late = || DialError::new(Kind::Unreachable, format!("no answer within {CONNECT_DEADLINE:?}"));
    timeout(CONNECT_DEADLINE, dial).await.map_err(|_| late())?
}

async fn dial_unix(socket: PathBuf) -> Result<UnixStream, DialError> {
    UnixStream::connect(&socket).await.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            DialError::new(Kind::Denied, "the socket is for root and members of group warren")
        }
        _ => DialError::new(Kind::Unreachable, socket_trouble(&socket, &error)),
    })
}

fn socket_trouble(socket: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!("{} does not exist; no manager runs here", socket.display()),
        io::ErrorKind::ConnectionRefused => "the manager that made the socket is gone".to_owned(),
        _ => error.to_string(),
    }
}

async fn dial_tls(address: String, config: Arc<ClientConfig>) -> Result<TlsStream<TcpStream>, DialError> {
    let stream = TcpStream::connect(&address).await;
    let stream = stream.map_err(|error| DialError::new(Kind::Unreachable, error))?;
    // Small requests and answers, each waited for: do not hold them back to fill a segment.
    stream.set_nodelay(true).map_err(|error| DialError::new(Kind::Unreachable, error))?;
    connect(stream, config, CONNECT_DEADLINE).await.map_err(|error| {
        let kind = match error {
            ConnectError::NotAManager(_) => Kind::Untrusted,
            ConnectError::TimedOut(_) | ConnectError::Handshake(_) => Kind::Unreachable,
        };
        DialError::new(kind, with_cause(&error))
    })
}

fn tls(identity: &Identity) -> Result<Arc<ClientConfig>, Error> {
    let unusable = |error: MaterialError| Error::Identity { why: with_cause(&error) };
    let roots = Roots::parse(&identity.ca).map_err(unusable)?;
    let key = warren_security::PrivateKey::parse(&identity.key.0).map_err(unusable)?;
    let credentials = Credentials::new(identity.certificate.clone(), key).map_err(unusable)?;
    client_config(&roots, Some(LiveCertificate::new(&credentials)))
        .map_err(|error| Error::Identity { why: with_cause(&error) })
}

fn with_cause(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error} ({cause})"),
        None => error.to_string(),
    }
}
