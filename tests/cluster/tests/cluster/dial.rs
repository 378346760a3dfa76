//! Plain connections to a manager.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tonic::transport::{Channel, Endpoint, Error};
use tonic::{Code, Status};
use warren_security::{
    CaDigest, ConnectError, Credentials, JoinConnectError, ReloadableCertificate, Roots, client_config,
    connect, connect_accepted, connect_to_join,
};
use warren_testkit::wait::eventually_async;

use crate::fixture::WAIT_DEADLINE;

/// Repeats a handshake that the manager ended without an alert, because this side was slow to begin it.
pub async fn handshake<T, F>(address: SocketAddr, attempt: impl Fn(TcpStream) -> F) -> Result<T, ConnectError>
where
    F: Future<Output = Result<T, ConnectError>>,
{
    let started = Instant::now();
    loop {
        let stream = TcpStream::connect(address).await.map_err(ConnectError::Handshake)?;
        stream.set_nodelay(true).map_err(ConnectError::Handshake)?;
        match attempt(stream).await {
            Err(error) if error.was_closed() && started.elapsed() < WAIT_DEADLINE => {
                // Not a wait: between two attempts.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            outcome => return outcome,
        }
    }
}

/// The handshake of a machine that joins, repeated as others are.
pub async fn join_handshake(address: SocketAddr, authority: CaDigest) -> Result<Roots, JoinConnectError> {
    let attempt = async |stream| match connect_to_join(stream, authority, WAIT_DEADLINE).await {
        Err(JoinConnectError::Connect(error)) => Err(error),
        outcome => Ok(outcome.map(|(_, roots)| roots)),
    };
    handshake(address, attempt).await.unwrap_or_else(|error| Err(JoinConnectError::Connect(error)))
}

fn endpoint() -> Endpoint {
    Endpoint::from_static("http://manager")
}

/// Over TLS, with these credentials, or without a certificate.
pub async fn dial(
    address: SocketAddr,
    roots: &Roots,
    credentials: Option<&Credentials>,
) -> Result<Channel, Error> {
    let config = client_config(roots, credentials.map(ReloadableCertificate::new)).unwrap();
    let dial = tower::service_fn(move |_| {
        let config = Arc::clone(&config);
        async move {
            let attempt = |stream| connect(stream, Arc::clone(&config), WAIT_DEADLINE);
            handshake(address, attempt).await.map(TokioIo::new)
        }
    });
    endpoint().connect_with_connector(dial).await
}

/// Whether a manager accepts these credentials in the handshake; an error says anything but that they are revoked.
pub async fn accepts(
    address: SocketAddr,
    roots: &Roots,
    credentials: &Credentials,
) -> Result<bool, ConnectError> {
    let config = client_config(roots, Some(ReloadableCertificate::new(credentials))).unwrap();
    match handshake(address, |stream| connect_accepted(stream, Arc::clone(&config), WAIT_DEADLINE)).await {
        Ok(_) => Ok(true),
        Err(ConnectError::Revoked) => Ok(false),
        Err(other) => Err(other),
    }
}

/// Waits until a manager accepts these credentials in the handshake, or refuses them as revoked.
pub async fn until_accepted(address: SocketAddr, roots: &Roots, credentials: &Credentials, expected: bool) {
    let what = format!("{} to be accepted: {expected}", credentials.identity());
    eventually_async(WAIT_DEADLINE, &what, || async {
        match accepts(address, roots, credentials).await {
            Ok(found) if found == expected => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// A manager ended the call of a caller who was removed or revoked, with a status, or by closing the connection, which
/// it does some seconds later.
#[track_caller]
pub fn assert_access_ended(status: &Status) {
    let codes = [Code::Unauthenticated, Code::Unavailable, Code::Unknown];
    assert!(codes.contains(&status.code()), "{status}");
}

/// Over the manager's unix socket.
pub async fn dial_socket(socket: &Path) -> Result<Channel, Error> {
    let socket = socket.to_owned();
    let dial = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    endpoint().connect_with_connector(dial).await
}
