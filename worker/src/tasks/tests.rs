//! Agents on a machine that outlives them: fake containers, fake network, a real directory.

mod crash_injection;
mod crashes;
mod disconnected;
mod fakes;
mod health;
mod hooks;
mod image;
mod layers;
mod lifecycle;
mod networks;
mod orphans;
mod start_order;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::{Notify, RwLock, Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};
use warren_container_programs::ContainerPrograms;
use warren_control::{BackgroundTasks, Clock, Shutdown, SystemClock};
use warren_health::{ProbeLimits, Prober};
use warren_network::fake::FakeNetwork;
use warren_runtime::fake::FakeRuntime;
use warren_runtime::{ContainerId, ProcessState, Runtime};
use warren_task::DesiredState;
use warren_types::{AssignmentVersion, NetworkView, TaskAssignment, TaskReport};
use warren_volume::SubpathMounts;
use warren_volume::fake::FakeVolumeDriver as FakeVolumes;

use crate::connectivity::NodeConnectivity;
use crate::fake_manager::at;
use crate::fixtures::{self, TIMEOUT, eventually, image, images, loopback_dns, settings, task_id};
use crate::handlers::files::TaskDirs;
use crate::handlers::images::fake::FakeImages;
use crate::handlers::images::{ImageArrivals, ImageHolders, TaskImages};
use crate::handlers::ports::HostPortShares;
use crate::handlers::secret_fetcher::fake::FakeSecretFetcher;
use crate::handlers::user_namespaces::{UserIds, UserNamespaces};
use crate::handlers::volumes::TaskVolumes;
use crate::network::data_address::DataAddress;
use crate::network::dns::{BindDns, NodeDns};
use crate::network::{NetworkOptions, TaskNetworks};
use crate::node::conditions::NodeConditions;
use crate::node::metrics::WorkerMetrics;
use crate::tasks::checks::{CheckContext, CheckResults};
use crate::tasks::reporter::TaskReporter;
use crate::tasks::supervisor::{TaskSupervisor, TaskSupervisorParts};
use crate::tasks::{ActionExecutor, NodeNetworkState};
use crash_injection::{CrashPlan, CrashingBackend};
use fakes::{FakeContainerExec, FakeSecretObjects, FixedHolders};

/// Where other nodes would send packets.
const DATA_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

/// A clock that only the time of the tests advances, however slow the machine is.
#[derive(Debug)]
struct VirtualClock {
    began_millis: u64,
    began: Instant,
}

impl VirtualClock {
    fn new() -> Self {
        Self { began_millis: SystemClock::new().unix_millis(), began: Instant::now() }
    }
}

impl Clock for VirtualClock {
    fn unix_millis(&self) -> u64 {
        self.began_millis + u64::try_from(self.began.elapsed().as_millis()).unwrap()
    }

    fn wall_millis(&self) -> u64 {
        self.unix_millis()
    }

    fn instant(&self) -> Instant {
        Instant::now()
    }
}

/// What remains after an agent was killed.
struct Machine {
    runtime: FakeRuntime,
    images: FakeImages,
    secret_fetcher: FakeSecretFetcher,
    image_holders: ImageHolders,
    image_arrivals: ImageArrivals,
    network: Arc<FakeNetwork>,
    view: watch::Sender<NetworkView>,
    bind_dns: BindDns,
    secret_objects: FakeSecretObjects,
    volumes: Arc<FakeVolumes>,
    exec: Arc<FakeContainerExec>,
    clock: Arc<VirtualClock>,
    dir: TempDir,
}

/// One run of an agent.
struct Agent {
    crash_plan: Arc<CrashPlan>,
    shutdown: Shutdown,
    desired_state: watch::Sender<DesiredState>,
    connectivity: watch::Sender<NodeConnectivity>,
    reporter: Arc<TaskReporter>,
    conditions: Arc<NodeConditions>,
    background_tasks: BackgroundTasks,
    check_context: Arc<CheckContext>,
    applied_network: watch::Receiver<AssignmentVersion>,
    data_address: Arc<DataAddress>,
}

impl Machine {
    fn new() -> Self {
        let runtime = FakeRuntime::new();
        runtime.add_image(&image());
        let network = Arc::new(FakeNetwork::new("/run/none"));
        let (objects, volumes, exec) =
            (FakeSecretObjects::default(), Arc::new(FakeVolumes::new()), Arc::default());
        let dir = tempfile::tempdir().unwrap();
        let fetcher = FakeSecretFetcher::default();
        Self {
            runtime,
            images: images(),
            secret_fetcher: fetcher,
            image_holders: ImageHolders::default(),
            image_arrivals: ImageArrivals::default(),
            network,
            view: watch::Sender::default(),
            bind_dns: loopback_dns(),
            secret_objects: objects,
            volumes,
            exec,
            clock: Arc::new(VirtualClock::new()),
            dir,
        }
    }

    /// An agent that knows `desired_state` and is killed by the plan `crash_plan`.
    fn agent(&self, desired_state: DesiredState, crash_plan: Arc<CrashPlan>) -> Agent {
        let shutdown = Shutdown::new();
        let (desired_state, expected) = watch::channel(desired_state);
        let (node_network, network_receiver) = watch::channel(NodeNetworkState::Pending);
        let connectivity = watch::Sender::new(NodeConnectivity::Connected);
        let applied_network = watch::Sender::new(AssignmentVersion::default());
        let network = Arc::new(CrashingBackend::new(Arc::clone(&self.network), &crash_plan));
        let health = Arc::<NodeConditions>::default();
        let clock = Arc::clone(&self.clock);
        let metrics = WorkerMetrics::default();
        let pins = SubpathMounts::new(self.dir.path().join("pins"));
        let volumes =
            TaskVolumes::new(self.volumes.clone(), pins, Arc::new(self.runtime.clone()), expected.clone());
        let prober = Prober::new(self.exec.clone(), ProbeLimits::for_cores(1));
        let results = CheckResults::default();
        let checking = Arc::new(CheckContext { prober, results, metrics: metrics.clone() });
        let view = self.view.subscribe();
        let dns = NodeDns::new(self.bind_dns.clone(), "/none");
        let task_networks = Arc::new(TaskNetworks::new(network.clone(), view.clone(), expected.clone(), dns));
        let data_address = Arc::new(DataAddress::new(Some(DATA_ADDRESS), None, expected.clone(), view));
        let user_namespaces = Arc::new(UserNamespaces::new(
            self.dir.path().join("user-namespaces"),
            UserIds::default(),
            "/none/warren-namespaces".into(),
        ));
        let driver = ActionExecutor {
            runtime: Arc::new(CrashingBackend::new(self.runtime.clone(), &crash_plan)),
            network: network.clone(),
            task_networks: Arc::clone(&task_networks),
            data_address: Arc::clone(&data_address),
            images: TaskImages {
                source: Arc::new(self.images.clone()),
                secret_fetcher: Arc::new(self.secret_fetcher.clone()),
                holders: Arc::new(FixedHolders(self.image_holders.clone())),
                arrivals: self.image_arrivals.clone(),
            },
            programs: ContainerPrograms::in_dir("/none".as_ref()),
            task_dirs: TaskDirs::new(self.dir.path().join("tasks")),
            ports: HostPortShares::new(network),
            secret_objects: Arc::new(CrashingBackend::new(self.secret_objects.clone(), &crash_plan)),
            user_namespaces,
            volumes: Arc::new(volumes),
            check_context: Arc::clone(&checking),
            desired_state: expected.clone(),
            cluster: settings().cluster,
            node_network: network_receiver,
            start_permits: Arc::new(Semaphore::new(4)),
            setup_lock: RwLock::default(),
            sweep_needed: Notify::new(),
        };
        let supervisor = TaskSupervisor::new(TaskSupervisorParts {
            executor: driver,
            clock: clock.clone(),
            shutdown: shutdown.clone(),
            desired_state: expected,
            conditions: Arc::clone(&health),
            metrics,
            node_network,
            applied_network: applied_network.clone(),
            network_options: NetworkOptions::default(),
            private_key: fixtures::wireguard().private_key,
            connectivity: connectivity.subscribe(),
        });
        let random: warren_control::RandomSource = Arc::new(|| u64::MAX / 2);
        let tasks_run = BackgroundTasks::new(shutdown.clone(), clock, Arc::clone(&random));
        supervisor.start(&tasks_run, &random);
        let reporter = supervisor.reporter();
        Agent {
            crash_plan,
            shutdown,
            desired_state,
            connectivity,
            reporter,
            conditions: health,
            background_tasks: tasks_run,
            check_context: checking,
            applied_network: applied_network.subscribe(),
            data_address,
        }
    }

    /// An agent that runs until it is killed.
    fn agent_without_crash(&self, desired_state: DesiredState) -> Agent {
        self.agent(desired_state, CrashPlan::never())
    }

    /// The pid of a task's running process.
    async fn pid(&self, number: u64) -> Option<u32> {
        let found = self.runtime.list().await.unwrap();
        let of_task = found.into_iter().find(|found| found.id.as_str() == task_id(number).to_string())?;
        match of_task.process {
            ProcessState::Running { pid } => Some(pid),
            _ => None,
        }
    }

    /// Everything that is left of tasks.
    async fn leftovers(&self) -> Vec<String> {
        let mut left: Vec<String> = Vec::new();
        left.extend(self.runtime.list().await.unwrap().iter().map(|found| format!("container {}", found.id)));
        left.extend(self.runtime.orphans().iter().map(|id| format!("orphan {id}")));
        left.extend(self.network.tasks().keys().map(|task| format!("network {task}")));
        left.extend(self.network.ports().keys().map(|port| format!("port {port}")));
        let entries = std::fs::read_dir(self.dir.path().join("tasks"));
        let names = entries.into_iter().flatten().map(|entry| entry.unwrap().file_name());
        left.extend(self.secret_objects.tasks().iter().map(|task| format!("contents of {task}")));
        left.extend(names.map(|name| format!("directory {}", name.display())));
        left
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.crash_plan.crash();
        self.shutdown.token().cancel();
    }
}

impl Agent {
    /// Kills the agent at once, whatever it is doing.
    async fn kill(self) {
        self.crash_plan.crash();
        self.shutdown.stop(Duration::ZERO).await.ok();
    }

    /// Sends the agent a new desired state.
    fn assign(&self, tasks: Vec<TaskAssignment>) {
        self.desired_state.send_modify(|desired_state| *desired_state = assigned(tasks));
    }

    /// The first report of a task that matches.
    async fn wait_for_report(&self, number: u64, expected: impl Fn(&TaskReport) -> bool) -> TaskReport {
        let mut last = None;
        let found = timeout(TIMEOUT * 10, async {
            loop {
                last = self.reporter.latest(&task_id(number));
                if let Some(report) = last.as_ref().filter(|report| expected(report)) {
                    return report.clone();
                }
                // Between two checks; the loop has a deadline.
                sleep(Duration::from_millis(5)).await;
            }
        });
        let found = found.await;
        found.unwrap_or_else(|_| panic!("the last report was {last:?}"))
    }

    async fn wait_ready(&self, number: u64) -> TaskReport {
        self.wait_for_report(number, |report| report.ready).await
    }

    async fn wait_removed(&self, number: u64) -> TaskReport {
        self.wait_for_report(number, |report| report.removed).await
    }
}

fn container(number: u64) -> ContainerId {
    ContainerId::parse(&task_id(number).to_string()).unwrap()
}

/// A desired state from a manager.
fn assigned(tasks: Vec<TaskAssignment>) -> DesiredState {
    let stops = |task: &&TaskAssignment| task.desired > warren_types::DesiredTaskState::Running;
    let withdrawn = tasks.iter().filter(stops).map(|task| task.id).collect();
    let tasks: BTreeMap<_, _> = tasks.into_iter().map(|task| (task.id, Arc::new(task))).collect();
    DesiredState {
        settings: Some(settings()),
        version: at(1),
        tasks,
        withdrawn,
        is_confirmed: true,
        ..Default::default()
    }
}

/// A desired state from the cache, before any manager.
fn cached(tasks: Vec<TaskAssignment>) -> DesiredState {
    DesiredState { is_confirmed: false, ..assigned(tasks) }
}
