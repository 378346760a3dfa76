//! A worker: a machine with containers, and an agent on it that can be killed.
//!
//! `worker/session.rs` exchanges messages with managers, `worker/network_view.rs` follows the cluster's network,
//! `worker/actors.rs` calls `step` and executes its actions, and `worker/machine.rs` holds the actual state of the
//! machine.

mod actors;
mod health;
mod machine;
mod network_view;
mod session;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use warren_core::Command;
use warren_task::{Action, ConnectivityTracker, DesiredState, ObservedTask, Outbox};
use warren_types::{
    AssignmentVersion, Bytes, Id, ImageDigest, ImageReference, ManagerAddress, MilliCpu, NetworkView,
    NodeCondition, NodeDescription, NodeId, NodeName, NodeRole, Resources, TaskAssignment, TaskId, Timestamp,
};

use crate::event::{SimEvent, WorkerEvent};
use crate::simulation::ClusterSimulation;
pub use machine::TaskOnMachine;
use network_view::SimNetworkView;

/// The zone of a machine.
pub fn zone_of(node: NodeId) -> &'static str {
    if node.0.0.is_multiple_of(2) { "a" } else { "b" }
}

/// The result of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActionEnd {
    Succeeds,
    /// It did not take effect.
    FailsBefore,
    /// It took effect, but the agent gets an error.
    FailsAfter,
    /// It did not take effect, and never will on this node.
    FailsForGood,
}

/// A node.
pub struct SimWorker {
    pub id: NodeId,
    /// What survives the agent.
    pub machine: BTreeMap<TaskId, TaskOnMachine>,
    /// The agent's file with its last assignments.
    cached_state: Option<DesiredState>,
    /// The agent's file with its network view; it may be older than the newest.
    cached_view: Option<Arc<NetworkView>>,
    /// What the kernel knows of the cluster's network. It survives the agent.
    pub kernel: Arc<NetworkView>,
    /// The addresses of managers, as received last; stored apart from the cache, because without them the
    /// node cannot reconnect.
    pub managers: Vec<ManagerAddress>,
    /// The agent's file with the time of the last contact with a manager, in this boot of the machine.
    contact_noted_at: Option<u64>,
    /// It was removed from the cluster, and must join again.
    was_removed: bool,
    boot_count: u64,
    /// Offset of the wall clock, in milliseconds.
    pub clock_off: i64,
    /// The conditions of the node.
    conditions: BTreeSet<NodeCondition>,
    /// It is isolated until then.
    pub away_until: u64,
    pub agent: Option<SimAgent>,
}

/// One run of the agent.
pub struct SimAgent {
    pub boot: u64,
    pub since: u64,
    actors: BTreeMap<TaskId, SimActor>,
    desired: DesiredState,
    network: SimNetworkView,
    pub contact: ConnectivityTracker<Duration>,
    /// A manager did not know the node, and none has accepted its session since.
    is_rejected: bool,
    /// The connection in use, and the number of messages received on it.
    pub connection: Option<u64>,
    last_contact: u64,
    is_welcome: bool,
    /// A manager has sent the assignments.
    has_assignment: bool,
    /// When.
    pub welcomed_at: u64,
    outbox: Outbox<Duration>,
}

struct SimActor {
    desired: Option<Arc<TaskAssignment>>,
    observed: ObservedTask,
    /// The task is not desired: the actor ends when nothing is left of it.
    is_dropped: bool,
    /// The action in progress.
    current_action: Option<(Action, ActionEnd)>,
    /// A health check is scheduled.
    is_checked: bool,
}

impl SimAgent {
    /// The observed state of a task.
    pub fn observed(&self, task: &TaskId) -> Option<&ObservedTask> {
        self.actors.get(task).map(|actor| &actor.observed)
    }

    /// A manager has accepted its session.
    pub fn is_welcomed(&self) -> bool {
        self.is_welcome
    }
}

impl SimActor {
    fn new(expected: Option<Arc<TaskAssignment>>, now: warren_types::Timestamp) -> Self {
        Self {
            desired: expected,
            observed: ObservedTask::new(now),
            is_dropped: false,
            current_action: None,
            is_checked: false,
        }
    }
}

impl SimWorker {
    pub fn new(number: usize) -> Self {
        let id = NodeId(Id(100 + number as u128));
        let (machine, conditions, managers) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
        let (cache, noted, boots, clock_off, was_removed, agent) = (None, None, 0, 0, false, None);
        let away_until = 0;
        Self {
            id,
            machine,
            cached_state: cache,
            cached_view: None,
            kernel: Arc::default(),
            managers,
            contact_noted_at: noted,
            was_removed,
            boot_count: boots,
            clock_off,
            conditions,
            away_until,
            agent,
        }
    }

    /// Its join request.
    pub fn registers(&self, at: Timestamp) -> Command {
        let (id, name, description) = (self.id, self.name(), self.description());
        Command::RegisterNode {
            id,
            name,
            role: NodeRole::Worker,
            description,
            taints: Default::default(),
            at,
        }
    }

    pub fn boot(&self) -> Option<u64> {
        self.agent.as_ref().map(|agent| agent.boot)
    }

    /// The newest incarnation of the cluster that it knows; 0 before the first.
    pub fn incarnation(&self) -> u64 {
        let desired_state = self.agent.as_ref().map(|agent| &agent.desired).or(self.cached_state.as_ref());
        desired_state.map_or(0, |desired_state| desired_state.version.incarnation)
    }

    /// The assignments that a manager sent to this or an earlier run of the agent.
    pub fn assignment_from_manager(&self) -> Option<AssignmentVersion> {
        self.agent.as_ref().map(|agent| agent.desired.version)
    }

    /// The recorded time without a manager.
    pub fn silent_for(&self, now: u64) -> Option<u64> {
        self.contact_noted_at.map(|noted| now - noted)
    }

    /// What it has stored if its agent is killed now.
    fn assignment_version(&self) -> AssignmentVersion {
        self.cached_state.as_ref().map(|desired_state| desired_state.version).unwrap_or_default()
    }

    pub fn name(&self) -> NodeName {
        format!("node-{}", self.id.0.0 - 100).parse().expect("a valid name")
    }

    /// The digest that its registry gives for a reference. Those of the two zones resolve a tag to different images.
    pub fn resolve(&self, image: &ImageReference) -> ImageDigest {
        let text = format!("{}{}", image.as_str(), zone_of(self.id));
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        format!("sha256:{}", format!("{hash:016x}").repeat(4)).parse().expect("64 digits")
    }

    pub fn description(&self) -> NodeDescription {
        NodeDescription {
            resources: Resources { cpu: MilliCpu(4_000), memory: Bytes(8 << 30) },
            disk: Bytes(100 << 30),
            os: "linux".into(),
            labels: BTreeMap::new(),
            architecture: "amd64".into(),
            kernel: "6.1".into(),
            runtime: "simulated".into(),
            version: "0.1.0".into(),
            address: format!("10.0.0.{}:8080", { self.id.0.0 }),
            data_address: Some([10, 0, 0, self.id.0.0 as u8].into()),
            wireguard_key: None,
            apparmor_missing: false,
        }
    }
}

impl ClusterSimulation {
    pub(crate) fn agent_starts(&mut self, number: usize) {
        let (now, elapsed, since) =
            (self.wall_clock(self.workers[number].clock_off), self.elapsed(), self.now);
        let cache_is_lost = self.has_faults && self.rng.one_in(4);
        let worker = &mut self.workers[number];
        if worker.agent.is_some() {
            return;
        }
        worker.boot_count += 1;
        let boot = worker.boot_count;
        worker.cached_state.take_if(|_| cache_is_lost);
        worker.cached_view.take_if(|_| cache_is_lost);
        let network = SimNetworkView::from_cache(worker.cached_view.as_ref());
        let mut desired_state = worker.cached_state.clone().unwrap_or_default();
        desired_state.is_confirmed = false;
        let mut actors: BTreeMap<TaskId, SimActor> = BTreeMap::new();
        // A task without a record is not listed: all that may exist of it is what `step` makes or removes
        // again.
        for (id, found) in worker.machine.iter().filter(|(_, found)| found.has_record()) {
            actors.insert(*id, SimActor::new(Some(found.assignment.clone()), now));
        }
        for (id, expected) in &desired_state.tasks {
            let actor = actors.entry(*id).or_insert_with(|| SimActor::new(None, now));
            actor.desired = Some(expected.clone());
        }
        let tasks: Vec<TaskId> = actors.keys().copied().collect();
        let silent = worker.contact_noted_at.map(|noted| Duration::from_millis(since - noted));
        worker.agent = Some(SimAgent {
            boot,
            since,
            actors,
            desired: desired_state,
            network,
            contact: ConnectivityTracker::resume(elapsed, silent),
            is_rejected: false,
            connection: None,
            last_contact: 0,
            is_welcome: false,
            has_assignment: false,
            welcomed_at: 0,
            outbox: Outbox::default(),
        });
        self.at_worker(number, 1, WorkerEvent::PersistContact);
        self.write_network(number);
        for task in tasks {
            self.after_short_delay(number, WorkerEvent::StepTask(task));
        }
        self.dial_again(number);
    }

    /// The agent is killed. The action in progress may have taken effect or not.
    pub(crate) fn agent_dies(&mut self, number: usize) {
        let Some(agent) = self.workers[number].agent.take() else { return };
        for (task, actor) in agent.actors {
            if let Some((action, _)) = actor.current_action
                && self.rng.one_in(2)
            {
                self.take_effect(number, task, actor.desired, &action);
            }
        }
        let machine = &mut self.workers[number].machine;
        machine.values_mut().for_each(TaskOnMachine::lose_agent);
        machine.retain(|_, remains| !remains.is_empty());
        self.break_connections_of_worker(number);
        let longest = if self.has_faults { 9_000 } else { 500 };
        let pause = self.rng.between(50, longest);
        self.after(pause, SimEvent::AgentStarts { worker: number });
    }

    /// The machine loses power: processes and networks are gone, records and files stay.
    pub(crate) fn machine_reboots(&mut self, number: usize) {
        self.agent_dies(number);
        let worker = &mut self.workers[number];
        (worker.contact_noted_at, worker.kernel) = (None, Arc::default());
        worker.machine.values_mut().for_each(TaskOnMachine::lose_power);
        worker.machine.retain(|_, remains| !remains.is_empty());
    }

    /// The node is not part of the cluster any more: its machine is wiped, and it joins again.
    fn leaves_the_cluster(&mut self, number: usize) {
        self.agent_dies(number);
        let worker = &mut self.workers[number];
        worker.machine.clear();
        (worker.kernel, worker.cached_view) = (Arc::default(), None);
        (worker.cached_state, worker.contact_noted_at, worker.was_removed) = (None, None, true);
    }

    pub(crate) fn at_worker(&mut self, worker: usize, delay: u64, what: WorkerEvent) {
        if let Some(boot) = self.workers[worker].boot() {
            self.after(delay, SimEvent::Worker { worker, boot, what });
        }
    }

    fn after_short_delay(&mut self, worker: usize, what: WorkerEvent) {
        let delay = self.rng.between(0, 20);
        self.at_worker(worker, delay, what);
    }

    pub(crate) fn worker_event(&mut self, worker: usize, boot: u64, what: WorkerEvent) {
        if self.workers[worker].boot() != Some(boot) {
            return;
        }
        match what {
            WorkerEvent::Dial => self.dial(worker),
            WorkerEvent::Heartbeat { connection } => self.heartbeat(worker, connection),
            WorkerEvent::Sync { connection } => self.sync(worker, connection),
            WorkerEvent::CheckSilence { connection, heard } => self.check_silence(worker, connection, heard),
            WorkerEvent::PersistContact => self.persist_contact(worker),
            WorkerEvent::NetworkWritten => self.network_written(worker),
            WorkerEvent::NetworkRetry => self.write_network(worker),
            WorkerEvent::NetworkCached => self.network_cached(worker),
            WorkerEvent::StepTask(task) => self.step_task(worker, task),
            WorkerEvent::InspectTask(task) => self.inspect_task(worker, task),
            WorkerEvent::CheckEnded(task) => self.finish_check(worker, task),
            WorkerEvent::ActionEnded(task, action, end) => self.finish_action(worker, task, &action, end),
        }
    }
}
