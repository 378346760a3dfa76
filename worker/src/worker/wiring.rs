//! Creates the executor of task actions and its parts.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{Notify, RwLock, Semaphore, watch};
use warren_container_programs::ContainerPrograms;
use warren_health::{ProbeLimits, Prober};
use warren_task::DesiredState;
use warren_types::ClusterId;
use warren_volume::{LocalVolumeDriver, SubpathMounts};

use crate::backends::HostBackends;
use crate::handlers::check_programs::CheckPrograms;
use crate::handlers::files::TaskDirs;
use crate::handlers::images::{FindImageHolders, ImageArrivals, TaskImages};
use crate::handlers::ports::HostPortShares;
use crate::handlers::secret_fetcher::SecretFetcher;
use crate::handlers::secret_objects::tmpfs::SecretTmpfs;
use crate::handlers::secret_objects::{SecretObjects, TmpfsSecretObjects};
use crate::handlers::user_namespaces::UserNamespaces;
use crate::handlers::volumes::TaskVolumes;
use crate::network::TaskNetworks;
use crate::network::data_address::DataAddress;
use crate::node::metrics::WorkerMetrics;
use crate::tasks::checks::{CheckContext, CheckResults};
use crate::tasks::{ActionExecutor, NodeNetworkState};

/// Places of task resources on this node.
pub(super) struct NodePaths {
    pub task_dirs: TaskDirs,
    /// Persistent: volumes.
    pub volumes: PathBuf,
    /// Volatile: subpath mounts, while containers are created.
    pub subpath_mounts: PathBuf,
    /// In memory: secrets and configs.
    pub secret_tmpfs: SecretTmpfs,
    pub user_namespaces: Arc<UserNamespaces>,
}

/// Handlers that parts of the agent share with the actors.
pub(super) struct SharedHandlers {
    pub volumes: Arc<TaskVolumes>,
    pub check_context: Arc<CheckContext>,
    pub secret_objects: Arc<dyn SecretObjects>,
    pub images: TaskImages,
}

/// The states of the node that the executor follows.
pub(super) struct NodeStates {
    pub desired_state: watch::Receiver<DesiredState>,
    pub node_network: watch::Receiver<NodeNetworkState>,
    pub task_networks: Arc<TaskNetworks>,
    pub data_address: Arc<DataAddress>,
}

impl SharedHandlers {
    pub fn new(
        backends: &HostBackends,
        places: &NodePaths,
        secret_fetcher: Arc<dyn SecretFetcher>,
        image_holders: Arc<dyn FindImageHolders>,
        desired_state: watch::Receiver<DesiredState>,
        metrics: WorkerMetrics,
    ) -> Self {
        let kept = Arc::new(LocalVolumeDriver::new(&places.volumes));
        let volumes = TaskVolumes::new(
            kept,
            SubpathMounts::new(&places.subpath_mounts),
            Arc::clone(&backends.runtime),
            desired_state,
        );
        let programs = CheckPrograms(Arc::clone(&backends.runtime));
        let prober = Prober::new(Arc::new(programs), ProbeLimits::for_cores(cores()));
        let objects = TmpfsSecretObjects {
            tmpfs: places.secret_tmpfs.clone(),
            fetcher: Arc::clone(&secret_fetcher),
            runtime: Arc::clone(&backends.runtime),
            user_namespaces: Arc::clone(&places.user_namespaces),
        };
        Self {
            volumes: Arc::new(volumes),
            check_context: Arc::new(CheckContext { prober, results: CheckResults::default(), metrics }),
            secret_objects: Arc::new(objects),
            images: TaskImages {
                source: Arc::clone(&backends.image_source),
                secret_fetcher,
                holders: image_holders,
                arrivals: ImageArrivals::default(),
            },
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Creates the executor of actions.
pub(super) fn action_executor(
    backends: &HostBackends,
    places: NodePaths,
    shared: &SharedHandlers,
    programs: ContainerPrograms,
    cluster: ClusterId,
    states: NodeStates,
) -> ActionExecutor {
    let NodeStates { desired_state, node_network, task_networks, data_address } = states;
    ActionExecutor {
        runtime: Arc::clone(&backends.runtime),
        network: Arc::clone(&backends.network),
        task_networks,
        data_address,
        images: shared.images.clone(),
        programs,
        task_dirs: places.task_dirs,
        ports: HostPortShares::new(Arc::clone(&backends.network)),
        secret_objects: Arc::clone(&shared.secret_objects),
        user_namespaces: places.user_namespaces,
        volumes: Arc::clone(&shared.volumes),
        check_context: Arc::clone(&shared.check_context),
        cluster,
        desired_state,
        node_network,
        // Starts are CPU bound: more at once delay the first ones and speed up none.
        start_permits: Arc::new(Semaphore::new((3 * cores()).max(4))),
        setup_lock: RwLock::default(),
        sweep_needed: Notify::new(),
    }
}
