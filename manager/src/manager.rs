//! The composition root: opens the data directory, then starts the driver, the controllers and the API.

mod advertised;
mod error;
mod follow_state;
mod identity;
mod key_rotation;
mod maintenance;
mod registration;
mod startup_checks;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, watch};
use warren_api::Api;
use warren_api::audit::Auditor;
use warren_api::controller_status::{MembershipWait, PlacementRefusals};
use warren_api::progress_subscription::ProgressSubscription;
use warren_bootstrap::ca::{CaError, LocalAgent, ManagerKeys, check_secret_object_key};
use warren_bootstrap::join;
use warren_bootstrap::member_identity::{self, BootstrapPeer, MemberIdentity};
use warren_control::{BackgroundTasks, Shutdown, SystemClock, system_random};
use warren_core::Command;
use warren_docker_api::server::DockerListeners;
use warren_log::DataDir;
use warren_peers::server::{PeerServer, PeerServerParts as PeerParts};
use warren_peers::{PeerCredentials, Peers};
use warren_replica::KnownManager;
use warren_security::seal::Keyring;
use warren_security::{Credentials, Roots, Trust};
use warren_session::leader::LeaderWatch;
use warren_session::repository_tokens::RepositoryTokens;
use warren_session::secret_delivery::SecretDelivery;
use warren_session::server::SessionServer;
use warren_session::session_handler::SessionContext;
use warren_session::withdrawals::{WithdrawalParts, Withdrawals};
use warren_session::{NetworkPublisher, SessionRegistry, WorkerStreams};
use warren_store::Store;
use warren_store::incarnation::LaterIncarnation;
use warren_store::raft::open::{GroupConfig, OpenedStore, open_store};
use warren_store::state_comparison::StateComparison;
use warren_store::timestamp::TimestampSource;
use warren_telemetry::TelemetryComponent;
use warren_types::{ClusterId, ClusterSettingsChange, DataPlane, ManagerAddress, NodeId};

pub use self::error::{ManagerFailure, ManagerStartError};
use self::identity::load_identity;
use self::key_rotation::follow_key_rotation;
use self::maintenance::{
    await_at_peers, fetch_from_peers, follow_autolock, follow_ca_rotation, follow_revocations,
    renew_certificates, start_controllers,
};
use self::registration::{Registration, effective_address};
use self::startup_checks::{check_cluster, lead_if_sole_voter, record_removal, supervise_driver};
use crate::config::{ManagerConfig, ManagerTuning};
use crate::controllers::images::ImagePinner;
use crate::controllers::planner::{Planner, PlannerInputs};
use crate::controllers::verification::NodeVerifier;
use crate::docker;
use crate::metrics::{self, ManagerMetricSources, ManagerMetrics};
use crate::server::{GrpcServices, ListenError, Listeners};

/// How long the parts may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A running manager. Dropping it also stops everything, but without waiting: use [`Manager::stop`].
pub struct Manager {
    address: SocketAddr,
    docker_address: Option<SocketAddr>,
    keys: Arc<ManagerKeys>,
    store: Store,
    shutdown: Shutdown,
    metrics: (ManagerMetrics, ManagerMetricSources),
    failure: FailureReceiver,
    audit: Auditor,
}

/// Receives the reason why the manager cannot continue; closed without a value on a normal stop.
type FailureReceiver = mpsc::Receiver<ManagerFailure>;

impl Manager {
    /// Starts a manager and returns when it serves. A single-member cluster has elected it by then; with more
    /// members the election continues in the background. `create` creates a cluster if there is none.
    ///
    /// # Errors
    /// [`ManagerStartError`]; nothing keeps running then.
    pub async fn start(config: ManagerConfig, create: bool) -> Result<Self, ManagerStartError> {
        Self::start_with_tuning(config, create, ManagerTuning::default()).await
    }

    /// As [`Manager::start`], with other limits.
    ///
    /// # Errors
    /// [`ManagerStartError`]; nothing keeps running then.
    pub async fn start_with_tuning(
        config: ManagerConfig,
        create: bool,
        tuning: ManagerTuning,
    ) -> Result<Self, ManagerStartError> {
        let shutdown = Shutdown::new();
        let started = start(config, create, tuning, shutdown.clone()).await;
        if started.is_err() {
            // Stops the parts that were started; the first failure is the one to report.
            let _ = shutdown.stop(STOP_TIMEOUT).await;
        }
        started
    }

    /// The bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The bound address of Docker's API, if it has one.
    pub fn docker_address(&self) -> Option<SocketAddr> {
        self.docker_address
    }

    /// The cluster's id.
    pub fn cluster(&self) -> ClusterId {
        self.keys.cluster
    }

    /// The CAs that clients and workers of the cluster trust.
    pub fn roots(&self) -> Roots {
        Roots::clone(&self.keys.trust.roots())
    }

    /// The same, as they are replaced.
    pub fn trust(&self) -> Arc<Trust> {
        self.keys.trust.clone()
    }

    /// The current certificate of this machine's administrator.
    pub fn admin(&self) -> Credentials {
        self.keys.admin().borrow().clone()
    }

    /// The same, with a notification at each renewal.
    pub fn admins(&self) -> watch::Receiver<Credentials> {
        self.keys.admin()
    }

    /// The current certificate of this machine's agent in hybrid mode; `None` until the node's id is known.
    pub fn node(&self) -> Option<(NodeId, Credentials)> {
        self.keys.agent().borrow().as_ref().map(|agent| (agent.id, agent.credentials.clone()))
    }

    /// The certificate of this machine's agent once the node's id is known. Never resolves without a node.
    pub fn wait_for_agent(&self) -> impl Future<Output = LocalAgent> + Send + use<> {
        let mut agent = self.keys.agent();
        async move {
            let known = agent.wait_for(Option::is_some).await.map(|agent| agent.clone());
            match known.ok().flatten() {
                Some(agent) => agent,
                // The manager has ended.
                None => std::future::pending().await,
            }
        }
    }

    /// Waits until a leader is known, at most for `within`. A removed manager never knows one.
    pub fn wait_for_leader(&self, within: Duration) -> impl Future<Output = ()> + Send + use<> {
        let (store, deadline) = (self.store.clone(), tokio::time::Instant::now() + within);
        async move {
            store.wait_until(|published| published.role.leader_id.is_some(), deadline).await;
        }
    }

    /// The replicated state.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The metrics and health checks of this manager.
    pub fn telemetry(&self) -> TelemetryComponent {
        let (metrics, sources) = &self.metrics;
        metrics::telemetry_component(metrics, sources)
    }

    /// Resolves once, with the reason, when the manager cannot continue.
    pub async fn wait_failed(&mut self) -> ManagerFailure {
        match self.failure.recv().await {
            Some(failed) => failed,
            None => std::future::pending().await,
        }
    }

    /// Stops everything; a leader transfers its leadership first. Acknowledged writes are on disk, and
    /// another process may use the data directory.
    pub async fn stop(self) {
        if let Err(late) = self.shutdown.stop(STOP_TIMEOUT).await {
            tracing::warn!(%late, "stopping");
        }
        self.audit.close().await;
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.shutdown.token().cancel();
        // Connections that do not end soon must not keep the lock of the data directory.
        self.audit.begin_close();
    }
}

/// A manager whose log is open, but which does not serve yet.
struct StartingManager {
    config: ManagerConfig,
    data_dir: DataDir,
    dir: PathBuf,
    member_identity: MemberIdentity,
    keys: Arc<ManagerKeys>,
    keyring: Arc<Keyring>,
    store: Store,
    peers: Peers,
    listeners: Listeners,
    docker: DockerListeners,
    address: SocketAddr,
    advertised: ManagerAddress,
    /// The address that it advertised at its last start.
    previous_advertised: Option<ManagerAddress>,
    /// It is the only voter of its group, and the leader.
    is_sole_voter: bool,
    failure: FailureReceiver,
}

async fn start(
    config: ManagerConfig,
    create: bool,
    tuning: ManagerTuning,
    shutdown: Shutdown,
) -> Result<Manager, ManagerStartError> {
    let opening = open(config, create, tuning, &shutdown).await?;
    let StartingManager { dir, keys, keyring, store, is_sole_voter: alone, .. } = &opening;
    let founding = create && member_identity::is_init_pending(dir);
    check_cluster(&store.read().state, keys, dir, founding || !alone)?;
    check_secret_object_key(dir, &keys.secret_object_key, &store.read().state)?;
    let clock = Arc::new(SystemClock::new());
    let background_tasks = BackgroundTasks::new(shutdown.clone(), clock.clone(), system_random());
    let stamp = TimestampSource::new(clock.clone(), store.clone());
    register(&opening, founding, &stamp, &shutdown).await?;
    if store.read().state.cluster().is_some() && member_identity::is_init_pending(dir) {
        member_identity::finish_init(dir)?;
    }
    renew_certificates(keys, clock.clone(), store, &background_tasks, tuning.certificate_check_interval);
    follow_ca_rotation(keys, &stamp, store, &background_tasks, &shutdown)?;
    follow_revocations(keys, &stamp, store, &shutdown);
    follow_autolock(keys, store, &background_tasks, &shutdown);
    follow_key_rotation(keys, keyring, &stamp, store, &background_tasks, &shutdown);
    serve(opening, (clock, stamp, background_tasks), shutdown)
}

/// Binds the listeners, opens the log and connects to the other managers.
async fn open(
    config: ManagerConfig,
    create: bool,
    tuning: ManagerTuning,
    shutdown: &Shutdown,
) -> Result<StartingManager, ManagerStartError> {
    let data_dir = DataDir::open(&config.data_dir)?;
    let dir = config.data_dir.join("manager");
    for path in [&dir, &config.run_dir] {
        let made = std::fs::create_dir_all(path);
        made.map_err(|source| ManagerStartError::Directory { path: path.clone(), source })?;
    }
    join::remove_leftovers(&dir)?;
    let now = SystemTime::now();
    let unlock_key = config.unlock_key.as_ref();
    let (keys, issued, identity) = load_identity(&dir, unlock_key, create, config.log_engine, now)?;
    let keys = Arc::new(keys);
    let local_socket = config.run_dir.join("warren.sock");
    let listeners = Listeners::bind(config.listen, &local_socket).await?;
    let docker = DockerListeners::bind(&config.docker).map_err(ListenError::from)?;
    let address =
        listeners.address().map_err(|source| ListenError::Listen { address: config.listen, source })?;
    let advertised = config.advertise.resolve(address.port())?;

    let cluster = keys.cluster.to_string();
    let shown = PeerCredentials {
        cluster: &cluster,
        id: keys.id,
        trust: keys.trust.clone(),
        certificate: keys.manager.clone(),
    };
    let (peers, wire, unsent) =
        Peers::new(identity.member_id, advertised.clone(), shown).map_err(ListenError::from)?;
    let known = |BootstrapPeer { member_id: member, id, address }: &BootstrapPeer| {
        (*member, KnownManager { id: *id, address: address.clone() })
    };
    peers.add_bootstrap_peers(identity.bootstrap_peers.iter().map(known).collect());
    let (own, founders) = (identity.member_id, identity.founders.clone());
    let (wire, leader, accept_data_loss) =
        (Box::new(wire), Arc::new(peers.clone()), config.is_data_loss_accepted);
    let group = GroupConfig {
        own_id: own,
        founders,
        transport: wire,
        leader_client: leader,
        is_data_loss_accepted: accept_data_loss,
    };
    let OpenedStore { store, driver_exit: ended, snapshot_exchange: snapshots, keyring } = open_store(
        data_dir.clone(),
        keys.files(),
        (config.log_engine, identity.log_owner()),
        tuning.replica,
        group,
        shutdown.token(),
    )?;
    issued.save(keys.files())?;
    let advertised_before = advertised::load(&dir);
    peers.set_own_address(effective_address(
        &store.read().state,
        own,
        &advertised,
        advertised_before.as_ref(),
    ));
    let (failing, mut failure) = mpsc::channel(1);
    supervise_driver(ended, failing.clone(), shutdown);
    peers.start(store.clone(), Arc::new(snapshots), unsent, shutdown);
    record_removal(&peers, &keys, identity.clone(), failing, shutdown);
    let alone = lead_if_sole_voter(&store, create, &mut failure).await?;
    Ok(StartingManager {
        config,
        data_dir,
        dir,
        member_identity: identity,
        keys,
        keyring,
        store,
        peers,
        listeners,
        docker,
        address,
        advertised,
        previous_advertised: advertised_before,
        is_sole_voter: alone,
        failure,
    })
}

/// Stores the first objects of a new cluster, and registers this manager: at once if it is the sole voter,
/// else in the background.
async fn register(
    opening: &StartingManager,
    founding: bool,
    stamp: &TimestampSource,
    shutdown: &Shutdown,
) -> Result<(), ManagerStartError> {
    let StartingManager {
        config,
        dir,
        keys,
        store,
        advertised,
        previous_advertised: advertised_before,
        is_sole_voter: alone,
        ..
    } = opening;
    if founding && *alone && store.read().state.cluster().is_none() {
        let (id, ranges) = (keys.cluster, config.cluster_ranges.clone());
        let level = warren_core::FEATURE_LEVEL;
        store.propose(Command::CreateCluster { id, ranges, feature_level: level, at: stamp.now() }).await?;
    }
    // A process that was killed after the first of both commands goes on with the second.
    let is_unchanged = store.read().state.cluster().is_some_and(|cluster| cluster.version == 0);
    if founding && *alone && is_unchanged && config.data_plane != DataPlane::default() {
        let change = ClusterSettingsChange { data_plane: Some(config.data_plane), ..Default::default() };
        store.propose(Command::UpdateCluster { version: None, change, at: stamp.now() }).await?;
    }
    let registration = Registration {
        store: store.clone(),
        keys: keys.clone(),
        clock: stamp.clone(),
        name: config.name.clone(),
        address: advertised.clone(),
        previous_address: advertised_before.clone(),
        dir: dir.clone(),
        node: config.node.clone(),
    };
    if *alone {
        match registration.ensure().await {
            // Removing that node requires a manager that serves.
            Err(ManagerStartError::Keys(error @ CaError::NodeMismatch { .. })) => tracing::warn!(%error),
            ensured => return ensured,
        }
    }
    shutdown.spawn_cancellable("registration", registration.ensure_with_retry());
    Ok(())
}

/// Starts the controllers, which plan while this manager leads, and serves the API.
fn serve(
    opening: StartingManager,
    (clock, stamp, tasks_run): (Arc<SystemClock>, TimestampSource, BackgroundTasks),
    shutdown: Shutdown,
) -> Result<Manager, ManagerStartError> {
    let StartingManager {
        config,
        data_dir,
        dir,
        member_identity: identity,
        keys,
        store,
        peers,
        listeners,
        docker,
        address,
        failure,
        ..
    } = opening;
    let (registry, streams, refusals) =
        (SessionRegistry::default(), WorkerStreams::default(), PlacementRefusals::default());
    let (metrics, waits) = (ManagerMetrics::default(), MembershipWait::default());
    let (reads, connected, running) = (store.clone(), registry.clone(), tasks_run.clone());
    let state_comparison = StateComparison::default();
    let audit = Auditor::start(dir.join("audit"), config.name.to_string(), data_dir);
    let audit = audit.map_err(|source| ManagerStartError::Directory { path: dir.join("audit"), source })?;
    let compared = (identity.member_id, state_comparison.clone());
    let leader = LeaderWatch::start(store.clone(), &tasks_run);
    let sources = ManagerMetricSources {
        store: reads,
        leader: leader.clone(),
        registry: connected,
        background_tasks: running,
        clock: clock.clone(),
        log_dir: dir.clone(),
        audit: audit.clone(),
        state_comparison: compared,
    };
    let later_incarnation = LaterIncarnation::default();
    let networks = NetworkPublisher::new(store.clone());
    let (publisher, connected) = (networks.clone(), registry.clone());
    shutdown.spawn_cancellable("network-publisher", async move { publisher.run(&connected).await });
    let sessions = SessionServer {
        context: SessionContext {
            store: store.clone(),
            clock: stamp.clone(),
            worker_streams: streams.clone(),
            networks: networks.clone(),
            withdrawals: Withdrawals::new(WithdrawalParts {
                store: store.clone(),
                registry: registry.clone(),
                networks: networks.clone(),
                await_at_peers: await_at_peers(peers.clone()),
                shutdown: shutdown.clone(),
            }),
        },
        registry: registry.clone(),
        secret_delivery: SecretDelivery {
            secret_object_key: keys.secret_object_key.clone(),
            repository_tokens: RepositoryTokens::new(config.registries.clone()),
        },
        leader_watch: leader.clone(),
        later_incarnation: later_incarnation.clone(),
        member_id: identity.member_id,
        shutdown: shutdown.clone(),
    };
    let api = Api {
        store: store.clone(),
        leader,
        registry,
        networks,
        streams,
        placement_refusals: refusals.clone(),
        background_tasks: tasks_run,
        clock: stamp.clone(),
        shutdown: shutdown.clone(),
        certificate: keys.manager.clone(),
        authority: keys.authority.clone(),
        secret_object_key: keys.secret_object_key.clone(),
        key_files: keys.files().clone(),
        manager_id: keys.id.to_string(),
        member_id: identity.member_id,
        is_manager_only: config.node.is_none(),
        founders: identity.founders.into(),
        peers: peers.clone(),
        state_comparison: state_comparison.clone(),
        membership_wait: waits,
        progress_subscription: ProgressSubscription::default(),
        log_engine: config.log_engine,
        later_incarnation,
        audit: audit.clone(),
        registries: config.registries.clone(),
    };
    api.start_audit_summaries();
    api.start_state_comparison();
    let surroundings = PlannerInputs {
        registry: api.registry.clone(),
        fetch_contacts: fetch_from_peers(peers.clone()),
        placement_refusals: refusals,
        membership_wait: api.membership_wait.clone(),
        metrics: metrics.scheduler.clone(),
        verifier: NodeVerifier::new(api.clone(), metrics.verification.clone()),
        image_pinner: ImagePinner::new(api.clone()),
    };
    let planner = Planner::new(store.clone(), identity.member_id, stamp.clone(), surroundings);
    start_controllers(planner, &store, &api.registry, &api.background_tasks, &shutdown);
    let parts = PeerParts {
        peers,
        store: store.clone(),
        clock: stamp,
        local_calls: Arc::new(api.clone()),
        shutdown: shutdown.clone(),
    };
    let services = GrpcServices {
        api,
        sessions,
        peers: PeerServer::new(parts),
        request_metrics: metrics.requests.clone(),
    };
    listeners.serve(keys.trust.clone(), keys.manager.clone(), &services, &shutdown)?;
    let docker_address = docker.address();
    docker::serve(docker, &config, &keys, &clock, &services, &shutdown)?;
    tracing::info!(%address, cluster = %keys.cluster, member = identity.member_id, "manager is serving");
    let metrics = (metrics, sources);
    Ok(Manager { address, docker_address, keys, store, shutdown, metrics, failure, audit })
}
