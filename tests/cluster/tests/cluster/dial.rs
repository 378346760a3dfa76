//! Plain connections to a manager.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tonic::transport::{Channel, Endpoint, Error};
use warren_security::{Credentials, ReloadableCertificate, Roots, client_config, connect};

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

/// Over the manager's unix socket.
pub async fn dial_socket(socket: &Path) -> Result<Channel, Error> {
    let socket = socket.to_owned();
    let dial = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    endpoint().connect_with_connector(dial).await
}
