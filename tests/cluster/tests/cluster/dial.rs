//! Plain connections to a manager.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tonic::transport::{Channel, Endpoint, Error};
use warren_security::{
    ConnectError, Credentials, ReloadableCertificate, Roots, client_config, connect, connect_accepted,
};
use warren_testkit::wait::eventually_async;

use crate::fixture::WAIT_DEADLINE;

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
            let stream = TcpStream::connect(address).await.map_err(std::io::Error::other)?;
            stream.set_nodelay(true)?;
            connect(stream, config, WAIT_DEADLINE).await.map(TokioIo::new).map_err(std::io::Error::other)
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
    let stream = TcpStream::connect(address).await.unwrap();
    match connect_accepted(stream, config, WAIT_DEADLINE).await {
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

/// Over the manager's unix socket.
pub async fn dial_socket(socket: &Path) -> Result<Channel, Error> {
    let socket = socket.to_owned();
    let dial = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    endpoint().connect_with_connector(dial).await
}
