//! The composition root: creates and starts the parts of a worker, and stops them.

mod removal_cleanup;
mod telemetry;
mod wiring;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::{Mutex, OnceCell, watch};
use warren_container_programs::{ContainerPrograms, ensure_installed};
use warren_control::{
    BackgroundTasks, Clock, RandomSource, Shutdown, ShutdownTimeout, SystemClock, system_random,
};
use warren_image::{ImageStore, ImportOptions};
use warren_security::files::{FileError, ensure_private_dir};
use warren_security::{
    Identity, MembershipStore, ReloadableCertificate, Role, TlsError, Trust, trusting_client_config,
};
use warren_task::DesiredState;
use warren_types::{AssignmentVersion, ClusterId, NetworkView, NodeCondition, NodeId};

use crate::backends::{HostBackends, programs_dir};
use crate::cache::{AssignmentCache, Cache, NetworkViewCache, cache_files};
use crate::certificate::CertificateRenewal;
use crate::connectivity::ConnectivityMonitor;
use crate::handlers::files::TaskDirs;
use crate::handlers::secret_fetcher::SecretFetcher;
use crate::handlers::secret_objects::tmpfs::{SecretTmpfs, SecretTmpfsError};
use crate::handlers::user_namespaces::{UserIds, UserNamespaces};
use crate::image_gc::{self, ImageGc};
use crate::network::TaskNetworks;
use crate::network::data_address::DataAddress;
use crate::network::dns::{HOST_RESOLV_CONF, NodeDns};
use crate::network::wireguard_key::{self, WireGuardKeyError, ensure_wireguard_key};
use crate::node::NodeOverrides;
use crate::node::conditions::NodeConditions;
use crate::node::meter::NodeMeter;
use crate::node::metrics::WorkerMetrics;
use crate::node::monitor::NodeMonitor;
use crate::node::stats::TaskStats;
use crate::session::{
    self, ArchiveReader, HeartbeatStats, ImportFn, ManagerImageHolders, ManagerSecretFetcher, Removal,
    RemovalRecord, SessionContext, SessionRejection, SharedDialer, StreamServices, TaskLogs, TlsDialer,
};
use crate::tasks::supervisor::{TaskSupervisor, TaskSupervisorParts};
use crate::tasks::{NETWORK_PENDING, NodeNetworkState};
use crate::verification::{CheckContainers, NodeVerifier};
use wiring::{NodePaths, NodeStates, SharedHandlers, action_executor};

/// Time limit of the actions in progress when the agent stops.
const STOP_DEADLINE: Duration = Duration::from_secs(70);
/// Changes of the desired state within this interval are saved together.
const CACHE_INTERVAL: Duration = Duration::from_millis(200);
/// The pause is this many times as long as saving takes: a large network view may change all the time.
const CACHE_PAUSE_FACTOR: u32 = 20;
/// The longest pause: tasks that end wait until their withdrawal is saved.
const MAX_CACHE_PAUSE: Duration = Duration::from_secs(1);
/// Delay after a failed save.
const CACHE_RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Configuration of a worker.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// Data directory, with `worker/cache.json` and `worker/network.json` (disposable), `worker/removed.json`
    /// (after a removal from the cluster), `worker/spool`, `worker/bin` and `tasks/<id>`. Programs must be
    /// executable there.
    pub data_dir: PathBuf,
    /// Volatile directory: secrets, user namespaces, and files for the creation of containers.
    pub run_dir: PathBuf,
    /// Addresses of managers, each `host:port`; dialled in turn, as are those that managers announce. On a
    /// manager's own node: that manager, which comes first.
    pub managers: Vec<String>,
    /// Certificate and key of this node.
    pub certificate: Arc<ReloadableCertificate>,
    /// What it trusts.
    pub trust: Arc<Trust>,
    /// Configured values that replace measured ones.
    pub overrides: NodeOverrides,
    /// Ids for users of containers that have a user namespace of their own.
    pub user_ids: UserIds,
    /// Maximum size of an image archive in bytes, both packed and unpacked.
    pub max_archive_bytes: u64,
    /// Store for renewed certificates; `None` on a manager's own node, whose certificate is renewed by the
    /// manager, and which only a removal record removes.
    pub membership: Option<MembershipStore>,
}

/// A worker cannot start.
#[derive(Debug, thiserror::Error)]
pub enum WorkerStartError {
    /// The certificate is not of a node.
    #[error("the certificate is for {found}; a worker needs a certificate of a worker or manager node")]
    Certificate {
        /// Principal of the certificate.
        found: String,
    },
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The data directory cannot be used.
    #[error(transparent)]
    DataDir(#[from] FileError),
    /// The key for packets between nodes cannot be used.
    #[error(transparent)]
    WireGuardKey(#[from] WireGuardKeyError),
    /// The programs for containers cannot be installed.
    #[error(transparent)]
    Programs(#[from] warren_container_programs::Error),
}

/// Why a worker cannot run tasks now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkerNotReady {
    /// No session was established yet.
    #[error("no session with a manager yet")]
    Session,
    /// containerd does not answer.
    #[error("containerd does not answer")]
    Runtime,
    /// The node network is not set up.
    #[error("node network is not ready: {reason}")]
    Network {
        /// The cause.
        reason: String,
    },
}

/// Errors while a worker stopped. The containers keep running in any case.
#[derive(Debug, thiserror::Error)]
pub enum WorkerStopError {
    /// Tasks of the agent were aborted.
    #[error(transparent)]
    Tasks(#[from] ShutdownTimeout),
    /// The cgroup of the node could not be removed.
    #[error("cannot remove the cgroup of the node")]
    Runtime(#[from] warren_runtime::Error),
    /// The node network could not be removed.
    #[error("cannot remove the node network")]
    Network(#[from] warren_network::Error),
    /// The tmpfs for secrets and configs could not be unmounted.
    #[error("cannot unmount the secrets tmpfs")]
    SecretTmpfs(#[from] SecretTmpfsError),
    /// The private containerd could not be stopped.
    #[error("cannot stop the private containerd")]
    Containerd(#[from] warren_runtime::supervise::Error),
}

/// A running worker. Stop it with [`Worker::stop`]; dropping it is not a clean stop.
pub struct Worker {
    backends: HostBackends,
    shutdown: Shutdown,
    background_tasks: BackgroundTasks,
    cluster: ClusterId,
    tasks_dir: PathBuf,
    secret_tmpfs: SecretTmpfs,
    user_namespaces: Arc<UserNamespaces>,
    cache: AssignmentCache,
    view_cache: NetworkViewCache,
    task_networks: Arc<TaskNetworks>,
    removal_record: Option<RemovalRecord>,
    desired_state: watch::Receiver<DesiredState>,
    is_connected: watch::Receiver<bool>,
    rejection: watch::Receiver<Option<SessionRejection>>,
    node_network: watch::Receiver<NodeNetworkState>,
    conditions: Arc<NodeConditions>,
    clock: Arc<dyn Clock>,
    meter: Arc<NodeMeter>,
    stats: Arc<TaskStats>,
    metrics: WorkerMetrics,
}

impl Worker {
    /// Adopts the containers on this machine, then connects to a manager. Returns at once; see
    /// [`Worker::ready`]. A node with a removal record does not connect: it only removes its containers.
    pub async fn start(config: WorkerConfig, backends: HostBackends) -> Result<Self, WorkerStartError> {
        let tls = trusting_client_config(Arc::clone(&config.trust), Some(Arc::clone(&config.certificate)))?;
        let (_, node) = node_identity(&config.certificate.identity())?;
        let dialer = TlsDialer::new(node, config.managers.clone(), tls);
        let dial: SharedDialer = match &config.membership {
            Some(_) => Arc::new(dialer),
            None => Arc::new(dialer.for_manager_node()),
        };
        Self::start_with(config, backends, dial, system_random()).await
    }

    /// As [`Worker::start`], with another dialer and another source of randomness.
    pub(crate) async fn start_with(
        config: WorkerConfig,
        backends: HostBackends,
        dial: SharedDialer,
        chance: RandomSource,
    ) -> Result<Self, WorkerStartError> {
        let (cluster, node) = node_identity(&config.certificate.identity())?;
        let own = config.data_dir.join("worker");
        ensure_private_dir(&own)?;
        ensure_private_dir(&own.join("spool"))?;
        let private_key = ensure_wireguard_key(&own.join(wireguard_key::FILE))?;
        let wireguard_key = wireguard_key::public_half(&private_key);
        let programs = install_programs(programs_dir(&config.data_dir)).await?;
        let logger = programs.logger.clone();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let shutdown = Shutdown::new();
        let background_tasks =
            BackgroundTasks::new(shutdown.clone(), Arc::clone(&clock), Arc::clone(&chance));
        let [assignment_file, view_file] = cache_files(&config.data_dir);
        let cache = AssignmentCache::new(assignment_file, cluster, node);
        let view_cache = NetworkViewCache::new(view_file, cluster, node);
        let record = RemovalRecord::new(&config.data_dir, cluster, node);
        let removal = record.load();
        // A manager's own node receives no removal: it is only started with a record to clean up.
        let record = (config.membership.is_some() || removal.is_some()).then_some(record);
        let mut known = cache.load().await;
        if removal.is_some() {
            known.remove_all();
        }
        let (desired_state, desired_rx) = watch::channel(known);
        let (network_view, view_rx) = watch::channel(view_cache.load().await);
        let (applied_network, applied_rx) = watch::channel(AssignmentVersion::default());
        let (stored_network, stored_rx) = watch::channel(view_rx.borrow().version);
        // An agent that starts again without a manager has what it acknowledged.
        let (acknowledged_network, acknowledged_rx) = watch::channel(AssignmentVersion::default());
        shutdown.spawn_cancellable(
            "worker.network-acknowledgement",
            publish_lesser(applied_rx, stored_rx, acknowledged_network),
        );
        let data_address = Arc::new(DataAddress::new(
            config.overrides.data_address,
            config.overrides.address.as_deref(),
            desired_rx.clone(),
            view_rx.clone(),
        ));
        let task_networks = Arc::new(TaskNetworks::new(
            Arc::clone(&backends.network),
            view_rx.clone(),
            desired_rx.clone(),
            NodeDns::new(Arc::clone(&backends.bind_dns), HOST_RESOLV_CONF),
        ));
        let (connected, connection) = watch::channel(false);
        let removed =
            removal.map(|Removal { reason, .. }| SessionRejection::Removed { reason, never_connected: true });
        let is_removed = removed.is_some();
        let (rejection, rejection_rx) = watch::channel(removed);
        let (health, metrics) = (Arc::<NodeConditions>::default(), WorkerMetrics::default());
        let (node_network_tx, node_network_rx) = watch::channel(NodeNetworkState::Pending);
        let tasks_dir = config.data_dir.join("tasks");
        let directories = TaskDirs::new(tasks_dir.clone());
        let memory = SecretTmpfs::in_run_dir(&config.run_dir);
        let user_namespaces = Arc::new(UserNamespaces::new(
            config.run_dir.join("user-namespaces"),
            config.user_ids,
            programs.namespaces.clone(),
        ));
        let contact = Arc::new(ConnectivityMonitor::resume(&config.run_dir));
        let paths = NodePaths {
            task_dirs: directories.clone(),
            volumes: config.data_dir.join("volumes"),
            subpath_mounts: config.run_dir.join("volumes"),
            secret_tmpfs: memory.clone(),
            user_namespaces: Arc::clone(&user_namespaces),
        };
        let (manager, line) = watch::channel(None);
        let secret_fetcher: Arc<dyn SecretFetcher> = Arc::new(ManagerSecretFetcher::new(node, line.clone()));
        let shared = SharedHandlers::new(
            &backends,
            &paths,
            secret_fetcher,
            Arc::new(ManagerImageHolders::new(line)),
            desired_rx.clone(),
            metrics.clone(),
        );
        let supervisor = TaskSupervisor::new(TaskSupervisorParts {
            executor: action_executor(
                &backends,
                paths,
                &shared,
                programs,
                cluster,
                NodeStates {
                    desired_state: desired_rx.clone(),
                    node_network: node_network_rx.clone(),
                    task_networks: Arc::clone(&task_networks),
                    data_address: Arc::clone(&data_address),
                },
            ),
            clock: Arc::clone(&clock),
            shutdown: shutdown.clone(),
            desired_state: desired_rx.clone(),
            conditions: Arc::clone(&health),
            metrics: metrics.clone(),
            node_network: node_network_tx,
            applied_network,
            network_options: config.overrides.network.clone(),
            private_key,
            connectivity: contact.connectivity(),
        });
        supervisor.start(&background_tasks, &chance);
        Arc::clone(&contact).start(desired_rx.clone(), &background_tasks);
        let meter = Arc::new(NodeMeter::new(config.data_dir));
        let stats = Arc::new(TaskStats::new(Arc::clone(&backends.runtime), desired_rx.clone()));
        NodeMonitor {
            meter: Arc::clone(&meter),
            stats: Arc::clone(&stats),
            conditions: Arc::clone(&health),
            metrics: metrics.clone(),
            is_connected: connection.clone(),
            data_address: Arc::clone(&data_address),
        }
        .start(&background_tasks);
        let image_gc = Arc::new(ImageGc {
            source: Arc::clone(&backends.image_source),
            runtime: Arc::clone(&backends.runtime),
            desired_state: desired_rx.clone(),
            clock: Arc::clone(&clock),
        });
        let pressure =
            image_gc::start(Arc::clone(&image_gc), Arc::clone(&meter), &background_tasks, shutdown.token());
        let certificate_expired = watch::Sender::new(false);
        if let Some(store) = config.membership.filter(|_| !is_removed) {
            let (live, dial) = (Arc::clone(&config.certificate), Arc::clone(&dial));
            let trust = Arc::clone(&config.trust);
            let (random, clock, desired_state) = (chance(), Arc::clone(&clock), desired_rx.clone());
            let expired = certificate_expired.clone();
            CertificateRenewal { store, live, trust, desired_state, expired, dial, random, clock }
                .start(&background_tasks, &shutdown);
        }
        let containers = CheckContainers {
            runtime: Arc::clone(&backends.runtime),
            node,
            logger,
            output_dir: own.join("checks"),
            lock: Mutex::default(),
        };
        let verifier = Arc::new(NodeVerifier::new(
            Arc::clone(&health),
            desired_rx.clone(),
            network_view.subscribe(),
            own.clone(),
            containers,
        ));
        verifier.start(&background_tasks);
        let services = StreamServices {
            verifier,
            import: image_import(backends.images.clone(), own.join("spool"), config.max_archive_bytes),
            logs: TaskLogs {
                task_dirs: directories,
                reporter: supervisor.reporter(),
                desired_state: desired_rx.clone(),
            },
            image_gc,
            image_arrivals: shared.images.arrivals.clone(),
            secret_fetcher: Arc::clone(&shared.images.secret_fetcher),
            volumes: Arc::clone(&shared.volumes),
            runtime: Arc::clone(&backends.runtime),
            sockets: warren_health::SocketFactory::default(),
        };
        let context = SessionContext {
            cluster,
            node,
            certificate: config.certificate,
            trust: config.trust,
            desired_state,
            network_view,
            applied_network: acknowledged_rx,
            data_address,
            wireguard_key,
            reporter: supervisor.reporter(),
            runtime: Arc::clone(&backends.runtime),
            overrides: config.overrides,
            meter: Arc::clone(&meter),
            conditions: Arc::clone(&health),
            heartbeat_stats: Arc::new(HeartbeatStats::new(
                Arc::clone(&stats),
                Arc::clone(&shared.check_context),
            )),
            stream_services: Arc::new(services),
            disk_pressure: pressure,
            background_tasks: background_tasks.clone(),
            random: chance,
            connectivity: Arc::clone(&contact),
            is_connected: connected,
            manager_channel: manager,
            certificate_expired,
            rejection,
            removal_record: record.clone(),
        };
        if !is_removed {
            shutdown.spawn("worker.session", session::run(Arc::new(context), dial, shutdown.token()));
        }
        let saving = save_on_change(cache.clone(), desired_rx.clone(), shutdown.clone(), |_| ());
        shutdown.spawn("worker.cache", saving);
        let record_stored = move |view: &NetworkView| {
            stored_network.send_replace(view.version);
        };
        let saving = save_on_change(view_cache.clone(), view_rx, shutdown.clone(), record_stored);
        shutdown.spawn("worker.network-cache", saving);
        Ok(Self {
            backends,
            shutdown,
            background_tasks,
            cluster,
            tasks_dir,
            secret_tmpfs: memory,
            user_namespaces,
            cache,
            view_cache,
            task_networks,
            removal_record: record,
            desired_state: desired_rx,
            is_connected: connection,
            rejection: rejection_rx,
            node_network: node_network_rx,
            conditions: health,
            clock,
            meter,
            stats,
            metrics,
        })
    }

    /// Whether the node can run tasks; else the first missing condition.
    pub fn ready(&self) -> Result<(), WorkerNotReady> {
        if self.conditions.is_active(NodeCondition::RuntimeUnavailable) {
            return Err(WorkerNotReady::Runtime);
        }
        if !*self.is_connected.borrow() {
            return Err(WorkerNotReady::Session);
        }
        match self.node_network.borrow().clone() {
            NodeNetworkState::Ready => Ok(()),
            NodeNetworkState::Pending => Err(WorkerNotReady::Network { reason: NETWORK_PENDING.to_string() }),
            NodeNetworkState::NotReady(reason) => Err(WorkerNotReady::Network { reason }),
        }
    }

    /// The active conditions as sentences, as in heartbeats.
    pub fn conditions(&self) -> Vec<String> {
        self.conditions.messages()
    }

    /// The desired state, if known.
    pub(crate) fn desired_state(&self) -> watch::Receiver<DesiredState> {
        self.desired_state.clone()
    }

    /// Registry of this worker's background tasks.
    pub fn background_tasks(&self) -> &BackgroundTasks {
        &self.background_tasks
    }

    /// Stops the agent and keeps the containers. Without containers, the node-wide resources are removed too:
    /// the network, and the private containerd.
    pub async fn stop(mut self) -> Result<(), WorkerStopError> {
        let stopped = self.shutdown.stop(STOP_DEADLINE).await;
        let is_removed = matches!(&*self.rejection.borrow(), Some(SessionRejection::Removed { .. }));
        if let Err(error) = self.cache.store(&self.desired_state.borrow().clone()).await {
            tracing::warn!(%error, "cannot write the cache; the next start resynchronizes");
        }
        if let Err(error) = self.view_cache.store(&self.task_networks.view()).await {
            tracing::warn!(%error, "cannot write the network cache; the next start resynchronizes");
        }
        self.task_networks.dns().stop().await;
        let is_empty = self.is_empty().await;
        // A removed node does not wait for containers of other clusters.
        if is_empty || is_removed && self.has_no_own_containers().await {
            self.sweep().await;
            // Secrets are removed even if something else fails.
            let forgotten = self.secret_tmpfs.remove();
            self.backends.runtime.remove_node().await?;
            self.backends.network.remove_node().await?;
            forgotten?;
            if is_empty && let Some(containerd) = self.backends.containerd.take() {
                containerd.stop().await?;
            }
            if is_removed {
                self.forget_cluster();
            }
        }
        Ok(stopped?)
    }

    /// The final sweep; no further one follows.
    async fn sweep(&self) {
        if let Err(error) = self.user_namespaces.sweep(|_| false) {
            tracing::warn!(%error, "cannot remove user namespaces");
        }
        match self.backends.runtime.sweep_orphans().await {
            Ok(swept) if swept.is_empty() => {}
            Ok(swept) => tracing::info!(?swept, "removed orphaned resources"),
            Err(error) => tracing::warn!(%error, "cannot list orphaned resources"),
        }
    }

    /// Whether no container is left; `false` if containerd does not answer.
    async fn is_empty(&self) -> bool {
        self.backends.runtime.list().await.is_ok_and(|found| found.is_empty())
    }
}

/// Cluster and node of the certificate.
pub(crate) fn node_identity(identity: &Identity) -> Result<(ClusterId, NodeId), WorkerStartError> {
    let wrong = || WorkerStartError::Certificate { found: identity.to_string() };
    if !matches!(identity.role(), Role::Worker | Role::Manager) {
        return Err(wrong());
    }
    let cluster = identity.cluster().parse().map_err(|_| wrong())?;
    Ok((cluster, identity.id().parse().map_err(|_| wrong())?))
}

/// Installs the programs for containers.
async fn install_programs(directory: PathBuf) -> Result<ContainerPrograms, WorkerStartError> {
    let install = move || {
        ensure_private_dir(&directory)?;
        Ok(ensure_installed(&directory)?)
    };
    tokio::task::spawn_blocking(install).await.expect("writing two files does not panic")
}

/// Imports archives into `images`. Before the first import, leftovers of killed imports are released.
fn image_import(images: ImageStore, spool: PathBuf, max_bytes: u64) -> ImportFn {
    let swept = Arc::new(OnceCell::new());
    Arc::new(move |archive: ArchiveReader| {
        let (images, swept, spool_dir) = (images.clone(), Arc::clone(&swept), spool.clone());
        async move {
            swept.get_or_try_init(|| images.sweep_leases()).await?;
            images.import(archive, ImportOptions { spool_dir, max_bytes, name: None }).await
        }
        .boxed()
    })
}

/// Publishes the lesser of two versions until one of them ends.
async fn publish_lesser(
    mut one: watch::Receiver<AssignmentVersion>,
    mut other: watch::Receiver<AssignmentVersion>,
    lesser: watch::Sender<AssignmentVersion>,
) {
    loop {
        let least = (*one.borrow_and_update()).min(*other.borrow_and_update());
        lesser.send_if_modified(|version| std::mem::replace(version, least) != least);
        let changed =
            tokio::select! { changed = one.changed() => changed, changed = other.changed() => changed };
        if changed.is_err() {
            return;
        }
    }
}

/// Saves the newest content after changes, and calls `on_stored` with what is saved.
async fn save_on_change<C: Cache>(
    cache: C,
    mut content: watch::Receiver<C::Content>,
    shutdown: Shutdown,
    on_stored: impl Fn(&C::Content) + Send + Sync,
) {
    let stop = shutdown.token();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            changed = content.changed() => if changed.is_err() { return },
        }
        let newest = content.borrow_and_update().clone();
        let began = tokio::time::Instant::now();
        let pause = match cache.store(&newest).await {
            Ok(()) => {
                on_stored(&newest);
                (began.elapsed() * CACHE_PAUSE_FACTOR).clamp(CACHE_INTERVAL, MAX_CACHE_PAUSE)
            }
            Err(error) => {
                tracing::warn!(%error, "cannot write the cache");
                content.mark_changed();
                CACHE_RETRY_INTERVAL
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

#[cfg(test)]
mod containerd_tests;
#[cfg(test)]
mod tests;
