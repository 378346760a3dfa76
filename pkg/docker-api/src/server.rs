//! The server: HTTP/1.1 on a unix socket, and over TLS.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::select_all;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio::task::JoinSet;
use warren_client::{Client, Error};
use warren_security::{
    HandshakeLimits, LocalListener, LocalSocketError, Peer, PeerConnection, ServerTls, listen_web,
    serve_local, serve_tls,
};

use crate::request::{DockerRequest, UpgradedWork};
use crate::response::{self, DockerResponse};
use crate::router::{self, ServerMemory};

/// Maximum number of connections, most of them streams of events; further ones wait in the kernel.
const CONNECTIONS: usize = 2048;
/// Timeout of receiving the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of the head of a request, in bytes. Filters are part of it.
const MAX_HEAD_SIZE: usize = 64 << 10;

/// Where the API is served.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DockerEndpoints {
    /// The path of a unix socket, for the user of this process only.
    pub socket: Option<PathBuf>,
    /// An address for clients with a certificate of the cluster.
    pub listen: Option<SocketAddr>,
}

/// Why the API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum DockerListenError {
    /// The unix socket cannot be bound.
    #[error(transparent)]
    Socket(#[from] LocalSocketError),
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {source}; choose another address with --docker-listen")]
    Listen {
        /// The requested address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
}

/// The bound listeners, before they are served.
#[derive(Debug)]
pub struct DockerListeners {
    local: Option<LocalListener>,
    tcp: Option<TcpListener>,
}

impl DockerListeners {
    /// Binds what `endpoints` has.
    ///
    /// # Errors
    /// [`DockerListenError`].
    pub fn bind(endpoints: &DockerEndpoints) -> Result<Self, DockerListenError> {
        let local = endpoints.socket.as_ref().map(|path| LocalListener::bind(path, None)).transpose()?;
        let listen =
            |address| listen_web(address).map_err(|source| DockerListenError::Listen { address, source });
        Ok(Self { local, tcp: endpoints.listen.map(listen).transpose()? })
    }

    /// The bound address (port 0 binds a free port).
    pub fn address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Serves until it is dropped, which ends all connections. Requests become calls on connections within this
    /// process, which are sent to `connections`: each has the peer of the request. An address is served with `tls`
    /// only.
    pub async fn serve(self, tls: Option<ServerTls>, connections: mpsc::Sender<PeerConnection>) {
        let server = Arc::new(DockerServer {
            memory: ServerMemory::default(),
            connections,
            local_clients: Mutex::default(),
        });
        let local = self.local.map(serve_local);
        let tcp =
            self.tcp.zip(tls).map(|(listener, tls)| serve_tls(listener, tls, HandshakeLimits::default()));
        let mut incoming = select_all(local.into_iter().chain(tcp));
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        let mut served = JoinSet::new();
        loop {
            let permit = Arc::clone(&room).acquire_owned().await.expect("the semaphore is never closed");
            while served.try_join_next().is_some() {}
            let Some(Ok(connection)) = incoming.next().await else { return };
            let server = Arc::clone(&server);
            served.spawn(async move {
                let _permit = permit;
                server.serve_connection(connection).await;
            });
        }
    }
}

struct DockerServer {
    memory: ServerMemory,
    connections: mpsc::Sender<PeerConnection>,
    /// By user and group.
    local_clients: Mutex<BTreeMap<(u32, u32), Client>>,
}

impl DockerServer {
    async fn serve_connection(self: Arc<Self>, connection: PeerConnection) {
        let work = UpgradedWork::default();
        let peer = connection.peer().clone();
        let client = Mutex::new(None);
        let service = service_fn(|request: Request<Incoming>| {
            let (server, work, peer, client) = (&self, Arc::clone(&work), &peer, &client);
            async move {
                let (method, path) = (request.method().clone(), request.uri().path().to_owned());
                let answered = async {
                    let request = DockerRequest::read(request, caller_name(peer), work).await?;
                    let client = server.client(peer, client).await?;
                    router::answer(&client, &server.memory, &request).await
                };
                let mut response = answered.await.unwrap_or_else(|error| {
                    let status = error.status.as_u16();
                    tracing::debug!(%method, path, status, %peer, "a request of the Docker API was refused");
                    response::error(&error)
                });
                response::add_headers(&mut response);
                Ok::<DockerResponse, Infallible>(response)
            }
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

    /// The client for calls of `peer`: one for all connections of a local user, and one for each other connection.
    async fn client(&self, peer: &Peer, own: &Mutex<Option<Client>>) -> Result<Client, Error> {
        if let Peer::Local { uid, gid } = peer {
            let mut clients = self.local_clients.lock().await;
            if let Some(client) = clients.get(&(*uid, *gid)) {
                return Ok(client.clone());
            }
            let client = self.connect(peer).await?;
            clients.insert((*uid, *gid), client.clone());
            return Ok(client);
        }
        let mut own = own.lock().await;
        match &*own {
            Some(client) => Ok(client.clone()),
            None => Ok(own.insert(self.connect(peer).await?).clone()),
        }
    }

    async fn connect(&self, peer: &Peer) -> Result<Client, Error> {
        let (connections, peer) = (self.connections.clone(), peer.clone());
        let dial = move || {
            let (connections, peer) = (connections.clone(), peer.clone());
            async move {
                let (served, client) = PeerConnection::pair(peer)?;
                connections.send(served).await.map_err(|_| io::Error::other("the manager stops"))?;
                Ok(client)
            }
        };
        Client::connect_with("this manager", dial).await
    }
}

/// A name that differs between callers, but not between the connections of one.
fn caller_name(peer: &Peer) -> String {
    match peer {
        Peer::Certificate { identity, .. } => identity.to_string(),
        other => other.to_string(),
    }
}
