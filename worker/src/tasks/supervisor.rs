//! Manages the actors of tasks and their inputs.
//!
//! The supervisor compares the desired state from managers and the list of containers from containerd with
//! its actors. It never acts on a container itself. Events only select the actors that should inspect sooner.

mod layers;
mod logs;
mod network;
mod start_order;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::watch;
use warren_control::{BackgroundTaskHandle, BackgroundTasks, Clock, RandomSource, Shutdown};
use warren_network::{NodeNetworkSettings, WireGuardPrivateKey};
use warren_runtime::RuntimeEvent;
use warren_task::DesiredState;
use warren_types::{AssignmentVersion, DesiredTaskState, NodeCondition, ServiceName, TaskAssignment, TaskId};

use crate::connectivity::NodeConnectivity;
use crate::network::NetworkOptions;
use crate::node::conditions::NodeConditions;
use crate::node::metrics::WorkerMetrics;
use crate::tasks::actor::{ActorHandle, ActorInputs, ContainerPhase, TaskActor};
use crate::tasks::container::{self, ListedContainer};
use crate::tasks::executor::ActionExecutor;
use crate::tasks::node_network::NodeNetworkState;
use crate::tasks::reporter::TaskReporter;

/// Background task that lists all containers.
pub(crate) const RELIST_TASK: &str = "worker.relist";
/// Interval of complete listings, independent of events.
const RELIST_INTERVAL: Duration = Duration::from_secs(20);
/// Interval of orphan sweeps, independent of events.
const SWEEP_INTERVAL: Duration = Duration::from_secs(15);
/// Interval of repairs of the node network.
const NETWORK_REPAIR_INTERVAL: Duration = Duration::from_secs(30);
/// Delay before the events are subscribed again after their stream ended.
const RESUBSCRIBE_DELAY: Duration = Duration::from_secs(1);

/// Dependencies of a supervisor.
pub(crate) struct TaskSupervisorParts {
    pub executor: ActionExecutor,
    pub clock: Arc<dyn Clock>,
    pub shutdown: Shutdown,
    pub desired_state: watch::Receiver<DesiredState>,
    pub conditions: Arc<NodeConditions>,
    pub metrics: WorkerMetrics,
    /// Sender for the executor's node network state.
    pub node_network: watch::Sender<NodeNetworkState>,
    /// Sender for the version of the network view that is applied.
    pub applied_network: watch::Sender<AssignmentVersion>,
    /// How the node takes part in the network of the cluster.
    pub network_options: NetworkOptions,
    /// Key for packets between nodes that are encrypted.
    pub private_key: WireGuardPrivateKey,
    /// Connectivity of the node to managers.
    pub connectivity: watch::Receiver<NodeConnectivity>,
}

/// The actors, and the state that they are compared with.
pub(crate) struct TaskSupervisor {
    pub(super) executor: Arc<ActionExecutor>,
    desired_state: watch::Receiver<DesiredState>,
    conditions: Arc<NodeConditions>,
    node_network: watch::Sender<NodeNetworkState>,
    /// The settings with which the node network was set up.
    network_settings: Mutex<Option<NodeNetworkSettings>>,
    applied_network: watch::Sender<AssignmentVersion>,
    network_options: NetworkOptions,
    private_key: WireGuardPrivateKey,
    reporter: Arc<TaskReporter>,
    clock: Arc<dyn Clock>,
    connectivity: watch::Receiver<NodeConnectivity>,
    pub(super) shutdown: Shutdown,
    actors: Mutex<BTreeMap<TaskId, ActorHandle>>,
    /// The bootstrap service that the start of other tasks waits for.
    awaited_service: Mutex<Option<ServiceName>>,
    /// The containers were listed once: all that exist have an actor.
    has_listed: AtomicBool,
    log_collector: OnceLock<BackgroundTaskHandle>,
}

/// Removes an actor that ended, also after a panic, from the list.
struct ActorRegistration {
    supervisor: Arc<TaskSupervisor>,
    task: TaskId,
}

impl Drop for ActorRegistration {
    fn drop(&mut self) {
        self.supervisor.remove_actor(&self.task);
    }
}

impl TaskSupervisor {
    pub fn new(parts: TaskSupervisorParts) -> Arc<Self> {
        let TaskSupervisorParts {
            executor,
            clock,
            shutdown,
            desired_state,
            conditions,
            metrics,
            node_network,
            applied_network,
            network_options,
            private_key,
            connectivity,
        } = parts;
        let (actors, network_settings) = (Mutex::default(), Mutex::default());
        let reporter = Arc::new(TaskReporter::new(metrics));
        let executor = Arc::new(executor);
        Arc::new(Self {
            executor,
            desired_state,
            conditions,
            node_network,
            network_settings,
            applied_network,
            network_options,
            private_key,
            reporter,
            clock,
            connectivity,
            shutdown,
            actors,
            awaited_service: Mutex::default(),
            has_listed: AtomicBool::new(false),
            log_collector: OnceLock::new(),
        })
    }

    /// The reporter of the actors.
    pub fn reporter(&self) -> Arc<TaskReporter> {
        Arc::clone(&self.reporter)
    }

    /// Starts the lists, the sweeps, the network, the events, and the actors as tasks become known.
    pub fn start(self: &Arc<Self>, background_tasks: &BackgroundTasks, random: &RandomSource) {
        self.begin_start_order();
        let supervisor = Arc::clone(self);
        let network = background_tasks.spawn(
            "worker.network",
            jittered(NETWORK_REPAIR_INTERVAL, random()),
            move || {
                let supervisor = Arc::clone(&supervisor);
                async move { supervisor.reconcile_network().await }
            },
        );
        let supervisor = Arc::clone(self);
        let relist = background_tasks.spawn(RELIST_TASK, jittered(RELIST_INTERVAL, random()), move || {
            let supervisor = Arc::clone(&supervisor);
            async move { supervisor.relist().await }
        });
        let supervisor = Arc::clone(self);
        let sweep = background_tasks.spawn("worker.sweep", jittered(SWEEP_INTERVAL, random()), move || {
            let supervisor = Arc::clone(&supervisor);
            async move { supervisor.sweep().await }
        });
        self.start_log_collector(background_tasks);
        self.start_layer_watch(background_tasks);
        let follow = Arc::clone(self).watch_desired_state(network.clone(), relist.clone());
        self.shutdown.spawn("worker.desired-state", follow);
        let follow = Arc::clone(self).watch_network_view(network.clone());
        self.shutdown.spawn("worker.network-view", follow);
        self.shutdown.spawn("worker.connectivity-watch", Arc::clone(self).watch_connectivity());
        self.shutdown.spawn("worker.start-order", Arc::clone(self).watch_start_order());
        self.shutdown.spawn("worker.image-arrivals", Arc::clone(self).watch_image_arrivals());
        let follow = Arc::clone(self).watch_events(network, relist, sweep);
        self.shutdown.spawn("worker.events", follow);
    }

    fn actors(&self) -> MutexGuard<'_, BTreeMap<TaskId, ActorHandle>> {
        self.actors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Signals every actor that the cause of failed actions may be gone.
    fn retry_all(&self) {
        for handle in self.actors().values() {
            handle.update(|orders| {
                orders.retry_requests += 1;
                true
            });
        }
    }

    /// Updates the inputs of the actors from the desired state. Idempotent.
    fn reconcile(self: &Arc<Self>) {
        let desired_state = self.desired_state.borrow().clone();
        let mut actors = self.actors();
        for (id, desired) in &desired_state.tasks {
            let handle =
                actors.entry(*id).or_insert_with(|| self.spawn_actor(*id, Some(Arc::clone(desired))));
            handle.update(|orders| {
                let is_withdrawn = desired_state.withdrawn.contains(id);
                let same = orders.desired.as_ref() == Some(desired)
                    && !orders.is_dismissed
                    && orders.is_withdrawn == is_withdrawn;
                orders.desired = Some(Arc::clone(desired));
                orders.is_withdrawn = is_withdrawn;
                orders.is_dismissed = false;
                !same
            });
        }
        if desired_state.is_confirmed {
            for (_, handle) in actors.iter().filter(|(id, _)| !desired_state.tasks.contains_key(id)) {
                handle.update(dismiss);
            }
        }
    }

    /// Lists all managed containers: adopts those without an actor, and wakes actors that saw another state.
    async fn relist(self: &Arc<Self>) -> Result<(), warren_runtime::Error> {
        let listed = self.list().await?;
        self.reconcile_listed(&listed);
        self.reconcile();
        self.has_listed.store(true, Ordering::Relaxed);
        self.wake_log_collector();
        if self.desired_state.borrow().is_confirmed {
            let swept = self.executor.secret_objects.sweep(&|task| self.actors().contains_key(task)).await;
            match swept {
                Ok(0) => (),
                Ok(removed) => tracing::info!(removed, "removed orphaned secrets and configs"),
                Err(error) => tracing::warn!(reason = error.to_string(), "cannot sweep secrets and configs"),
            }
            let swept = self.executor.user_namespaces.sweep(|task| self.actors().contains_key(task));
            match swept {
                Ok(0) => (),
                Ok(removed) => tracing::info!(removed, "removed orphaned user namespaces"),
                Err(error) => tracing::warn!(%error, "cannot remove orphaned user namespaces"),
            }
        }
        Ok(())
    }

    /// The containers that agents of this cluster created; whether containerd answers sets a node condition.
    async fn list(&self) -> Result<Vec<ListedContainer>, warren_runtime::Error> {
        match self.executor.runtime.list().await {
            Ok(found) => {
                if self.conditions.set(NodeCondition::RuntimeUnavailable, None) {
                    self.retry_all();
                }
                let (mut listed, mut foreign) = (Vec::new(), Vec::new());
                for found in &found {
                    match container::parse_listed(found, self.executor.cluster) {
                        Some(own) => listed.push(own),
                        None => foreign.extend(found.ids),
                    }
                }
                self.executor.user_namespaces.set_foreign(foreign);
                let with_ids = |own: &ListedContainer| Some((own.task, own.ids?));
                for (task, ids) in listed.iter().filter_map(with_ids) {
                    if let Err(error) = self.executor.user_namespaces.adopt(task, ids) {
                        tracing::warn!(%task, %error, "cannot record the ids of its users");
                    }
                }
                Ok(listed)
            }
            Err(error) => {
                let sentence = format!("containerd does not answer ({error}); tasks keep their state");
                self.conditions.set(NodeCondition::RuntimeUnavailable, Some(sentence));
                Err(error)
            }
        }
    }

    fn reconcile_listed(self: &Arc<Self>, listed: &[ListedContainer]) {
        let confirmed = self.desired_state.borrow().is_confirmed;
        let mut actors = self.actors();
        for found in listed {
            match actors.get(&found.task) {
                Some(handle) if listed_phase(found) == Some(handle.container_phase()) => (),
                Some(handle) => handle.update(request_inspect),
                // An unreadable record is removed once it is known that the task is not desired.
                None if found.assignment.is_none() && !confirmed => (),
                None => {
                    let desired = found.assignment.clone().map(Arc::new);
                    actors.insert(found.task, self.spawn_actor(found.task, desired));
                }
            }
        }
        let there: BTreeSet<TaskId> = listed.iter().map(|found| found.task).collect();
        for (_, handle) in actors
            .iter()
            .filter(|(id, handle)| !there.contains(id) && handle.container_phase() != ContainerPhase::Absent)
        {
            handle.update(request_inspect);
        }
    }

    fn spawn_actor(self: &Arc<Self>, task: TaskId, desired: Option<Arc<TaskAssignment>>) -> ActorHandle {
        let orders = ActorInputs {
            awaited_service: self.awaited_by(desired.as_deref()),
            desired,
            connectivity: *self.connectivity.borrow(),
            ..ActorInputs::default()
        };
        let (driver, reporter) = (Arc::clone(&self.executor), Arc::clone(&self.reporter));
        let (clock, stop) = (Arc::clone(&self.clock), self.shutdown.token());
        let (actor, handle) = TaskActor::new(task, orders, driver, reporter, clock, stop);
        let listing = ActorRegistration { supervisor: Arc::clone(self), task };
        self.shutdown.spawn(format!("task {task}"), async move {
            let _listing = listing;
            actor.run().await;
        });
        handle
    }

    /// An actor that panicked is replaced at the next listing. So is one that ended just when its task was
    /// desired again, in the next cluster incarnation: its final report would count as the final report of
    /// its successor.
    fn remove_actor(&self, task: &TaskId) {
        self.actors().remove(task);
        if !self.desired_state.borrow().keeps_files_of(task) {
            self.wake_log_collector();
        }
        let is_gone = self.reporter.latest(task).is_some_and(|last| last.removed);
        if is_gone || !self.desired_state.borrow().tasks.contains_key(task) {
            self.executor.check_context.results.forget(task);
            self.reporter.forget(task);
        }
    }

    async fn watch_desired_state(
        self: Arc<Self>,
        network: BackgroundTaskHandle,
        relist: BackgroundTaskHandle,
    ) {
        let (mut desired_state, stop) = (self.desired_state.clone(), self.shutdown.token());
        let mut data_address = self.executor.data_address.subscribe();
        let mut was_confirmed = false;
        let mut known = DesiredState::default();
        loop {
            let now = desired_state.borrow_and_update().clone();
            let confirmed = now.is_confirmed;
            self.reconcile();
            if now.retained != known.retained || known.tasks.keys().any(|task| !now.tasks.contains_key(task))
            {
                self.wake_log_collector();
            }
            known = now;
            data_address.borrow_and_update();
            if self.has_new_network_settings() {
                network.wake();
            }
            if confirmed && !was_confirmed {
                relist.wake();
            }
            was_confirmed = confirmed;
            tokio::select! {
                () = stop.cancelled() => return,
                changed = desired_state.changed() => if changed.is_err() { return },
                Ok(()) = data_address.changed() => {}
            }
        }
    }

    /// Informs tasks that stop on disconnect about changes of the connectivity.
    async fn watch_connectivity(self: Arc<Self>) {
        let (mut connectivity, stop) = (self.connectivity.clone(), self.shutdown.token());
        loop {
            for handle in self.actors().values() {
                let now = *connectivity.borrow_and_update();
                handle.update(|orders| {
                    let is_changed = orders.connectivity != now;
                    orders.connectivity = now;
                    is_changed && orders.stops_when_disconnected()
                });
            }
            tokio::select! {
                () = stop.cancelled() => return,
                changed = connectivity.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Informs the actors about images that arrived, so that those that wait for one look for it at once.
    async fn watch_image_arrivals(self: Arc<Self>) {
        let (mut arrivals, stop) = (self.executor.images.arrivals.subscribe(), self.shutdown.token());
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                changed = arrivals.changed() => if changed.is_err() { return },
            }
            for handle in self.actors().values() {
                handle.update(|orders| {
                    orders.image_arrivals += 1;
                    true
                });
            }
        }
    }

    async fn watch_events(
        self: Arc<Self>,
        network: BackgroundTaskHandle,
        relist: BackgroundTaskHandle,
        sweep: BackgroundTaskHandle,
    ) {
        let stop = self.shutdown.token();
        loop {
            let mut events = self.executor.runtime.events();
            loop {
                let event = tokio::select! {
                    () = stop.cancelled() => return,
                    () = self.executor.sweep_needed.notified() => {
                        sweep.wake();
                        continue;
                    }
                    event = events.next() => event,
                };
                match event {
                    Some(RuntimeEvent::Exited { id, .. } | RuntimeEvent::OutOfMemory { id }) => {
                        let task = id.as_str().parse().ok();
                        task.and_then(|task: TaskId| {
                            self.actors().get(&task).map(|h| h.update(request_inspect))
                        });
                    }
                    Some(RuntimeEvent::Lost) => relist.wake(),
                    Some(RuntimeEvent::Resumed) => {
                        relist.wake();
                        network.wake();
                        sweep.wake();
                    }
                    None => break,
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(RESUBSCRIBE_DELAY) => relist.wake(),
            }
        }
    }
}

/// The container phase that an actor should have seen; `None` if the runtime did not answer.
fn listed_phase(found: &ListedContainer) -> Option<ContainerPhase> {
    use warren_runtime::ProcessState;
    Some(match found.process {
        ProcessState::Unknown { .. } => return None,
        ProcessState::Absent => ContainerPhase::Recorded,
        ProcessState::Created { .. } => ContainerPhase::Created,
        ProcessState::Running { .. } => ContainerPhase::Running,
        ProcessState::Stopped(_) => ContainerPhase::Stopped,
    })
}

fn request_inspect(orders: &mut ActorInputs) -> bool {
    orders.inspect_requests += 1;
    true
}

fn dismiss(orders: &mut ActorInputs) -> bool {
    let is_changed = !orders.is_dismissed;
    orders.is_dismissed = true;
    if let Some(desired) =
        orders.desired.as_ref().filter(|desired| desired.desired != DesiredTaskState::Remove)
    {
        orders.desired =
            Some(Arc::new(TaskAssignment { desired: DesiredTaskState::Remove, ..(**desired).clone() }));
    }
    is_changed
}

/// The period with a jitter of a tenth, so that nodes that started together drift apart.
fn jittered(period: Duration, random: u64) -> Duration {
    let tenths = u128::from(random) * 200 / u128::from(u64::MAX);
    period * (900 + u32::try_from(tenths).expect("at most 200")) / 1000
}
