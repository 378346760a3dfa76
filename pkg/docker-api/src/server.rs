//! The server: HTTP/1.1 on a unix socket.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use warren_client::{Client, ClientTarget};
use warren_security::{LocalListener, LocalSocketError, PeerConnection, serve_local};

use crate::programs::Programs;
use crate::request::{DockerRequest, UpgradedWork};
use crate::response::{self, DockerResponse};
use crate::router;

/// Maximum number of connections, most of them streams of events; further ones wait in the kernel.
const CONNECTIONS: usize = 2048;
/// Timeout of receiving the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of the head of a request, in bytes. Filters are part of it.
const MAX_HEAD_SIZE: usize = 64 << 10;
/// Delay between attempts to connect to the manager.
const CONNECT_RETRY: Duration = Duration::from_millis(200);

/// The bound socket, before it is served.
#[derive(Debug)]
pub struct DockerSocket {
    listener: LocalListener,
    manager: PathBuf,
}

impl DockerSocket {
    /// Listens at `path`, for the user of this process only, and will use the manager's socket at `manager`.
    ///
    /// # Errors
    /// [`LocalSocketError`].
    pub fn bind(path: &Path, manager: &Path) -> Result<Self, LocalSocketError> {
        Ok(Self { listener: LocalListener::bind(path, None)?, manager: manager.to_owned() })
    }

    /// Serves until it is dropped, which ends all connections.
    pub async fn serve(self) {
        let target = ClientTarget::Unix { socket: self.manager };
        let client = loop {
            match Client::connect(&target).await {
                Ok(client) => break client,
                Err(error) => tracing::debug!(%error, "the Docker API cannot reach its manager yet"),
            }
            tokio::time::sleep(CONNECT_RETRY).await;
        };
        tracing::info!(socket = %self.listener.path().display(), "serving Docker's API");
        let programs = Arc::new(Programs::default());
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        let mut incoming = serve_local(self.listener);
        let mut connections = JoinSet::new();
        loop {
            let permit = Arc::clone(&room).acquire_owned().await.expect("the semaphore is never closed");
            while connections.try_join_next().is_some() {}
            let Some(Ok(connection)) = incoming.next().await else { return };
            let (client, programs) = (client.clone(), Arc::clone(&programs));
            connections.spawn(async move {
                let _permit = permit;
                serve_connection(connection, client, programs).await;
            });
        }
    }
}

async fn serve_connection(connection: PeerConnection, client: Client, programs: Arc<Programs>) {
    let work = UpgradedWork::default();
    let service = service_fn(|request: Request<Incoming>| {
        let (client, programs, work) = (client.clone(), Arc::clone(&programs), Arc::clone(&work));
        async move { Ok::<_, Infallible>(respond(&client, &programs, work, request).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_SIZE)
        .serve_connection(TokioIo::new(connection), service)
        .with_upgrades();
    if let Err(error) = served.await {
        tracing::debug!(%error, "a connection of the Docker API failed");
    }
    let work = work.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(work) = work {
        work.await;
    }
}

async fn respond(
    client: &Client,
    programs: &Arc<Programs>,
    work: UpgradedWork,
    request: Request<Incoming>,
) -> DockerResponse {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let answered = async {
        let request = DockerRequest::read(request, work).await?;
        router::answer(client, programs, &request).await
    };
    let mut response = answered.await.unwrap_or_else(|error| {
        tracing::debug!(%method, path, status = error.status.as_u16(), "a request of the Docker API was refused");
        response::error(&error)
    });
    response::add_headers(&mut response);
    response
}
