//! A cluster to try things on. Every command that goes through it is followed by the invariants.

use std::time::Duration;

use warren_core::reconcile::Plan;
use warren_core::*;
use warren_types::*;

/// Term in which everything happens.
pub const TERM: u64 = 3;

pub struct World {
    pub state: State,
    pub now: Timestamp,
}

/// For so long a task must have run before the one that it replaces goes.
pub const SETTLED: Duration = Duration::from_secs(2);

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
        labels: Default::default(),
    }
}

pub fn spec(name: &str, replicas: u32) -> ServiceSpec {
    ServiceSpec {
        name: name.parse().unwrap(),
        labels: Default::default(),
        mode: Mode::Replicated { replicas },
        task: TaskSpec::new("demo:1".parse().unwrap()),
        ports: Vec::new(),
        placement: Default::default(),
        replace_after: Default::default(),
    }
}

pub fn global(name: &str) -> ServiceSpec {
    ServiceSpec { mode: Mode::Global, ..spec(name, 0) }
}

/// Where `constraints` are met.
pub fn constrained(name: &str, replicas: u32, constraints: &[&str]) -> ServiceSpec {
    let mut spec = spec(name, replicas);
    spec.placement.constraints = constraints.iter().map(|text| text.parse().unwrap()).collect();
    spec
}

/// A digest of one letter.
pub fn digest(letter: char) -> ImageDigest {
    format!("sha256:{}", letter.to_string().repeat(64)).parse().unwrap()
}

pub fn content_id(number: u128) -> ContentId {
    ContentId(Id(number))
}

pub fn volume_id(number: u128) -> VolumeId {
    VolumeId(Id(number))
}

/// What one byte is, sealed.
pub fn sealed(byte: u8) -> SealedContent {
    SealedContent { size: 1, fingerprint: [byte; 32], sealed: vec![byte; 29] }
}

/// Sees these secrets.
pub fn with_secrets(name: &str, replicas: u32, secrets: &[&str]) -> ServiceSpec {
    let mut spec = spec(name, replicas);
    spec.task.secrets = secrets.iter().map(|name| ContentMount::new(name.parse().unwrap())).collect();
    spec
}

/// Has these volumes mounted.
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

/// A task that runs at once in a slot that has none.
pub fn new_task(slot: u32) -> NewTask {
    NewTask { slot, not_before: None, desired: Desired::Running, replaces: None, bound_to: None }
}

pub fn reserving(name: &str, replicas: u32, reservations: Resources) -> ServiceSpec {
    let mut spec = spec(name, replicas);
    spec.task.reservations = reservations;
    spec
}

pub fn publishing(name: &str, replicas: u32, host_port: u16) -> ServiceSpec {
    let (protocol, mode) = (Protocol::Tcp, PublishMode::Host);
    let port = PublishedPort { host_ip: None, host_port, container_port: 80, protocol, mode };
    ServiceSpec { ports: vec![port], ..spec(name, replicas) }
}

pub fn report(task: TaskId, attempt: u32, state: TaskState) -> TaskReport {
    TaskReport {
        task,
        attempt,
        state,
        since: Timestamp(u64::MAX),
        reason: String::new(),
        ready: state == TaskState::Running,
        exit: None,
        removed: false,
        next_attempt: None,
        image: None,
        health: Health::None,
    }
}

impl World {
    /// A cluster without nodes.
    pub fn new() -> Self {
        let mut world = Self { state: State::new(), now: Timestamp(1_795_185_000_000) };
        let ranges = vec!["10.0.0.0/8".parse().unwrap()];
        world.accept(Command::CreateCluster { id: ClusterId(Id(9)), ranges, level: LEVEL, at: world.now });
        world
    }

    /// With nodes 1 to `nodes`, each of 4 CPUs and 1 GiB.
    pub fn with_nodes(nodes: u128) -> Self {
        let mut world = Self::new();
        (1..=nodes).for_each(|number| world.node(number, resources(4000, 1024)));
        world
    }

    /// Applies the command as the next entry, and checks the state and its step.
    #[track_caller]
    pub fn run(&mut self, command: &Command) -> Outcome {
        let before = self.state.clone();
        let outcome = self.state.apply(TERM, before.applied().index + 1, command);
        self.state.check().unwrap();
        self.state.check_after(&before).unwrap();
        outcome
    }

    /// Applies a command that must not be refused.
    #[track_caller]
    pub fn accept(&mut self, command: Command) -> Answer {
        match self.run(&command) {
            Outcome::Applied { answer, .. } | Outcome::Unchanged { answer } => answer,
            Outcome::Rejected(refusal) => panic!("{command:?} was refused: {refusal}"),
        }
    }

    /// Applies a command that must be refused, and gives the refusal's text.
    #[track_caller]
    pub fn refuse(&mut self, command: Command) -> String {
        let before = self.state.export();
        match self.run(&command) {
            Outcome::Rejected(refusal) => {
                let after = self.state.export();
                assert_eq!(
                    Parts { applied: before.applied, ..after },
                    before,
                    "a refused command changed something"
                );
                refusal.to_string()
            }
            other => panic!("{command:?} was not refused: {other:?}"),
        }
    }

    pub fn wait(&mut self, by: Duration) {
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
            at,
        });
        self.connect(number);
    }

    #[track_caller]
    pub fn connect(&mut self, number: u128) -> u64 {
        let (node, at) = (node_id(number), self.now);
        let description = self.state.node(&node).unwrap().description.clone();
        match self.accept(Command::OpenSession { node, description, manager: 1, at }) {
            Answer::Session { number } => number,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub fn down(&mut self, number: u128) {
        let (node, at, status) = (node_id(number), self.now, NodeStatus::Down);
        let session = self.state.node(&node).unwrap().session;
        self.accept(Command::SetNodeStatus { term: TERM, node, session, status, at });
    }

    /// The service as it is, which must have this version.
    #[track_caller]
    pub fn service_answer(&self, number: u128, version: u64) -> Answer {
        let service = self.state.service(&service_id(number)).unwrap().clone();
        assert_eq!(service.version, version);
        Answer::Service(service)
    }

    #[track_caller]
    pub fn service(&mut self, number: u128, spec: ServiceSpec) -> Answer {
        self.accept(Command::CreateService { id: service_id(number), spec, at: self.now })
    }

    #[track_caller]
    pub fn update(&mut self, number: u128, spec: ServiceSpec) -> Answer {
        let (id, version, at) = (service_id(number), None, self.now);
        self.accept(Command::UpdateService { id, version, spec, force: false, at })
    }

    /// The service runs another image from now on.
    #[track_caller]
    pub fn update_image(&mut self, number: u128, image: &str) -> Answer {
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
    pub fn secret(&mut self, number: u128, name: &str, byte: u8) -> Answer {
        let (id, kind, name, at) = (content_id(number), ContentKind::Secret, name.parse().unwrap(), self.now);
        let (labels, content) = (Default::default(), sealed(byte));
        self.accept(Command::CreateContent { id, kind, name, labels, content, at })
    }

    #[track_caller]
    pub fn update_secret(&mut self, number: u128, byte: u8) -> Answer {
        let (id, content, at) = (content_id(number), sealed(byte), self.now);
        self.accept(Command::UpdateContent { id, version: None, content, at })
    }

    /// A volume without options.
    #[track_caller]
    pub fn volume(&mut self, number: u128, name: &str, node: Option<u128>) -> Answer {
        let (id, name, node, at) = (volume_id(number), name.parse().unwrap(), node.map(node_id), self.now);
        let (driver, options, labels) = (VolumeDriver::Local, Default::default(), Default::default());
        self.accept(Command::CreateVolume { id, name, driver, options, labels, node, at })
    }

    #[track_caller]
    pub fn availability(&mut self, number: u128, availability: Availability) {
        let (id, at) = (node_id(number), self.now);
        let (label_add, label_rm, availability) =
            (Default::default(), Default::default(), Some(availability));
        self.accept(Command::UpdateNode { id, version: None, label_add, label_rm, availability, at });
    }

    /// What the node's agent says is wrong with it.
    #[track_caller]
    pub fn conditions(&mut self, number: u128, conditions: &[NodeCondition]) {
        let (node, at, conditions) = (node_id(number), self.now, conditions.iter().copied().collect());
        let session = self.state.node(&node).unwrap().session;
        self.accept(Command::SetNodeConditions { node, session, conditions, at });
    }

    /// Sets a label, or takes it away.
    #[track_caller]
    pub fn label(&mut self, number: u128, key: &str, value: Option<&str>) {
        let (id, at, availability) = (node_id(number), self.now, None);
        let label_add = value.map(|value| (key.to_string(), value.to_string())).into_iter().collect();
        let label_rm = if value.is_none() { [key.to_string()].into() } else { Default::default() };
        self.accept(Command::UpdateNode { id, version: None, label_add, label_rm, availability, at });
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
        self.accept(Command::RemoveService { id: service_id(number), version: None, at: self.now });
    }

    /// The worker of the task's node says so.
    #[track_caller]
    pub fn report(&mut self, report: TaskReport) {
        let node = self.state.task(&report.task).unwrap().node.unwrap();
        let session = self.state.node(&node).unwrap().session;
        self.accept(Command::ReportTasks { node, session, reports: vec![report], at: self.now });
    }

    /// The task comes to this state in its first attempt.
    #[track_caller]
    pub fn observe(&mut self, task: TaskId, state: TaskState) {
        self.report(report(task, 1, state));
    }

    /// Carries out a plan, after which there must be nothing left to plan.
    #[track_caller]
    pub fn carry_out(&mut self, plan: impl Fn(&State, Timestamp) -> Plan) -> Plan {
        let first = plan(&self.state, self.now);
        for command in &first.commands {
            self.accept(command.clone());
        }
        let second = plan(&self.state, self.now);
        if first.recheck_after != Some(Duration::ZERO) {
            assert_eq!(second.commands, [], "planning again after {first:?}");
        }
        first
    }

    #[track_caller]
    pub fn reconcile(&mut self, service: u128) -> Plan {
        self.carry_out(|state, now| reconcile_service(state, &service_id(service), now))
    }

    #[track_caller]
    pub fn reap(&mut self, service: u128) -> Plan {
        self.carry_out(|state, _| reap(state, &service_id(service)))
    }

    /// Places what waits, after which nothing more can be placed.
    #[track_caller]
    pub fn schedule(&mut self) -> warren_core::Placement {
        let placement = schedule(&self.state, self.now);
        if let Some(command) = placement.command(&self.state, self.now) {
            self.accept(command);
        }
        for (task, node) in &placement.assignments {
            assert_eq!(self.state.task(task).unwrap().node, Some(*node), "{task} was planned but not placed");
        }
        placement
    }

    /// All services reconciled and scheduled once, and every placed task that is wanted runs.
    #[track_caller]
    pub fn settle(&mut self) {
        // What runs beside the task that it replaces has run for long enough.
        if self.state.tasks().any(|task| task.is_live() && self.state.predecessor(task).is_some()) {
            self.wait(SETTLED);
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
            Desired::Ready => (task.id, task.observed.attempt, TaskState::Ready),
            _ => (task.id, task.observed.attempt.max(1), TaskState::Running),
        };
        let starting: Vec<_> = self.state.tasks().filter(starting).map(attempt).collect();
        for (task, attempt, state) in starting {
            self.report(report(task, attempt, state));
        }
    }

    /// Workers of nodes that are up finish what they were told to remove.
    #[track_caller]
    pub fn clean_up(&mut self) {
        let leaving = |task: &&std::sync::Arc<Task>| {
            task.holds_node() && task.desired == Desired::Remove && task.lost_since().is_none()
        };
        let leaving: Vec<_> =
            self.state.tasks().filter(leaving).map(|task| (task.id, task.observed.attempt)).collect();
        for (task, attempt) in leaving {
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
        reason(&self.state, Some(&refusals), self.task(service, number), self.now)
    }
}

pub use warren_core::state::Parts;
