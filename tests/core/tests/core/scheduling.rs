//! On which nodes tasks are placed.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use warren_core::{Command, SchedulePlan, schedule, schedule_with_limit};
use warren_types::*;

use crate::test_cluster::*;

/// How many live tasks of a service each node has.
fn spread(cluster: &TestCluster, service: u128) -> BTreeMap<u128, usize> {
    let mut nodes = BTreeMap::new();
    for task in cluster.state.tasks_of(&service_id(service)).filter(|task| task.is_live()) {
        *nodes.entry(task.node.map_or(0, |node| node.0.0)).or_default() += 1;
    }
    nodes
}

#[test]
fn a_service_spreads_over_nodes() {
    let mut cluster = TestCluster::with_nodes(3);
    cluster.service(1, spec("web", 7));
    cluster.settle();
    assert_eq!(spread(&cluster, 1), BTreeMap::from([(1, 3), (2, 2), (3, 2)]));
    cluster.service(2, spec("api", 2));
    cluster.settle();
    assert_eq!(spread(&cluster, 2), BTreeMap::from([(2, 1), (3, 1)]), "to the nodes with the fewest tasks");
    cluster.node(4, resources(4000, 1024));
    cluster.scale(1, 9);
    cluster.settle();
    assert_eq!(spread(&cluster, 1), BTreeMap::from([(1, 3), (2, 2), (3, 2), (4, 2)]));
}

#[test]
fn emptier_node_is_preferred() {
    let mut cluster = TestCluster::new();
    cluster.node(1, resources(4000, 1024));
    cluster.node(2, resources(4000, 4096));
    cluster.service(1, reserving("web", 2, resources(0, 256)));
    cluster.settle();
    cluster.service(2, reserving("api", 1, resources(0, 256)));
    cluster.settle();
    assert_eq!(spread(&cluster, 2), BTreeMap::from([(2, 1)]));
}

#[test]
fn tasks_of_one_service_share_its_port_on_a_node() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.service(1, publishing("web", 3, 8080));
    cluster.settle();
    assert_eq!(spread(&cluster, 1), BTreeMap::from([(1, 3)]));
}

#[test]
fn node_with_recent_failure_is_avoided() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.service(1, spec("web", 1));
    cluster.settle();
    let first = cluster.task(1, 1).node;
    cluster.observe(task_id(1, 1), TaskState::Failed);
    cluster.advance_time(Duration::from_secs(5));
    cluster.reconcile(1);
    cluster.clean_up();
    cluster.schedule();
    assert_ne!(cluster.task(1, 2).node, first);
    cluster.observe(task_id(1, 2), TaskState::Failed);
    cluster.advance_time(Duration::from_secs(400));
    cluster.reconcile(1);
    cluster.clean_up();
    cluster.schedule();
    assert_eq!(cluster.task(1, 3).node, Some(node_id(1)), "long ago counts no more");
}

#[test]
fn a_failing_revision_is_still_placed_on_the_only_node() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.service(1, spec("web", 1));
    for number in 1..4 {
        cluster.settle();
        cluster.observe(task_id(1, number), TaskState::Failed);
        cluster.advance_time(Duration::from_secs(60));
    }
    cluster.settle();
    assert_eq!(cluster.task(1, 4).node, Some(node_id(1)));
}

#[test]
fn bounded_schedule_continues() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.service(1, spec("web", 5));
    cluster.reconcile(1);
    let first = schedule_with_limit(&cluster.state, cluster.now, 3);
    assert_eq!((first.assignments.len(), first.recheck_after), (3, Some(Duration::ZERO)));
    cluster.accept(first.command(&cluster.state, cluster.now).unwrap());
    let second = schedule_with_limit(&cluster.state, cluster.now, 3);
    assert_eq!((second.assignments.len(), second.recheck_after), (2, None));
    cluster.accept(second.command(&cluster.state, cluster.now).unwrap());
    assert_eq!(spread(&cluster, 1), BTreeMap::from([(1, 3), (2, 2)]));
    assert_eq!(schedule(&cluster.state, cluster.now).command(&cluster.state, cluster.now), None);
}

#[test]
fn tasks_follow_their_volume() {
    let mut cluster = TestCluster::with_nodes(3);
    cluster.service(1, with_volumes("web", 3, &["data"]));
    cluster.settle();
    let home = cluster.state.find_volume("data").unwrap().node.unwrap().0.0;
    assert_eq!(
        spread(&cluster, 1),
        BTreeMap::from([(home, 3)]),
        "the first one made it, and all are in one plan"
    );
    cluster.service(2, with_volumes("api", 1, &["data", "logs"]));
    cluster.service(3, with_volumes("log", 2, &["logs"]));
    cluster.settle();
    assert_eq!((spread(&cluster, 2), spread(&cluster, 3)), ([(home, 1)].into(), [(home, 2)].into()));
}

#[test]
fn volumes_of_a_slot_and_of_a_node_spread() {
    let mut cluster = TestCluster::with_nodes(3);
    cluster.service(1, with_volumes("web", 6, &["{{.Service.Name}}-{{.Task.Slot}}"]));
    cluster.service(2, with_volumes("api", 6, &["cache-{{.Node.Hostname}}"]));
    for number in 1..=2 {
        cluster.label(number, "zone", Some("a"));
    }
    cluster.service(3, with_volumes("zoned", 6, &["zone-{{.Node.Labels.zone}}"]));
    cluster.settle();
    for service in 1..=2 {
        assert_eq!(spread(&cluster, service), BTreeMap::from([(1, 2), (2, 2), (3, 2)]));
    }
    assert_eq!(
        spread(&cluster, 3).len(),
        1,
        "both nodes of the zone mean one volume: {:?}",
        spread(&cluster, 3)
    );
    assert_eq!(cluster.state.volumes().count(), 6 + 3 + 1);
}

#[test]
fn global_service_with_volume_runs_on_its_node() {
    let mut cluster = TestCluster::with_nodes(2);
    let expected =
        |volume: &str| ServiceSpec { mode: ServiceMode::Global, ..with_volumes("agent", 0, &[volume]) };
    cluster.service(1, expected("data"));
    cluster.settle();
    assert_eq!(spread(&cluster, 1), BTreeMap::from([(0, 1), (1, 1)]));
    let why = "0 of 1 nodes fit: 1 does not have the volume data, which is on node-1";
    assert_eq!(cluster.reason(1, 2), why);
    cluster.update(1, expected("data-{{.Node.ID}}"));
    (0..6).for_each(|_| {
        cluster.settle();
        cluster.clean_up();
    });
    assert_eq!(spread(&cluster, 1), BTreeMap::from([(1, 1), (2, 1)]), "each node has its own");
}

#[test]
fn node_with_unhealthy_task_is_avoided() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.service(2, constrained("api", 2, &["node.name == node-2"]));
    cluster.settle();
    cluster.service(1, spec("web", 1));
    cluster.settle();
    assert_eq!(cluster.task(1, 1).node, Some(node_id(1)));
    let (health, ready) = (Health::Unhealthy, false);
    cluster.report(TaskReport { health, ready, ..report(task_id(1, 1), 1, TaskState::Running) });
    cluster.reconcile(1);
    cluster.advance_time(Duration::from_secs(5));
    cluster.schedule();
    assert_eq!(cluster.task(1, 2).node, Some(node_id(2)), "though that has more tasks");
}

#[derive(Debug, Clone)]
struct ServiceRequest {
    replicas: u32,
    reservations: Resources,
    port: bool,
    /// None, or that of [`VOLUMES`].
    volume: usize,
}

/// One that all tasks share, one per slot, per node, and for several nodes.
const VOLUMES: [&str; 4] =
    ["data", "data-{{.Task.Slot}}", "data-{{.Node.Hostname}}", "data-{{.Node.Labels.zone}}"];

fn amounts() -> impl Strategy<Value = Resources> {
    (0..5u64, 0..5u64).prop_map(|(cpu, memory)| resources(cpu * 500, memory * 128))
}

fn wanted() -> impl Strategy<Value = ServiceRequest> {
    (0..12u32, amounts(), any::<bool>(), 0..8usize).prop_map(|(replicas, reservations, port, volume)| {
        ServiceRequest { replicas, reservations, port, volume }
    })
}

/// Whether the task could still go to the node, computed from the tasks and not from an index.
fn fits(cluster: &TestCluster, task: &Task, node: &Node) -> bool {
    let here = cluster.state.tasks().filter(|other| other.node == Some(node.id) && other.holds_resources());
    let (mut cpu, mut memory) =
        (task.revision.task.reservations.cpu.0, task.revision.task.reservations.memory.0);
    for other in here {
        cpu += other.revision.task.reservations.cpu.0;
        memory += other.revision.task.reservations.memory.0;
    }
    let total = node.description.resources;
    let well = node.conditions.iter().all(|condition| !condition.blocks_scheduling());
    let ready = node.status == NodeStatus::Ready && well;
    ready && cpu <= total.cpu.0 && memory <= total.memory.0 && has_volumes(cluster, task, node)
}

/// Whether the data of the task is on the node, or nowhere. Names are expanded independently of the tested
/// code.
fn has_volumes(cluster: &TestCluster, task: &Task, node: &Node) -> bool {
    let place = |name: &str| cluster.state.find_volume(name).ok().and_then(|volume| volume.node);
    task.revision.task.mounts.iter().all(|mount| {
        let MountSource::Volume { name, .. } = &mount.source else { return true };
        let name = name.replace("{{.Task.Slot}}", &task.slot.to_string());
        let name = name.replace("{{.Node.Hostname}}", node.name.as_str());
        let zone = name.contains("zone").then(|| node.labels.get("zone").map(String::as_str));
        let name = name.replace("{{.Node.Labels.zone}}", zone.flatten().unwrap_or_default());
        zone != Some(None) && place(&name).is_none_or(|place| place == node.id)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// What is planned fits and is assigned when applied; what is not planned fits nowhere, and has a reason.
    #[test]
    fn every_fitting_task_is_placed(
        nodes in prop::collection::vec((amounts(), any::<bool>(), 0..4usize, 0..9usize), 0..6),
        there in prop::collection::btree_map(0..4usize, 1..6u128, 0..3),
        services in prop::collection::vec(wanted(), 1..6),
    ) {
        let mut cluster = TestCluster::new();
        for (number, (resources, up, zone, condition)) in (1..).zip(nodes) {
            cluster.node(number, resources);
            cluster.label(number, "zone", ["1", "2", "node-1"].get(zone).copied());
            let conditions: Vec<_> = NodeCondition::ALL.get(condition).copied().into_iter().collect();
            cluster.conditions(number, &conditions);
            if !up {
                cluster.set_down(number);
            }
        }
        for (number, expected) in (1u8..).zip(services) {
            let ServiceRequest { replicas, reservations, port, volume } = expected;
            let name = format!("s{number}");
            let mut spec = if port {
                publishing(&name, replicas, 8000 + u16::from(number))
            } else {
                spec(&name, replicas)
            };
            spec.task.reservations = reservations;
            let volumes: Vec<&str> = VOLUMES.get(volume).copied().into_iter().collect();
            spec.task.mounts = with_volumes("any", 1, &volumes).task.mounts;
            cluster.service(number.into(), spec);
            cluster.reconcile(number.into());
        }
        for (name, node) in there {
            let number = name as u128 + 1;
            let name = ["data", "data-1", "data-2", "data-node-1"][name];
            if cluster.state.node(&node_id(node)).is_some() {
                cluster.volume(number, name, Some(node));
            }
        }
        let placement = cluster.schedule();
        for node in cluster.state.nodes() {
            let reserved = cluster.state.node_allocation(&node.id).reserved;
            let total = node.description.resources;
            prop_assert!(reserved.cpu <= total.cpu && reserved.memory <= total.memory);
        }
        for task in cluster.state.tasks().filter(|task| task.node.is_none()) {
            prop_assert!(cluster.state.nodes().all(|node| !fits(&cluster, task, node)), "{} has room", task.id);
            prop_assert!(placement.refusals.get(task).is_some());
        }
        let again = schedule(&cluster.state, cluster.now);
        prop_assert!(again.assignments.is_empty());
        let refused = |placement: &SchedulePlan| -> Vec<_> {
            placement.refusals.iter().map(|(service, revision, _)| (service, revision)).collect()
        };
        prop_assert_eq!(refused(&again), refused(&placement));
    }

    /// One plan of everything and many small ones place the same number.
    #[test]
    fn bound_skips_no_task(replicas in 0..40u32, bound in 1..7usize, nodes in 1..4u128) {
        let mut cluster = TestCluster::with_nodes(nodes);
        cluster.service(1, reserving("web", replicas, resources(500, 0)));
        cluster.reconcile(1);
        let all = schedule_with_limit(&cluster.state, cluster.now, usize::MAX).assignments.len();
        let mut placed = 0;
        loop {
            let placement = schedule_with_limit(&cluster.state, cluster.now, bound);
            prop_assert!(placement.assignments.len() <= bound);
            let Some(command) = placement.command(&cluster.state, cluster.now) else { break };
            placed += placement.assignments.len();
            let assigned = matches!(command, Command::AssignTasks { .. });
            prop_assert!(assigned);
            cluster.accept(command);
        }
        prop_assert_eq!(placed, all);
        prop_assert_eq!(all, (replicas as usize).min(nodes as usize * 8));
    }
}
