//! The gRPC server on the TCP port and the unix socket: the same services and the same role checks on both.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};
use tonic::transport::Server;
use warren_api::Api;
use warren_api::audit::AuditLayer;
use warren_api::authorization::AuthorizationLayer;
use warren_api::incarnation::IncarnationLayer;
use warren_api::manager_addresses::ManagerAddressesLayer;
use warren_api::middleware::MiddlewareLayer;
use warren_api::proxy::ProxyLayer;
use warren_api::request_metrics::RequestMetrics;
use warren_control::Shutdown;
use warren_docker_api::server::DockerListenError;
use warren_peers::server::PeerServer;
use warren_peers::{MAX_PEER_MESSAGE, MAX_STREAMS};
use warren_proto::v1::cluster_server::ClusterServer;
use warren_proto::v1::images_server::ImagesServer;
use warren_proto::v1::logs_server::LogsServer;
use warren_proto::v1::managers_server::ManagersServer;
use warren_proto::v1::membership_server::MembershipServer;
use warren_proto::v1::networks_server::NetworksServer;
use warren_proto::v1::nodes_server::NodesServer;
use warren_proto::v1::peers_server::PeersServer;
use warren_proto::v1::secret_objects_server::SecretObjectsServer;
use warren_proto::v1::services_server::ServicesServer;
use warren_proto::v1::tasks_server::TasksServer;
use warren_proto::v1::tokens_server::TokensServer;
use warren_proto::v1::users_server::UsersServer;
use warren_proto::v1::volumes_server::VolumesServer;
use warren_security::{
    AuthorityError, HandshakeLimits, IncomingConnections, LocalListener, LocalSocketError,
    ReloadableCertificate, TlsError, Trust, serve_local, serve_tls, trusting_server_config,
};
use warren_session::establish_service::SessionService;
use warren_session::server::SessionServer;

/// Members of this group may administer the cluster through the socket, if the group exists.
const ADMIN_GROUP: &str = "warren";
/// Connections that may wait for accept, up to the system's limit. The workers of a failed manager connect
/// all at once, and a connection that is dropped is retried only after a second.
const LISTEN_BACKLOG: u32 = 4096;
/// Maximum message of any caller: chunks of an import and pages of a list are far smaller; a secret object
/// has at most 1 MiB, and one slightly above that must be rejected with a clear error.
const MAX_MESSAGE: usize = 4 << 20;
/// Maximum message of an anonymous caller: a token, a certificate request of 8 KiB, and a description.
const MAX_ANONYMOUS_MESSAGE: usize = 64 << 10;
/// Flow control windows per stream and per connection. A worker's session and its streams share a connection,
/// whose window has room for more streams than a node may open
/// ([`warren_session::worker_streams::MAX_STREAMS_PER_NODE`]): data that a slow client leaves unread must
/// never block a heartbeat.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 64 << 20;
/// Largest HTTP/2 frame of a caller: one has room for a whole message of `exec`, with 64 KiB of data.
const MAX_FRAME: u32 = 128 << 10;
/// How long connections may take to close when the manager stops. The manager ends all streams itself; peers
/// that do not respond are not waited for.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);
/// Keepalive interval and timeout: a dead connection is detected within twice this time.
const KEEPALIVE: Duration = Duration::from_secs(5);

/// Why a manager cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The port cannot be bound.
    #[error(
        "cannot listen on {address}: {source}; choose another address with --listen, or stop the program \
         that uses it"
    )]
    Listen {
        /// The requested address.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// The unix socket cannot be bound.
    #[error(transparent)]
    Socket(#[from] LocalSocketError),
    /// Docker's API cannot be served.
    #[error(transparent)]
    Docker(#[from] DockerListenError),
    /// The certificate for clients of Docker cannot be issued.
    #[error(transparent)]
    Certificate(#[from] AuthorityError),
    /// The TLS keys are invalid.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The implementations of all services.
#[derive(Clone)]
pub struct GrpcServices {
    /// For users, tools and joining machines.
    pub api: Api,
    /// For workers.
    pub sessions: SessionServer,
    /// For other managers.
    pub peers: PeerServer,
    /// Counts all requests.
    pub request_metrics: RequestMetrics,
}

/// The bound listeners, before they are served.
pub struct Listeners {
    tcp: TcpListener,
    local: LocalListener,
}

impl Listeners {
    /// Binds the port and the socket.
    ///
    /// # Errors
    /// [`ListenError`].
    pub async fn bind(address: SocketAddr, socket: &Path) -> Result<Self, ListenError> {
        let tcp = listen(address).map_err(|source| ListenError::Listen { address, source })?;
        let local = match LocalListener::bind(socket, Some(ADMIN_GROUP)) {
            Err(LocalSocketError::UnknownGroup(_)) => LocalListener::bind(socket, None)?,
            bound => bound?,
        };
        Ok(Self { tcp, local })
    }

    /// The bound address (port 0 binds a free port).
    ///
    /// # Errors
    /// An error of the system call.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Serves until `shutdown`.
    ///
    /// # Errors
    /// [`ListenError::Tls`].
    pub fn serve(
        self,
        trust: Arc<Trust>,
        certificate: Arc<ReloadableCertificate>,
        services: &GrpcServices,
        shutdown: &Shutdown,
    ) -> Result<(), ListenError> {
        let config = trusting_server_config(trust, certificate)?;
        let tls = serve_tls(self.tcp, config, HandshakeLimits::default());
        spawn("api-port", tls, services, shutdown);
        spawn("api-socket", serve_local(self.local), services, shutdown);
        Ok(())
    }
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Old connections in TIME_WAIT must not block the port.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(LISTEN_BACKLOG)
}

/// Serves calls on connections of either kind, until `shutdown`.
pub(crate) fn spawn(
    name: &'static str,
    incoming: IncomingConnections,
    services: &GrpcServices,
    shutdown: &Shutdown,
) {
    let GrpcServices { api, sessions, peers, request_metrics } = services;
    let server = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .max_concurrent_streams(Some(MAX_STREAMS))
        .max_frame_size(Some(MAX_FRAME))
        .initial_stream_window_size(Some(STREAM_WINDOW))
        .initial_connection_window_size(Some(CONNECTION_WINDOW))
        .layer(MiddlewareLayer(request_metrics.clone()))
        .layer(MiddlewareLayer(AuditLayer { auditor: api.audit.clone(), store: api.store.clone() }))
        .layer(MiddlewareLayer(ManagerAddressesLayer { store: api.store.clone(), member_id: api.member_id }))
        .layer(MiddlewareLayer(IncarnationLayer {
            store: api.store.clone(),
            later_incarnation: api.later_incarnation.clone(),
        }))
        .layer(MiddlewareLayer(ProxyLayer { store: api.store.clone(), peers: api.peers.clone() }))
        // Inside of the proxy: a manager that applies nothing new cannot decide about a key that it does not list.
        .layer(MiddlewareLayer(AuthorizationLayer(Arc::new(api.clone()))))
        .add_service(ServicesServer::new(api.clone()).max_decoding_message_size(MAX_MESSAGE))
        .add_service(TasksServer::new(api.clone()).max_decoding_message_size(MAX_MESSAGE))
        .add_service(NodesServer::new(api.clone()).max_decoding_message_size(MAX_MESSAGE))
        .add_service(ClusterServer::new(api.clone()).max_decoding_message_size(MAX_MESSAGE))
        .add_service(ImagesServer::new(api.clone()).max_decoding_message_size(MAX_MESSAGE))
        .add_service(TokensServer::new(api.clone()).max_decoding_message_size(MAX_MESSAGE))
        .add_service(UsersServer::new(api.clone()).max_decoding_message_size(MAX_ANONYMOUS_MESSAGE))
        .add_service(SecretObjectsServer::new(api.clone()).max_decoding_message_size(MAX_MESSAGE))
        .add_service(NetworksServer::new(api.clone()).max_decoding_message_size(MAX_MESSAGE))
        .add_service(VolumesServer::new(api.clone()).max_decoding_message_size(MAX_MESSAGE))
        .add_service(LogsServer::new(api.clone()).max_decoding_message_size(MAX_MESSAGE))
        .add_service(ManagersServer::new(api.clone()).max_decoding_message_size(MAX_ANONYMOUS_MESSAGE))
        .add_service(MembershipServer::new(api.clone()).max_decoding_message_size(MAX_ANONYMOUS_MESSAGE))
        .add_service(SessionService::new(sessions.clone(), MAX_MESSAGE))
        .add_service(PeersServer::new(peers.clone()).max_decoding_message_size(MAX_PEER_MESSAGE));
    let stop = shutdown.token();
    shutdown.spawn(name, async move {
        let overdue = async {
            stop.cancelled().await;
            tokio::time::sleep(SHUTDOWN_GRACE).await;
        };
        tokio::select! {
            served = server.serve_with_incoming_shutdown(incoming, stop.cancelled()) => {
                if let Err(error) = served {
                    tracing::error!(%error, "{name} ended");
                }
            }
            () = overdue => tracing::info!("{name}: closing connections that did not end in time"),
        }
    });
}
