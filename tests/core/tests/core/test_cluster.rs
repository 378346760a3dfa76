//! A cluster for tests. Every command is followed by a check of the invariants.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use warren_core::events::{ClusterEvent, events_of};
use warren_core::reconcile::ReconcilePlan;
use warren_core::*;
pub use warren_types::fixtures::image_digest as digest;
use warren_types::fixtures::task_report;
use warren_types::*;

/// The term of all entries.
pub const TERM: u64 = 3;

pub struct TestCluster {
    pub state: State,
    pub now: Timestamp,
    /// What each entry changed, with its index.
    pub changes: Vec<(u64, Vec<StateChange>)>,
    /// What users see of it.
    pub events: Vec<ClusterEvent>,
}

/// How long a task without a health check must have run until it counts as ready.
pub const SETTLED: Duration = warren_types::spec::DEFAULT_UPDATE_MONITOR;

pub fn service_id(number: u128) -> ServiceId {
    ServiceId(Id(number))
}

pub fn node_id(number: u128) -> NodeId {
    NodeId(Id(number))
}

pub fn task_id(service: u128, number: u64) -> TaskId {
    TaskId { service: service_id(service), number }
}

pub fn resources(cpu: u64, mebibytes: u64) -> Resources {
    Resources { cpu: MilliCpu(cpu), memory: Bytes(mebibytes << 20) }
}

pub fn description(resources: Resources) -> NodeDescription {
    NodeDescription {
        resources,
        disk: Bytes(100 << 30),
        os: "linux".into(),
        architecture: "amd64".into(),
        kernel: "6.1".into(),
        runtime: "containerd 1.6.20".into(),
        version: "0.1.0".into(),
        address: "192.0.2.1".into(),
        data_address: Some([192, 0, 2, 1].into()),
        wireguard_key: None,
        apparmor_missing: false,
        labels: Default::default(),
    }
}

/// A spec whose image is resolved by workers.
pub fn spec(name: &str, replicas: u32) -> ServiceSpec {
    let mut task = TaskSpec::new("demo:1".parse().unwrap());
    task.resolve_image = ImageResolver::Worker;
    ServiceSpec {
        mode: ServiceMode::Replicated { replicas },
        ..ServiceSpec::new(name.parse().unwrap(), task)
    }
}

/// A spec whose failed updates are paused, not rolled back.
pub fn pausing(mut spec: ServiceSpec) -> ServiceSpec {
    spec.update.on_failure = Some(FailureAction::Pause);
    spec
}

pub fn global(name: &str) -> ServiceSpec {
    ServiceSpec { mode: ServiceMode::Global, ..spec(name, 0) }
}

/// With a task per value of the label `zone`.
pub fn per_zone(name: &str) -> ServiceSpec {
    ServiceSpec { per: Some("node.labels.zone".parse().unwrap()), ..global(name) }
}

pub fn bootstrap(spec: ServiceSpec) -> ServiceSpec {
    ServiceSpec { bootstrap: true, ..spec }
}

/// With tolerations.
pub fn tolerating(spec: ServiceSpec, tolerations: &[&str]) -> ServiceSpec {
    let tolerations = tolerations.iter().map(|text| text.parse().unwrap()).collect();
    ServiceSpec { placement: Placement { tolerations, ..spec.placement.clone() }, ..spec }
}

/// With placement constraints.
pub fn constrained(name: &str, replicas: u32, constraints: &[&str]) -> ServiceSpec {
    let mut spec = spec(name, replicas);
    spec.placement.constraints = constraints.iter().map(|text| text.parse().unwrap()).collect();
    spec
}

pub fn secret_object_id(number: u128) -> SecretObjectId {
    SecretObjectId(Id(number))
}

pub fn volume_id(number: u128) -> VolumeId {
    VolumeId(Id(number))
}

/// One byte, sealed.
pub fn sealed(byte: u8) -> SealedData {
    SealedData { size: 1, fingerprint: [byte; 32], sealed: vec![byte; 29] }
}

/// A service that mounts these secrets.
pub fn with_secrets(name: &str, replicas: u32, secrets: &[&str]) -> ServiceSpec {
    let mut spec = spec(name, replicas);
    spec.task.secrets = secrets.iter().map(|name| SecretObjectMount::new(name.parse().unwrap())).collect();
    spec
}

/// A service that mounts these volumes.
pub fn with_volumes(name: &str, replicas: u32, volumes: &[&str]) -> ServiceSpec {
    let mut spec = spec(name, replicas);
    let source = |name: &str| MountSource::Volume { name: name.into(), subpath: None, no_copy: false };
    let mount = |(place, name): (usize, &&str)| Mount {
        target: format!("/data/{place}"),
        source: source(name),
        read_only: false,
    };
    spec.task.mounts = volumes.iter().enumerate().map(mount).collect();
    spec
}

/// A task that runs immediately in a vacant slot.
pub fn new_task(slot: u32) -> NewTask {
    NewTask {
        slot,
        not_before: None,
        desired: DesiredTaskState::Running,
        replaces: None,
        bound_to: None,
        label_value: None,
    }
}

pub fn reserving(name: &str, replicas: u32, reservations: Resources) -> ServiceSpec {
    let mut spec = spec(name, replicas);
    spec.task.reservations = reservations;
    spec
}

pub fn publishing(name: &str, replicas: u32, host_port: u16) -> ServiceSpec {
    let (protocol, mode) = (Protocol::Tcp, PublishMode::Host);
    let port = PublishedPort {
        host_ip: None,
        host_port,
        container_port: 80,
        protocol,
        mode,
        prefer_local: false,
        client_affinity: false,
    };
    ServiceSpec { ports: vec![port], ..spec(name, replicas) }
}

pub fn report(task: TaskId, attempt: u32, state: TaskState) -> TaskReport {
    let (since, ready) = (Timestamp(u64::MAX), state == TaskState::Running);
    TaskReport { since, ready, ..task_report(task, attempt, state) }
}

/// The fields of [`Command::UpdateNode`] that change something.
#[derive(Default)]
struct NodeSettingsChange {
    label_add: BTreeMap<String, String>,
    label_rm: BTreeSet<String>,
    availability: Option<Availability>,
    taint_add: BTreeSet<Taint>,
    taint_rm: BTreeSet<TaintSelector>,
}

impl TestCluster {
    /// A cluster without nodes.
    pub fn new() -> Self {
        let mut cluster = Self {
            state: State::new(),
            now: Timestamp(1_795_185_000_000),
            changes: Vec::new(),
            events: Vec::new(),
        };
        let ranges = vec!["10.0.0.0/8".parse().unwrap()];
        cluster.accept(Command::CreateCluster {
            id: ClusterId(Id(9)),
            ranges,
            feature_level: FEATURE_LEVEL,
            at: cluster.now,
        });
        cluster
    }

    /// With nodes 1 to `nodes`, each of 4 CPUs and 1 GiB.
    pub fn with_nodes(nodes: u128) -> Self {
        let mut cluster = Self::new();
        (1..=nodes).for_each(|number| cluster.node(number, resources(4000, 1024)));
        cluster
    }

    /// Applies the command as the next entry, and checks the state and the transition.
    #[track_caller]
    pub fn apply(&mut self, command: &Command) -> ApplyOutcome {
        let before = self.state.clone();
        let outcome = self.state.apply(TERM, before.applied().index + 1, command);
        if let ApplyOutcome::Applied { changes, .. } = &outcome {
            self.changes.push((self.state.applied().index, changes.clone()));
            self.events.extend(events_of(&before.objects(), &self.state, changes));
        }
        self.state.check().unwrap();
        self.state.check_after(&before).unwrap();
        for task in self.state.tasks().filter(|task| task.state() != TaskState::Running) {
            assert_ne!(explain_task(&self.state, None, task, self.state.clock()), "", "{task:?}");
        }
        outcome
    }

    /// Applies a command that must not be rejected.
    #[track_caller]
    pub fn accept(&mut self, command: Command) -> CommandResponse {
        match self.apply(&command) {
            ApplyOutcome::Applied { response: answer, .. } | ApplyOutcome::Unchanged { answer } => answer,
            ApplyOutcome::Rejected(refusal) => panic!("{command:?} was refused: {refusal}"),
        }
    }

    /// Applies a command that must be rejected, and returns the refusal's text.
    #[track_caller]
    pub fn refuse(&mut self, command: Command) -> String {
        let before = self.state.export();
        match self.apply(&command) {
            ApplyOutcome::Rejected(refusal) => {
                let after = self.state.export();
                assert_eq!(
                    StateParts { applied: before.applied, ..after },
                    before,
                    "a refused command changed something"
                );
                refusal.to_string()
            }
            other => panic!("{command:?} was not refused: {other:?}"),
        }
    }

    pub fn advance_time(&mut self, by: Duration) {
        self.now = self.now + by;
    }

    /// Joins and connects.
    #[track_caller]
    pub fn node(&mut self, number: u128, resources: Resources) {
        let (id, at) = (node_id(number), self.now);
        let name = format!("node-{number}").parse().unwrap();
        self.accept(Command::RegisterNode {
            id,
            name,
            role: NodeRole::Worker,
            description: description(resources),
            taints: Default::default(),
            at,
        });
        self.connect(number);
    }

    #[track_caller]
    pub fn connect(&mut self, number: u128) -> u64 {
        let (node, at) = (node_id(number), self.now);
        let description = self.state.node(&node).unwrap().description.clone();
        match self.accept(Command::OpenSession { node, description, manager: 1, at }) {
            CommandResponse::Session { number } => number,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub fn set_down(&mut self, number: u128) {
        let (node, at, status) = (node_id(number), self.now, NodeStatus::Down);
        let session = self.state.node(&node).unwrap().session;
        self.accept(Command::SetNodeStatus { term: TERM, node, session, status, at });
    }

    /// The service as it is, which must have this version.
    #[track_caller]
    pub fn service_answer(&self, number: u128, version: u64) -> CommandResponse {
        let service = self.state.service(&service_id(number)).unwrap().clone();
        assert_eq!(service.version, version);
        CommandResponse::Service(service)
    }

    #[track_caller]
    pub fn service(&mut self, number: u128, spec: ServiceSpec) -> CommandResponse {
        self.accept(Command::CreateService { id: service_id(number), spec, at: self.now })
    }

    #[track_caller]
    pub fn update(&mut self, number: u128, spec: ServiceSpec) -> CommandResponse {
        let (id, version, at) = (service_id(number), None, self.now);
        self.accept(Command::UpdateService { id, version, spec, force: false, at })
    }

    /// Updates the service to another image.
    #[track_caller]
    pub fn update_image(&mut self, number: u128, image: &str) -> CommandResponse {
        let mut spec = (*self.state.service(&service_id(number)).unwrap().spec).clone();
        spec.task.image = image.parse().unwrap();
        self.update(number, spec)
    }

    /// The service's version.
    pub fn version(&self, number: u128) -> u64 {
        self.state.service(&service_id(number)).unwrap().version
    }

    #[track_caller]
    pub fn rollback(&mut self, number: u128, revision: Option<u64>) {
        let (id, at) = (service_id(number), self.now);
        let version = Some(self.version(number));
        self.accept(Command::RollbackService { id, version, revision, at });
    }

    /// A secret of one byte.
    #[track_caller]
    pub fn secret(&mut self, number: u128, name: &str, byte: u8) -> CommandResponse {
        let (id, kind, name, at) =
            (secret_object_id(number), SecretObjectKind::Secret, name.parse().unwrap(), self.now);
        let (labels, content) = (Default::default(), sealed(byte));
        self.accept(Command::CreateSecretObject { id, kind, name, labels, data: content, at })
    }

    #[track_caller]
    pub fn update_secret(&mut self, number: u128, byte: u8) -> CommandResponse {
        let (id, data, at) = (secret_object_id(number), sealed(byte), self.now);
        self.accept(Command::UpdateSecretObject { id, version: None, data, at })
    }

    /// A volume without options.
    #[track_caller]
    pub fn volume(&mut self, number: u128, name: &str, node: Option<u128>) -> CommandResponse {
        let (id, name, node, at) = (volume_id(number), name.parse().unwrap(), node.map(node_id), self.now);
        let (driver, options, labels) = (VolumeDriver::Local, Default::default(), Default::default());
        self.accept(Command::CreateVolume { id, name, driver, options, labels, node, reuse: false, at })
    }

    /// Changes what users set of a node.
    #[track_caller]
    fn update_node(&mut self, number: u128, change: impl FnOnce(&mut NodeSettingsChange)) {
        let (id, at) = (node_id(number), self.now);
        let mut changed = NodeSettingsChange::default();
        change(&mut changed);
        let NodeSettingsChange { label_add, label_rm, availability, taint_add, taint_rm } = changed;
        let version = None;
        self.accept(Command::UpdateNode {
            id,
            version,
            label_add,
            label_rm,
            availability,
            taint_add,
            taint_rm,
            at,
        });
    }

    #[track_caller]
    pub fn availability(&mut self, number: u128, availability: Availability) {
        self.update_node(number, |change| change.availability = Some(availability));
    }

    /// Sets these taints, after the removal of those that `rm` selects.
    #[track_caller]
    pub fn taint(&mut self, number: u128, add: &[&str], rm: &[&str]) {
        self.update_node(number, |change| {
            change.taint_add = add.iter().map(|text| text.parse().unwrap()).collect();
            change.taint_rm = rm.iter().map(|text| text.parse().unwrap()).collect();
        });
    }

    /// Conditions that the node's agent reports.
    #[track_caller]
    pub fn conditions(&mut self, number: u128, conditions: &[NodeCondition]) {
        let (node, at, conditions) = (node_id(number), self.now, conditions.iter().copied().collect());
        let session = self.state.node(&node).unwrap().session;
        self.accept(Command::SetNodeConditions { node, session, conditions, at });
    }

    /// Sets a label, or removes it.
    #[track_caller]
    pub fn label(&mut self, number: u128, key: &str, value: Option<&str>) {
        self.update_node(number, |change| match value {
            Some(value) => drop(change.label_add.insert(key.to_string(), value.to_string())),
            None => drop(change.label_rm.insert(key.to_string())),
        });
    }

    #[track_caller]
    pub fn remove_node(&mut self, number: u128) {
        self.accept(Command::RemoveNode { id: node_id(number), force: true, at: self.now });
    }

    #[track_caller]
    pub fn scale(&mut self, number: u128, replicas: u32) {
        let (id, version, at) = (service_id(number), None, self.now);
        self.accept(Command::ScaleService { id, version, replicas, at });
    }

    #[track_caller]
    pub fn remove(&mut self, number: u128) {
        self.accept(Command::RemoveService {
            id: service_id(number),
            version: None,
            force: true,
            at: self.now,
        });
    }

    /// The worker of the task's node sends the report.
    #[track_caller]
    pub fn report(&mut self, report: TaskReport) {
        let node = self.state.task(&report.task).unwrap().node.unwrap();
        let session = self.state.node(&node).unwrap().session;
        self.accept(Command::ReportTasks { node, session, reports: vec![report], at: self.now });
    }

    /// The worker reports this state in the first attempt.
    #[track_caller]
    pub fn observe(&mut self, task: TaskId, state: TaskState) {
        self.report(report(task, 1, state));
    }

    /// Applies a plan, after which planning again must give an empty plan.
    #[track_caller]
    pub fn carry_out(&mut self, plan: impl Fn(&State, Timestamp) -> ReconcilePlan) -> ReconcilePlan {
        let first = plan(&self.state, self.now);
        for command in &first.commands {
            self.accept(command.clone());
        }
        let second = plan(&self.state, self.now);
        if first.recheck_after != Some(Duration::ZERO) && first.pause.is_none() {
            assert_eq!(second.commands, [], "planning again after {first:?}");
        }
        first
    }

    #[track_caller]
    pub fn reconcile(&mut self, service: u128) -> ReconcilePlan {
        self.carry_out(|state, now| reconcile_service(state, &service_id(service), now))
    }

    #[track_caller]
    pub fn reap(&mut self, service: u128) -> ReconcilePlan {
        self.carry_out(|state, now| reap(state, &service_id(service), now))
    }

    /// Schedules pending tasks, after which nothing more can be placed.
    #[track_caller]
    pub fn schedule(&mut self) -> warren_core::SchedulePlan {
        let placement = schedule(&self.state, self.now);
        if let Some(command) = placement.command(&self.state, self.now) {
            self.accept(command);
        }
        for (task, node) in &placement.assignments {
            assert_eq!(self.state.task(task).unwrap().node, Some(*node), "{task} was planned but not placed");
        }
        placement
    }

    /// All services reconciled and scheduled once, and every assigned task that is desired runs.
    #[track_caller]
    pub fn settle(&mut self) {
        // A task next to the one that it replaces has run for long enough.
        if self.state.tasks().any(|task| task.is_live() && self.state.predecessor(task).is_some()) {
            self.advance_time(SETTLED);
        }
        let services: Vec<_> = self.state.services().map(|service| service.id.0.0).collect();
        services.into_iter().for_each(|service| drop(self.reconcile(service)));
        self.schedule();
        let starting = |task: &&std::sync::Arc<Task>| {
            task.is_live()
                && task.lost_since().is_none()
                && task.node.is_some()
                && task.state() < TaskState::Running
        };
        let attempt = |task: &std::sync::Arc<Task>| match task.desired {
            DesiredTaskState::Ready => (task.id, task.observed.attempt, TaskState::Ready),
            _ => (task.id, task.observed.attempt.max(1), TaskState::Running),
        };
        let starting: Vec<_> = self.state.tasks().filter(starting).map(attempt).collect();
        for (task, attempt, state) in starting {
            self.report(report(task, attempt, state));
        }
    }

    /// Workers of nodes that are up finish removals.
    #[track_caller]
    pub fn clean_up(&mut self) {
        let stopping = |task: &&std::sync::Arc<Task>| {
            task.holds_resources() && task.desired == DesiredTaskState::Remove && task.lost_since().is_none()
        };
        let stopping: Vec<_> =
            self.state.tasks().filter(stopping).map(|task| (task.id, task.observed.attempt)).collect();
        for (task, attempt) in stopping {
            self.report(TaskReport { removed: true, ..report(task, attempt, TaskState::Shutdown) });
        }
    }

    pub fn task(&self, service: u128, number: u64) -> &Task {
        self.state.task(&task_id(service, number)).unwrap()
    }

    /// Slots with their live tasks' numbers.
    pub fn live(&self, service: u128) -> Vec<(u32, u64)> {
        let tasks = self.state.tasks_of(&service_id(service)).filter(|task| task.is_live());
        let mut slots: Vec<_> = tasks.map(|task| (task.slot, task.id.number)).collect();
        slots.sort_unstable();
        slots
    }

    pub fn reason(&self, service: u128, number: u64) -> String {
        let refusals = schedule(&self.state, self.now).refusals;
        explain_task(&self.state, Some(&refusals), self.task(service, number), self.now)
    }
}

pub use warren_core::state::StateParts;
