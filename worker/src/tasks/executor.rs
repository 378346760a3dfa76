//! Executes one action of one task: the only place where actions of `step` become calls.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, RwLock, Semaphore, watch};
use tokio::time::timeout;
use warren_container_programs::ContainerPrograms;
use warren_network::NetworkBackend;
use warren_network::files::TaskNetworkFiles;
use warren_runtime::{ContainerMount, Error as RuntimeError, NetworkMode, ProcessState, Runtime, Signal};
use warren_task::{Action, AttemptHistory, ContainerState, DesiredState};
use warren_types::{
    ClusterId, ImageDigest, NodeSettings, TaskAssignment, TaskId, TaskNetworkMode, Timestamp,
};

use crate::handlers::files::{TaskDirs, TaskResolver, hostname};
use crate::handlers::images::TaskImages;
use crate::handlers::ports::HostPortShares;
use crate::handlers::secret_objects::SecretObjects;
use crate::handlers::user_namespaces::{UserNamespaces, is_private};
use crate::handlers::volumes::{MountSources, TaskVolumes};
use crate::network::TaskNetworks;
use crate::network::data_address::DataAddress;
use crate::network::desired::{ConnectedTask, gateway, host_resolv_conf, task_resolv_conf};
use crate::network::dns::HOST_RESOLV_CONF;
use crate::tasks::checks::CheckContext;
use crate::tasks::container;
use crate::tasks::container::spec::{self, ContainerInputs};
use crate::tasks::container::spec_path::with_spec_path;
use crate::tasks::failure::ActionFailure;
use crate::tasks::node_network::{NETWORK_PENDING, NodeNetworkState};
use crate::tasks::templates;

/// Time to wait for the first set-up of the node network. It takes some 10 ms normally.
const NETWORK_TIMEOUT: Duration = Duration::from_secs(3);

/// Everything that actions use; shared by all actors.
pub(crate) struct ActionExecutor {
    pub runtime: Arc<dyn Runtime>,
    pub network: Arc<dyn NetworkBackend>,
    /// The tasks in it.
    pub task_networks: Arc<TaskNetworks>,
    pub data_address: Arc<DataAddress>,
    pub images: TaskImages,
    /// Programs for containers.
    pub programs: ContainerPrograms,
    pub task_dirs: TaskDirs,
    pub ports: HostPortShares,
    pub secret_objects: Arc<dyn SecretObjects>,
    pub user_namespaces: Arc<UserNamespaces>,
    pub volumes: Arc<TaskVolumes>,
    pub check_context: Arc<CheckContext>,
    pub cluster: ClusterId,
    /// Identity of this node, for templates.
    pub desired_state: watch::Receiver<DesiredState>,
    /// State of the node network.
    pub node_network: watch::Receiver<NodeNetworkState>,
    /// Held from the creation of a process to its start, so that a created process is started before others
    /// are created: the first of many tasks is ready early, and the last no later.
    pub start_permits: Arc<Semaphore>,
    /// Write lock: from the listing of containers to the set-up of their networks and ports. Read lock:
    /// removal of these, since a resource removed in between would be re-created without an owner.
    pub setup_lock: RwLock<()>,
    /// A removed task had a failed creation or removal of its container before: orphans may exist.
    pub sweep_needed: Notify,
}

/// Results of earlier actions of this agent for the task.
#[derive(Debug, Clone, Default)]
pub(crate) struct PreparedResources {
    pub network: Option<NetworkMode>,
    pub files: Option<TaskNetworkFiles>,
    /// Mounts of secrets and configs.
    pub secret_objects: Option<Vec<ContainerMount>>,
    pub stop_signal: Option<Signal>,
    /// The last observed process.
    pub pid: Option<u32>,
}

/// An action with its context.
#[derive(Debug, Clone)]
pub(crate) struct ActionRequest {
    pub task: TaskId,
    /// `None` if the task is unknown.
    pub assignment: Option<Arc<TaskAssignment>>,
    pub attempt: u32,
    pub prepared: PreparedResources,
    pub action: Action,
    pub now: Timestamp,
    /// Receives the progress of a pull.
    pub progress: Option<watch::Sender<String>>,
}

/// Result of a completed action.
#[derive(Debug)]
pub(crate) enum ActionOutcome {
    Completed,
    /// The observed state of the container.
    Inspected {
        container: ContainerState,
        container_image: Option<ImageDigest>,
        /// The digest in the recorded assignment.
        digest: Option<ImageDigest>,
        history: Option<AttemptHistory>,
        stop_signal: Option<Signal>,
        pid: Option<u32>,
    },
    /// The image is on the node, with this digest.
    ImageReady(ImageDigest),
    /// The network that its process gets.
    NetworkAttached(NetworkMode),
    /// The task's files.
    FilesWritten(TaskNetworkFiles),
    /// The mounts of its secrets and configs.
    SecretObjectsMounted(Vec<ContainerMount>),
    /// Pid of the running process.
    Started(u32),
    /// There was no process to signal any more.
    NoProcess,
}

impl ActionExecutor {
    /// Executes the action to its end. Every call below it has its own deadline. Dropping the future may
    /// leave an action incomplete, except for [`Action::EnsureImage`], which is cancelled.
    pub async fn perform(&self, job: ActionRequest) -> Result<ActionOutcome, ActionFailure> {
        let container = container::id(&job.task);
        match &job.action {
            Action::Inspect => return self.inspect(&job).await,
            Action::EnsureImage => {
                let (task, output) = (job.assignment()?, job.progress.as_ref());
                let digest = self.images.ensure(task, output).await?;
                return Ok(ActionOutcome::ImageReady(digest));
            }
            Action::EnsureNetwork => return self.attach(&job).await,
            Action::EnsureFiles => {
                let expanded = self.expand_assignment(&job)?;
                let resolver = self.resolver(&expanded).await?;
                return Ok(ActionOutcome::FilesWritten(self.task_dirs.ensure(&expanded, &resolver).await?));
            }
            Action::EnsureVolumes => {
                self.prepare_mounts(&job).await?;
            }
            Action::EnsureSecretObjects => {
                let (task, settings) = (job.assignment()?, self.settings()?);
                let values = templates::template_values(task, &settings);
                let mounts = self.secret_objects.ensure(task, &values).await?;
                return Ok(ActionOutcome::SecretObjectsMounted(mounts));
            }
            Action::RemoveSecretObjects => self.secret_objects.remove(&job.task).await?,
            Action::ReservePorts => {
                self.await_network().await?;
                self.ports.reserve(job.assignment()?).await?;
            }
            Action::RouteTraffic => {
                self.await_network().await?;
                self.ports.route(job.assignment()?).await?;
            }
            Action::EnsureContainer => self.create(&job).await?,
            Action::Start => return Ok(ActionOutcome::Started(self.runtime.start(&container).await?)),
            // The actor runs them, beside its other actions.
            Action::RunHooks(_) => {}
            Action::RecordHistory(history) => self.record_history(&job, history).await?,
            Action::SignalStop => {
                return self.signal(&job, job.prepared.stop_signal.unwrap_or(Signal::TERM)).await;
            }
            Action::Kill => return self.signal(&job, Signal::KILL).await,
            Action::DeleteProcess => {
                ignore_not_found(self.runtime.delete_process(&container).await.map(|_| ()))?;
            }
            Action::RemoveLayer => ignore_not_found(self.runtime.remove_layer(&container).await)?,
            Action::RemoveContainer => {
                ignore_not_found(self.runtime.remove(&container).await)?;
            }
            Action::RemoveNetwork => {
                let _setup = self.setup_lock.read().await;
                self.task_networks.detach(job.task).await?;
                self.user_namespaces.remove_namespace(&job.task)?;
            }
            Action::ReleasePorts => {
                let _setup = self.setup_lock.read().await;
                self.ports.release(&job.task).await?;
            }
            Action::RemoveFiles => {
                // Managers still know the task: they say later whether its log is retained.
                let is_known = self.desired_state.borrow().keeps_files_of(&job.task);
                match is_known {
                    true => self.task_dirs.remove_all_but_log(&job.task).await?,
                    false => self.task_dirs.remove(&job.task).await?,
                }
                // Last: nothing on the node has its ids any more.
                self.user_namespaces.release(&job.task)?;
            }
        }
        Ok(ActionOutcome::Completed)
    }

    async fn inspect(&self, job: &ActionRequest) -> Result<ActionOutcome, ActionFailure> {
        let found = self.runtime.inspect(&container::id(&job.task)).await?;
        let container = container::state(found.as_ref(), job.now).map_err(ActionFailure::transient)?;
        let attempts = found.as_ref().and_then(container::parse_history);
        let made_from = found.as_ref().and_then(container::container_image);
        let digest = found.as_ref().and_then(container::recorded_digest);
        let pid = found.as_ref().and_then(|found| match found.process {
            ProcessState::Running { pid } => Some(pid),
            _ => None,
        });
        let stop_signal = found.map(|found| found.stop_signal);
        Ok(ActionOutcome::Inspected {
            container,
            container_image: made_from,
            digest,
            history: attempts,
            stop_signal,
            pid,
        })
    }

    fn settings(&self) -> Result<NodeSettings, ActionFailure> {
        let unknown = || ActionFailure::transient("this node has not received its settings yet");
        self.desired_state.borrow().settings.clone().ok_or_else(unknown)
    }

    /// The task with templates expanded for this node.
    fn expand_assignment(&self, job: &ActionRequest) -> Result<TaskAssignment, ActionFailure> {
        templates::expand(job.assignment()?, &self.settings()?)
    }

    /// The sources of its mounts, created if missing.
    async fn prepare_mounts(&self, job: &ActionRequest) -> Result<MountSources, ActionFailure> {
        let (task, settings) = (job.assignment()?, self.settings()?);
        Ok(self.volumes.ensure(task, &templates::template_values(task, &settings)).await?)
    }

    /// Nothing is created for a task before the node network is ready. While a starting agent sets it up,
    /// this waits: an error would be reported to managers and be obsolete a moment later.
    async fn await_network(&self) -> Result<(), ActionFailure> {
        let mut node_network = self.node_network.clone();
        let tried = node_network.wait_for(|node_network| *node_network != NodeNetworkState::Pending);
        match timeout(NETWORK_TIMEOUT, tried)
            .await
            .map(|tried| tried.map(|node_network| node_network.clone()))
        {
            Ok(Ok(NodeNetworkState::Ready)) => Ok(()),
            Ok(Ok(NodeNetworkState::NotReady(reason))) => Err(ActionFailure::transient(reason)),
            Ok(Ok(NodeNetworkState::Pending) | Err(_)) | Err(_) => {
                Err(ActionFailure::transient(NETWORK_PENDING))
            }
        }
    }

    async fn attach(&self, job: &ActionRequest) -> Result<ActionOutcome, ActionFailure> {
        let task = job.assignment()?;
        let (connected, is_private) = (ConnectedTask::of(task), is_private(task));
        if connected.is_some() || is_private {
            // For users too: then all containers are listed, and their ids are known.
            self.await_network().await?;
        }
        let namespace = match is_private {
            true => self.user_namespaces.ensure(job.task, connected.is_some()).await?,
            false => None,
        };
        let Some(connected) = connected else {
            let network = match task.spec.network {
                TaskNetworkMode::Host => NetworkMode::Host,
                // The runtime creates its namespace, with the loopback device up, and it ends with the process.
                TaskNetworkMode::None | TaskNetworkMode::Networks(_) => NetworkMode::Isolated,
            };
            return Ok(ActionOutcome::NetworkAttached(network));
        };
        let netns = self.task_networks.attach(job.task, &connected, namespace).await?;
        Ok(ActionOutcome::NetworkAttached(NetworkMode::Joined(netns)))
    }

    /// How the task resolves names.
    async fn resolver(&self, task: &TaskAssignment) -> Result<TaskResolver, ActionFailure> {
        let dns = &task.spec.dns;
        Ok(match task.spec.network {
            TaskNetworkMode::Networks(_) => {
                let none = || ActionFailure::transient("this node has not received its subnet yet");
                let gateway = gateway(&self.settings()?).ok_or_else(none)?;
                TaskResolver { address: task.address, resolv_conf: task_resolv_conf(gateway, dns) }
            }
            TaskNetworkMode::Host => {
                let host = tokio::fs::read(HOST_RESOLV_CONF).await.unwrap_or_default();
                let resolv_conf = host_resolv_conf(&String::from_utf8_lossy(&host), dns);
                TaskResolver { address: self.node_address(), resolv_conf }
            }
            // It reaches no server: with an empty list, programs learn that at once.
            TaskNetworkMode::None => {
                TaskResolver { address: Ipv4Addr::LOCALHOST, resolv_conf: String::new() }
            }
        })
    }

    /// The address of the node for its own tasks.
    pub fn node_address(&self) -> Ipv4Addr {
        self.data_address.current().unwrap_or(Ipv4Addr::LOCALHOST)
    }

    async fn create(&self, job: &ActionRequest) -> Result<(), ActionFailure> {
        let (task, expanded) = (job.assignment()?, self.expand_assignment(job)?);
        let missing = || ActionFailure::transient("the task's network and files do not exist yet");
        let sources = self.prepare_mounts(job).await?;
        let users = is_private(task).then(|| self.user_namespaces.claim(job.task)).transpose()?;
        let joined = ContainerInputs {
            network: job.prepared.network.clone().ok_or_else(missing)?,
            files: job.prepared.files.clone().ok_or_else(missing)?,
            log: self.task_dirs.log_dir(&job.task),
            stdin: self.task_dirs.stdin(&job.task),
            hostname: hostname(&expanded),
            programs: self.programs.clone(),
            sources: sources.paths.clone(),
            secret_objects: job.prepared.secret_objects.clone().unwrap_or_default(),
            users,
            seccomp: self.secret_objects.seccomp_profile(task).await?,
        };
        let spec = spec::container_spec(task, &expanded.spec, job.attempt, self.cluster, &joined)?;
        let made = self.runtime.ensure_created(&spec).await;
        // The created container has its own mounts.
        drop(sources);
        made.map_err(|error| with_spec_path(error, &task.spec))?;
        if let Err(error) = self.images.source.mark_used(&spec.image, job.now).await {
            tracing::debug!(image = %spec.image, %error, "cannot record last use of image");
        }
        Ok(())
    }

    async fn record_history(
        &self,
        job: &ActionRequest,
        history: &AttemptHistory,
    ) -> Result<(), ActionFailure> {
        let recorded =
            self.runtime.set_attempt_history(&container::id(&job.task), &history.to_string()).await;
        Ok(ignore_not_found(recorded)?)
    }

    async fn signal(&self, job: &ActionRequest, signal: Signal) -> Result<ActionOutcome, ActionFailure> {
        match self.runtime.signal(&container::id(&job.task), signal).await {
            Ok(true) => Ok(ActionOutcome::Completed),
            Ok(false) | Err(RuntimeError::NotFound { .. }) => Ok(ActionOutcome::NoProcess),
            Err(error) => Err(error.into()),
        }
    }
}

fn ignore_not_found(result: Result<(), RuntimeError>) -> Result<(), RuntimeError> {
    match result {
        Err(RuntimeError::NotFound { .. }) => Ok(()),
        other => other,
    }
}

impl ActionRequest {
    fn assignment(&self) -> Result<&TaskAssignment, ActionFailure> {
        let unknown = || ActionFailure::transient("the assignment of the task is unknown");
        self.assignment.as_deref().ok_or_else(unknown)
    }
}
