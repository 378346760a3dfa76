//! Opens connections: TCP with mutual TLS to one of several managers, or a manager's unix socket.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use http::Uri;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;
use warren_security::{
    ConnectError, Credentials, LiveCertificate, MaterialError, Roots, client_config, connect,
};
use warren_types::ManagerAddress;

use crate::contexts::Identity;
use crate::error::Error;
use crate::refusal::{Listening, Refusal};

/// For TCP and TLS together.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
/// A manager that is silent on an open connection for both of these is gone.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEP_ALIVE_DEADLINE: Duration = Duration::from_secs(5);
/// The same where there are others that can answer, while something is asked: a manager that hangs or cannot be reached
/// any more is left after both of these.
const KEEP_ALIVE_AMONG_OTHERS: Duration = Duration::from_secs(1);
/// How long one manager is dialled before another is as well.
const NEXT_AFTER: Duration = Duration::from_millis(300);

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

/// A manager that was reached.
pub(crate) struct Dialled {
    pub address: ManagerAddress,
    pub channel: Channel,
    pub refusal: Refusal,
}

/// The scheme is http, since TLS is the connector's business here and https would be refused.
fn endpoint() -> Endpoint {
    Endpoint::from_static("http://warren-manager")
}

/// Connects to the manager's socket now, and again whenever the connection is lost and something is to be sent.
pub(crate) async fn socket(socket: &Path, refusal: &Refusal) -> Result<Channel, Error> {
    let endpoint =
        endpoint().http2_keep_alive_interval(KEEP_ALIVE_EVERY).keep_alive_timeout(KEEP_ALIVE_DEADLINE);
    let path = socket.to_owned();
    let connector = service_fn(move |_: Uri| {
        let path = path.clone();
        async move { within_deadline(dial_unix(path)).await.map(TokioIo::new) }
    });
    let connected = endpoint.connect_with_connector(connector).await;
    let address = socket.display().to_string();
    connected.map_err(|error| Error::from_connect(&address, refusal.get(), &error))
}

/// Connects to one of several managers: the first, and a moment later, or as soon as it is known to fail, the next one
/// as well. Who answers first is taken.
pub(crate) async fn any(addresses: &[ManagerAddress], tls: &Arc<ClientConfig>) -> Result<Dialled, Error> {
    let several = addresses.len() > 1;
    let mut waiting = addresses.iter();
    let mut dials = FuturesUnordered::new();
    let mut errors = Vec::new();
    loop {
        if dials.is_empty() {
            let Some(next) = waiting.next() else { return Err(Error::of_all(errors)) };
            dials.push(tcp(next, tls, several));
        }
        let more = waiting.len() > 0;
        tokio::select! {
            dialled = dials.next() => match dialled.expect("there is one at least") {
                Ok(dialled) => return Ok(dialled),
                Err(error) => {
                    errors.push(error);
                    dials.extend(waiting.next().map(|next| tcp(next, tls, several)));
                }
            },
            () = sleep(NEXT_AFTER), if more => {
                dials.extend(waiting.next().map(|next| tcp(next, tls, several)));
            }
        }
    }
}

/// Connects to one manager now, and again whenever the connection is lost and something is to be sent.
async fn tcp(address: &ManagerAddress, tls: &Arc<ClientConfig>, several: bool) -> Result<Dialled, Error> {
    let (every, deadline) = match several {
        true => (KEEP_ALIVE_AMONG_OTHERS, KEEP_ALIVE_AMONG_OTHERS),
        false => (KEEP_ALIVE_EVERY, KEEP_ALIVE_DEADLINE),
    };
    let endpoint = endpoint().http2_keep_alive_interval(every).keep_alive_timeout(deadline);
    let refusal = Refusal::default();
    let (dialled, config, noted) = (address.to_string(), Arc::clone(tls), refusal.clone());
    let connector = service_fn(move |_: Uri| {
        let (dial, refusal) = (dial_tls(dialled.clone(), Arc::clone(&config)), noted.clone());
        async move {
            let stream = within_deadline(dial).await?;
            Ok::<_, DialError>(TokioIo::new(Listening::new(stream, refusal)))
        }
    });
    let connected = endpoint.connect_with_connector(connector).await;
    let channel =
        connected.map_err(|error| Error::from_connect(&address.to_string(), refusal.get(), &error))?;
    Ok(Dialled { address: address.clone(), channel, refusal })
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

/// Who we are to managers, and whom we take for one.
pub(crate) fn tls(identity: &Identity) -> Result<Arc<ClientConfig>, Error> {
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
