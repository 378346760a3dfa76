//! The one port, and the unix socket beside it: the same services behind the same table of who may call what.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};
use tonic::transport::Server;
use warren_control::Shutdown;
use warren_proto::v1::cluster_server::ClusterServer;
use warren_proto::v1::contents_server::ContentsServer;
use warren_proto::v1::images_server::ImagesServer;
use warren_proto::v1::logs_server::LogsServer;
use warren_proto::v1::managers_server::ManagersServer;
use warren_proto::v1::membership_server::MembershipServer;
use warren_proto::v1::nodes_server::NodesServer;
use warren_proto::v1::peers_server::PeersServer;
use warren_proto::v1::services_server::ServicesServer;
use warren_proto::v1::tasks_server::TasksServer;
use warren_proto::v1::tokens_server::TokensServer;
use warren_proto::v1::volumes_server::VolumesServer;
use warren_security::{
    Incoming, LiveCertificate, LocalListener, LocalSocketError, Roots, StrangerLimits, TlsError, serve_local,
    serve_tls, server_config,
};

use crate::api::Api;
use crate::api::access::AccessLayer;
use crate::api::life::LifeLayer;
use crate::api::proxy::ProxyLayer;
use crate::api::whereabouts::WhereaboutsLayer;
use crate::metrics::requests::RequestLayer;
use crate::peers;
use crate::peers::server::PeerServer;
use crate::session::establish::SessionService;
use crate::session::server::SessionServer;

/// Members of this group may administer the machine's cluster through the socket, if the group exists.
const GROUP: &str = "warren";
/// Connections that may wait to be taken, as far as the system allows. The workers of a manager that went come all at
/// once, and who finds no room tries again only after a second.
const BACKLOG: u32 = 4096;
/// Largest message from anyone: an import's chunks are far smaller, a list's pages as well; a content has 1 MiB at
/// most, and one that is somewhat larger is to be refused with a word.
const MAX_MESSAGE: usize = 4 << 20;
/// Largest message from somebody who is not known: a token, a certificate request of 8 KiB, and a description.
const MAX_STRANGERS_MESSAGE: usize = 64 << 10;
/// What may be on its way to us unread: on one stream, and on one connection. A worker's session and its streams
/// share a connection, so it has room for more streams than a node may have
/// ([`crate::session::streams::MAX_STREAMS`]): what a slow client leaves unread must never keep a heartbeat from
/// arriving.
const STREAM_WINDOW: u32 = 128 << 10;
const CONNECTION_WINDOW: u32 = 32 << 20;
/// Calls on one connection at once. Another manager has many logs relayed over one, each of which is a call.
pub(crate) const MAX_STREAMS: u32 = 1024;
const _: () = assert!(peers::MAX_RELAYS < MAX_STREAMS as usize, "other calls find room beside them");
/// How long connections may take to end when the manager stops. Nothing that is served needs longer, since the
/// manager ends all streams itself; a peer that does not answer is not waited for.
const GRACE: Duration = Duration::from_secs(1);
/// Dead connections are noticed within two of these.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// Why a manager cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The port cannot be had.
    #[error("cannot listen on {address}: {source}; choose another with --listen, or stop what uses it")]
    Listen {
        /// As asked for.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// The socket cannot be had.
    #[error(transparent)]
    Socket(#[from] LocalSocketError),
    /// The keys cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Who answers what.
#[derive(Clone)]
pub struct Services {
    /// People and tools, and machines that join.
    pub api: Api,
    /// Workers.
    pub sessions: SessionServer,
    /// Other managers.
    pub peers: PeerServer,
}

/// What is listened on, before anything is served.
pub struct Listeners {
    tcp: TcpListener,
    local: LocalListener,
}

impl Listeners {
    /// Binds the port and the socket.
    ///
    /// # Errors
    /// [`ServeError`].
    pub async fn bind(address: SocketAddr, socket: &Path) -> Result<Self, ServeError> {
        let tcp = listen(address).map_err(|source| ServeError::Listen { address, source })?;
        let local = match LocalListener::bind(socket, Some(GROUP)) {
            Err(LocalSocketError::NoGroup(_)) => LocalListener::bind(socket, None)?,
            bound => bound?,
        };
        Ok(Self { tcp, local })
    }

    /// Where the port really is (0 asks for any).
    ///
    /// # Errors
    /// Those of the system.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Serves until `shutdown`.
    ///
    /// # Errors
    /// [`ServeError::Tls`].
    pub fn serve(
        self,
        roots: &Roots,
        certificate: Arc<LiveCertificate>,
        services: &Services,
        shutdown: &Shutdown,
    ) -> Result<(), ServeError> {
        let config = server_config(roots, certificate)?;
        let tls = serve_tls(self.tcp, config, StrangerLimits::default());
        spawn("api-port", tls, services, shutdown);
        spawn("api-socket", serve_local(self.local), services, shutdown);
        Ok(())
    }
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // What is left of the connections of a manager that was here a moment ago must not keep this one out.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn spawn(name: &'static str, incoming: Incoming, services: &Services, shutdown: &Shutdown) {
    let Services { api, sessions, peers } = services;
    let server = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .max_concurrent_streams(Some(MAX_STREAMS))
        .initial_stream_window_size(Some(STREAM_WINDOW))
        .initial_connection_window_size(Some(CONNECTION_WINDOW))
        .layer(RequestLayer(api.metrics.requests.clone()))
        .layer(AccessLayer { peers: api.peers.clone() })
        .layer(WhereaboutsLayer { store: api.store.clone(), member: api.member })
        .layer(LifeLayer { store: api.store.clone(), peers: api.peers.clone() })
        .layer(ProxyLayer { store: api.store.clone(), peers: api.peers.clone() })
        .add_service(ServicesServer::new(api.clone()).max_decoding_message_size(MAX_MESSAGE))
        .add_service(TasksServer::new(api.clone()).max_decoding_message_size(MAX_MESSAGE))
        .add_service(NodesServer::new(api.clone()).max_decoding_message_size(MAX_MESSAGE))
        .add_service(ClusterServer::new(api.clone()).max_decoding_message_size(MAX_MESSAGE))
        .add_service(ImagesServer::new(api.clone()).max_decoding_message_size(MAX_MESSAGE))
        .add_service(TokensServer::new(api.clone()).max_decoding_message_size(MAX_MESSAGE))
        .add_service(ContentsServer::new(api.clone()).max_decoding_message_size(MAX_MESSAGE))
        .add_service(VolumesServer::new(api.clone()).max_decoding_message_size(MAX_MESSAGE))
        .add_service(LogsServer::new(api.clone()).max_decoding_message_size(MAX_MESSAGE))
        .add_service(ManagersServer::new(api.clone()).max_decoding_message_size(MAX_STRANGERS_MESSAGE))
        .add_service(MembershipServer::new(api.clone()).max_decoding_message_size(MAX_STRANGERS_MESSAGE))
        .add_service(SessionService::new(sessions.clone(), MAX_MESSAGE))
        .add_service(PeersServer::new(peers.clone()).max_decoding_message_size(peers::MAX_MESSAGE));
    let stop = shutdown.token();
    shutdown.spawn(name, async move {
        let overdue = async {
            stop.cancelled().await;
            tokio::time::sleep(GRACE).await;
        };
        tokio::select! {
            served = server.serve_with_incoming_shutdown(incoming, stop.cancelled()) => {
                if let Err(error) = served {
                    tracing::error!(%error, "{name} ended");
                }
            }
            () = overdue => tracing::info!("{name}: some connections are cut off"),
        }
    });
}
