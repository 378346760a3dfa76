//! The pure core at scale: scheduling, and the memory per task.

use std::time::Instant;

use warren_core::state::{Command, NewTask, State};
use warren_core::{ApplyOutcome, schedule_with_limit};
use warren_types::{
    Bytes, ClusterId, DesiredTaskState, Id, MilliCpu, NodeDescription, NodeId, NodeRole, Placement,
    PlacementPreference, Resources, ServiceId, ServiceMode, ServiceSpec, TaskSpec, Timestamp,
};

use crate::allocator;
use crate::figures::BenchFigures;

const NOW: Timestamp = Timestamp(1_000);
const TERM: u64 = 1;
/// Tasks that one command creates.
const BATCH: u32 = 1_000;

/// A cluster that is built command by command, as in a manager.
struct BenchCluster {
    state: State,
    index: u64,
}

impl BenchCluster {
    fn new(nodes: u32) -> Self {
        let mut cluster = Self { state: State::new(), index: 0 };
        let ranges = vec!["10.0.0.0/8".parse().expect("a valid range")];
        cluster.apply(Command::CreateCluster {
            id: ClusterId(Id(1)),
            ranges,
            feature_level: warren_core::FEATURE_LEVEL,
            at: NOW,
        });
        for number in 1..=nodes {
            let node = NodeId(Id(number.into()));
            let name = format!("node-{number}").parse().expect("a valid name");
            let description = description(number);
            cluster.apply(Command::RegisterNode {
                id: node,
                name,
                role: NodeRole::Worker,
                description,
                taints: Default::default(),
                at: NOW,
            });
            cluster.apply(Command::OpenSession {
                node,
                description: self::description(number),
                manager: 1,
                at: NOW,
            });
        }
        cluster
    }

    fn apply(&mut self, command: Command) {
        self.index += 1;
        let outcome = self.state.apply(TERM, self.index, &command);
        assert!(!matches!(outcome, ApplyOutcome::Rejected(_)), "{outcome:?}");
    }

    /// A service whose tasks wait for nodes.
    fn add_service(&mut self, number: u32, replicas: u32, preferences: &[PlacementPreference]) {
        let id = ServiceId(Id(number.into()));
        let mut task = TaskSpec::new("web:1".parse().expect("a valid reference"));
        task.reservations = Resources { cpu: MilliCpu(10), memory: Bytes(16 << 20) };
        let name = format!("service-{number}").parse().expect("a valid name");
        let placement = Placement { preferences: preferences.to_vec(), ..Placement::default() };
        let mode = ServiceMode::Replicated { replicas };
        let spec = ServiceSpec { mode, placement, ..ServiceSpec::new(name, task) };
        self.apply(Command::CreateService { id, spec, at: NOW });
        for first in (1..=replicas).step_by(BATCH as usize) {
            let last = (first + BATCH - 1).min(replicas);
            let slots = (first..=last).map(new_task).collect();
            self.apply(Command::CreateTasks { term: TERM, service: id, revision: 1, slots, at: NOW });
        }
    }
}

fn new_task(slot: u32) -> NewTask {
    NewTask {
        slot,
        not_before: None,
        desired: DesiredTaskState::Running,
        replaces: None,
        bound_to: None,
        label_value: None,
    }
}

fn description(number: u32) -> NodeDescription {
    let label = |key: &str, values: u32| (key.to_owned(), (number % values).to_string());
    NodeDescription {
        resources: Resources { cpu: MilliCpu(64_000), memory: Bytes(256 << 30) },
        disk: Bytes(1 << 40),
        os: "linux".into(),
        architecture: "amd64".into(),
        kernel: "6.1".into(),
        runtime: "containerd 1.6.20".into(),
        version: "0.1.0".into(),
        address: "10.0.0.1:8080".into(),
        data_address: None,
        wireguard_key: None,
        apparmor_missing: false,
        labels: [label("zone", 7), label("rack", 50)].into(),
    }
}

pub fn measure(figures: &mut BenchFigures) {
    println!("\ndeciding, without IO");
    measure_scheduling(figures, [1_000, 100, 1_000], &[], "< 0.5 s");
    measure_scheduling(figures, [1_000, 100, 1_000], &["zone", "rack"], "< 0.5 s");
    measure_scheduling(figures, [10_000, 100, 10_000], &[], "< 10 s");
}

/// Schedules services of `replicas` tasks each, spread over the values of `labels`, onto empty nodes.
fn measure_scheduling(
    figures: &mut BenchFigures,
    [nodes, services, replicas]: [u32; 3],
    labels: &[&str],
    aim: &str,
) {
    let preferences: Vec<PlacementPreference> =
        labels.iter().map(|label| PlacementPreference::Spread((*label).to_owned())).collect();
    let tasks = services * replicas;
    let before = allocator::in_use();
    let mut cluster = BenchCluster::new(nodes);
    let empty = allocator::in_use();
    for number in 1..=services {
        cluster.add_service(number, replicas, &preferences);
    }
    let waiting = allocator::in_use();
    let per_task = |bytes: u64| bytes as f64 / f64::from(tasks);
    let spread = if labels.is_empty() { "" } else { ", two preferences" };
    let name = |what: &str| format!("{what}, {nodes} nodes x {tasks} tasks{spread}");

    let (bytes, start) = (allocator::allocated(), Instant::now());
    let placement = schedule_with_limit(&cluster.state, NOW, usize::MAX);
    let (elapsed, bytes) = (start.elapsed(), allocator::allocated() - bytes);
    assert_eq!(placement.assignments.len(), tasks as usize, "everything fits");
    figures.add(&name("schedule"), elapsed.as_secs_f64(), "s", aim);
    figures.add(&name("schedule, allocated per task"), per_task(bytes), "bytes", "< 1024");
    figures.add(&name("store per waiting task"), per_task(waiting - empty), "bytes", "< 1024");

    let start = Instant::now();
    for placements in placement.assignments.chunks(BATCH as usize) {
        let placements = placements.to_vec();
        cluster.apply(Command::AssignTasks { term: TERM, placements, at: NOW });
    }
    figures.add(&name("apply the placements"), start.elapsed().as_secs_f64(), "s", "");
    drop(placement);
    let placed = allocator::in_use() - empty;
    figures.add(&name("store per placed task, indexes included"), per_task(placed), "bytes", "< 1024");
    let node = (empty - before) as f64 / f64::from(nodes);
    figures.add(&name("store per node"), node, "bytes", "");
}
