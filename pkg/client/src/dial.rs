//! Opens connections: TCP with mutual TLS to one of several managers, or the unix socket of a manager.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;
use tower::service_fn;
use warren_types::ManagerAddress;

use crate::client_tls::{CONNECT_DEADLINE, ClientTls, endpoint};
use crate::error::{ClientDialError, DialErrorKind, Error};
use crate::tls_alert::{AlertRecordingStream, LastTlsAlert};

/// Keepalive interval and timeout of an open connection.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEP_ALIVE_DEADLINE: Duration = Duration::from_secs(5);

/// Times after which a client of several managers leaves one of them for another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SwitchTimes {
    /// Delay before the next manager is dialled concurrently.
    pub next_dial_delay: Duration,
    /// Keepalive interval and timeout during a call.
    pub keep_alive: Duration,
}

impl Default for SwitchTimes {
    fn default() -> Self {
        Self { next_dial_delay: Duration::from_millis(300), keep_alive: Duration::from_secs(1) }
    }
}

/// A connected manager.
pub(crate) struct DialedManager {
    pub address: ManagerAddress,
    pub channel: Channel,
    pub refusal: LastTlsAlert,
}

/// Connects to the socket of the manager, and reconnects on demand.
pub(crate) async fn connect_socket(socket: &Path, refusal: &LastTlsAlert) -> Result<Channel, Error> {
    let path = socket.to_owned();
    connect_with(&socket.display().to_string(), refusal, move || dial_unix(path.clone())).await
}

/// Connects to a manager by the streams that `dial` opens, and reconnects on demand.
pub(crate) async fn connect_with<F, Fut>(
    address: &str,
    refusal: &LastTlsAlert,
    dial: F,
) -> Result<Channel, Error>
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<UnixStream, ClientDialError>> + Send + 'static,
{
    let endpoint =
        endpoint().http2_keep_alive_interval(KEEP_ALIVE_EVERY).keep_alive_timeout(KEEP_ALIVE_DEADLINE);
    let connector = service_fn(move |_: Uri| {
        let stream = within_deadline(dial());
        async move { stream.await.map(TokioIo::new) }
    });
    let connected = endpoint.connect_with_connector(connector).await;
    connected.map_err(|error| Error::from_connect(address, refusal.get(), &error))
}

/// Connects to one of several managers: dials the first, and after a delay or a failure the next one concurrently. The
/// first connection wins.
pub(crate) async fn connect_any(
    addresses: &[ManagerAddress],
    tls: &Arc<ClientTls>,
    times: SwitchTimes,
) -> Result<DialedManager, Error> {
    let keep_alive = match addresses.len() {
        0 | 1 => (KEEP_ALIVE_EVERY, KEEP_ALIVE_DEADLINE),
        _ => (times.keep_alive, times.keep_alive),
    };
    let mut waiting = addresses.iter();
    let mut dials = FuturesUnordered::new();
    let mut errors = Vec::new();
    loop {
        if dials.is_empty() {
            let Some(next) = waiting.next() else { return Err(Error::from_connect_errors(errors)) };
            dials.push(connect_tcp(next, tls, keep_alive));
        }
        let more = waiting.len() > 0;
        tokio::select! {
            dialled = dials.next() => match dialled.expect("there is one at least") {
                Ok(dialled) => return Ok(dialled),
                Err(error) => {
                    errors.push(error);
                    dials.extend(waiting.next().map(|next| connect_tcp(next, tls, keep_alive)));
                }
            },
            () = sleep(times.next_dial_delay), if more => {
                dials.extend(waiting.next().map(|next| connect_tcp(next, tls, keep_alive)));
            }
        }
    }
}

/// Connects to one manager with this interval and timeout of keepalive, and reconnects on demand.
async fn connect_tcp(
    address: &ManagerAddress,
    tls: &Arc<ClientTls>,
    (every, deadline): (Duration, Duration),
) -> Result<DialedManager, Error> {
    let endpoint = endpoint().http2_keep_alive_interval(every).keep_alive_timeout(deadline);
    let refusal = LastTlsAlert::default();
    let (dialled, tls, noted) = (address.to_string(), Arc::clone(tls), refusal.clone());
    let connector = service_fn(move |_: Uri| {
        let (address, tls, refusal) = (dialled.clone(), Arc::clone(&tls), noted.clone());
        async move {
            let stream = within_deadline(tls.connect(&address)).await?;
            Ok::<_, ClientDialError>(TokioIo::new(AlertRecordingStream::new(stream, refusal)))
        }
    });
    let connected = endpoint.connect_with_connector(connector).await;
    let channel =
        connected.map_err(|error| Error::from_connect(&address.to_string(), refusal.get(), &error))?;
    Ok(DialedManager { address: address.clone(), channel, refusal })
}

async fn within_deadline<T>(
    dial: impl Future<Output = Result<T, ClientDialError>>,
) -> Result<T, ClientDialError> {
    let late =
        || ClientDialError::new(DialErrorKind::Unreachable, format!("no answer within {CONNECT_DEADLINE:?}"));
    timeout(CONNECT_DEADLINE, dial).await.map_err(|_| late())?
}

async fn dial_unix(socket: PathBuf) -> Result<UnixStream, ClientDialError> {
    UnixStream::connect(&socket).await.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => ClientDialError::new(
            DialErrorKind::Denied,
            "only root and members of group warren may use the socket",
        ),
        _ => ClientDialError::new(DialErrorKind::Unreachable, socket_error_text(&socket, &error)),
    })
}

fn socket_error_text(socket: &Path, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => format!("{} does not exist; no manager runs here", socket.display()),
        io::ErrorKind::ConnectionRefused => "the manager that created the socket does not run".to_owned(),
        _ => error.to_string(),
    }
}
