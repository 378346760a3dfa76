//! Where tasks go.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use warren_core::{Command, Placement, schedule, schedule_up_to};
use warren_types::*;

use crate::world::*;

/// How many live tasks of a service each node has.
fn spread(world: &World, service: u128) -> BTreeMap<u128, usize> {
    let mut nodes = BTreeMap::new();
    for task in world.state.tasks_of(&service_id(service)).filter(|task| task.is_live()) {
        *nodes.entry(task.node.map_or(0, |node| node.0.0)).or_default() += 1;
    }
    nodes
}

#[test]
fn a_service_spreads_over_nodes() {
    let mut world = World::with_nodes(3);
    world.service(1, spec("web", 7));
    world.settle();
    assert_eq!(spread(&world, 1), BTreeMap::from([(1, 3), (2, 2), (3, 2)]));
    world.service(2, spec("api", 2));
    world.settle();
    assert_eq!(spread(&world, 2), BTreeMap::from([(2, 1), (3, 1)]), "to the nodes with the fewest tasks");
    world.node(4, resources(4000, 1024));
    world.scale(1, 9);
    world.settle();
    assert_eq!(spread(&world, 1), BTreeMap::from([(1, 3), (2, 2), (3, 2), (4, 2)]));
}

#[test]
fn the_emptier_of_equal_nodes_is_taken() {
    let mut world = World::new();
    world.node(1, resources(4000, 1024));
    world.node(2, resources(4000, 4096));
    world.service(1, reserving("web", 2, resources(0, 256)));
    world.settle();
    world.service(2, reserving("api", 1, resources(0, 256)));
    world.settle();
    assert_eq!(spread(&world, 2), BTreeMap::from([(2, 1)]));
}

#[test]
fn tasks_of_one_service_share_its_port_on_a_node() {
    let mut world = World::with_nodes(1);
    world.service(1, publishing("web", 3, 8080));
    world.settle();
    assert_eq!(spread(&world, 1), BTreeMap::from([(1, 3)]));
}

#[test]
fn a_node_where_the_revision_failed_comes_later_for_a_while() {
    let mut world = World::with_nodes(2);
    world.service(1, spec("web", 1));
    world.settle();
    let first = world.task(1, 1).node;
    world.observe(task_id(1, 1), TaskState::Failed);
    world.wait(Duration::from_secs(5));
    world.reconcile(1);
    world.clean_up();
    world.schedule();
    assert_ne!(world.task(1, 2).node, first);
    world.observe(task_id(1, 2), TaskState::Failed);
    world.wait(Duration::from_secs(400));
    world.reconcile(1);
    world.clean_up();
    world.schedule();
    assert_eq!(world.task(1, 3).node, Some(node_id(1)), "long ago counts no more");
}

#[test]
fn a_failing_revision_is_still_placed_on_the_only_node() {
    let mut world = World::with_nodes(1);
    world.service(1, spec("web", 1));
    for number in 1..4 {
        world.settle();
        world.observe(task_id(1, number), TaskState::Failed);
        world.wait(Duration::from_secs(60));
    }
    world.settle();
    assert_eq!(world.task(1, 4).node, Some(node_id(1)));
}

#[test]
fn a_plan_is_bounded_and_goes_on_where_it_ended() {
    let mut world = World::with_nodes(2);
    world.service(1, spec("web", 5));
    world.reconcile(1);
    let first = schedule_up_to(&world.state, world.now, 3);
    assert_eq!((first.assignments.len(), first.recheck_after), (3, Some(Duration::ZERO)));
    world.accept(first.command(&world.state, world.now).unwrap());
    let second = schedule_up_to(&world.state, world.now, 3);
    assert_eq!((second.assignments.len(), second.recheck_after), (2, None));
    world.accept(second.command(&world.state, world.now).unwrap());
    assert_eq!(spread(&world, 1), BTreeMap::from([(1, 3), (2, 2)]));
    assert_eq!(schedule(&world.state, world.now).command(&world.state, world.now), None);
}

#[test]
fn tasks_go_where_their_volume_is() {
    let mut world = World::with_nodes(3);
    world.service(1, with_volumes("web", 3, &["data"]));
    world.settle();
    let home = world.state.find_volume("data").unwrap().node.unwrap().0.0;
    assert_eq!(
        spread(&world, 1),
        BTreeMap::from([(home, 3)]),
        "the first one made it, and all are in one plan"
    );
    world.service(2, with_volumes("api", 1, &["data", "logs"]));
    world.service(3, with_volumes("log", 2, &["logs"]));
    world.settle();
    assert_eq!((spread(&world, 2), spread(&world, 3)), ([(home, 1)].into(), [(home, 2)].into()));
}

#[test]
fn volumes_of_a_slot_and_of_a_node_spread() {
    let mut world = World::with_nodes(3);
    world.service(1, with_volumes("web", 6, &["{{.Service.Name}}-{{.Task.Slot}}"]));
    world.service(2, with_volumes("api", 6, &["cache-{{.Node.Hostname}}"]));
    for number in 1..=2 {
        world.label(number, "zone", Some("a"));
    }
    world.service(3, with_volumes("zoned", 6, &["zone-{{.Node.Labels.zone}}"]));
    world.settle();
    for service in 1..=2 {
        assert_eq!(spread(&world, service), BTreeMap::from([(1, 2), (2, 2), (3, 2)]));
    }
    assert_eq!(spread(&world, 3).len(), 1, "both nodes of the zone mean one volume: {:?}", spread(&world, 3));
    assert_eq!(world.state.volumes().count(), 6 + 3 + 1);
}

#[test]
fn a_global_service_with_one_volume_runs_on_its_node() {
    let mut world = World::with_nodes(2);
    let wanted = |volume: &str| ServiceSpec { mode: Mode::Global, ..with_volumes("agent", 0, &[volume]) };
    world.service(1, wanted("data"));
    world.settle();
    assert_eq!(spread(&world, 1), BTreeMap::from([(0, 1), (1, 1)]));
    let why = "0 of 1 nodes fit: 1 does not have the volume data, which is on node-1";
    assert_eq!(world.reason(1, 2), why);
    world.update(1, wanted("data-{{.Node.ID}}"));
    (0..6).for_each(|_| {
        world.settle();
        world.clean_up();
    });
    assert_eq!(spread(&world, 1), BTreeMap::from([(1, 1), (2, 1)]), "each node has its own");
}

#[test]
fn a_node_with_an_unhealthy_task_comes_later() {
    let mut world = World::with_nodes(2);
    world.service(2, constrained("api", 2, &["node.name == node-2"]));
    world.settle();
    world.service(1, spec("web", 1));
    world.settle();
    assert_eq!(world.task(1, 1).node, Some(node_id(1)));
    let (health, ready) = (Health::Unhealthy, false);
    world.report(TaskReport { health, ready, ..report(task_id(1, 1), 1, TaskState::Running) });
    world.reconcile(1);
    world.wait(Duration::from_secs(5));
    world.schedule();
    assert_eq!(world.task(1, 2).node, Some(node_id(2)), "though that has more tasks");
}

#[derive(Debug, Clone)]
struct Wanted {
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

fn wanted() -> impl Strategy<Value = Wanted> {
    (0..12u32, amounts(), any::<bool>(), 0..8usize)
        .prop_map(|(replicas, reservations, port, volume)| Wanted { replicas, reservations, port, volume })
}

/// Whether the task could still go to the node, counted from the tasks and not by any index.
fn fits(world: &World, task: &Task, node: &Node) -> bool {
    let here = world.state.tasks().filter(|other| other.node == Some(node.id) && other.holds_node());
    let (mut cpu, mut memory) =
        (task.revision.task.reservations.cpu.0, task.revision.task.reservations.memory.0);
    for other in here {
        cpu += other.revision.task.reservations.cpu.0;
        memory += other.revision.task.reservations.memory.0;
    }
    let total = node.description.resources;
    let well = node.conditions.iter().all(|condition| !condition.keeps_tasks_away());
    let ready = node.status == NodeStatus::Ready && well;
    ready && cpu <= total.cpu.0 && memory <= total.memory.0 && has_volumes(world, task, node)
}

/// Whether the data of the task is on the node, or nowhere. Names are expanded without the help of what is tested.
fn has_volumes(world: &World, task: &Task, node: &Node) -> bool {
    let place = |name: &str| world.state.find_volume(name).ok().and_then(|volume| volume.node);
    task.revision.task.mounts.iter().all(|mount| {
        let MountSource::Volume { name, .. } = &mount.source else { return true };
        let name = name.replace("{{.Task.Slot}}", &task.slot.to_string());
        let name = name.replace("{{.Node.Hostname}}", node.name.as_str());
        let zone = name.contains("zone").then(|| node.label("zone"));
        let name = name.replace("{{.Node.Labels.zone}}", zone.flatten().unwrap_or_default());
        zone != Some(None) && place(&name).is_none_or(|place| place == node.id)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// What is planned fits and is placed when applied; what is not planned fits nowhere, and is told why.
    #[test]
    fn all_that_fits_is_placed(
        nodes in prop::collection::vec((amounts(), any::<bool>(), 0..4usize, 0..9usize), 0..6),
        there in prop::collection::btree_map(0..4usize, 1..6u128, 0..3),
        services in prop::collection::vec(wanted(), 1..6),
    ) {
        let mut world = World::new();
        for (number, (resources, up, zone, condition)) in (1..).zip(nodes) {
            world.node(number, resources);
            world.label(number, "zone", ["1", "2", "node-1"].get(zone).copied());
            let conditions: Vec<_> = NodeCondition::ALL.get(condition).copied().into_iter().collect();
            world.conditions(number, &conditions);
            if !up {
                world.down(number);
            }
        }
        for (number, wanted) in (1u8..).zip(services) {
            let Wanted { replicas, reservations, port, volume } = wanted;
            let name = format!("s{number}");
            let mut spec = if port {
                publishing(&name, replicas, 8000 + u16::from(number))
            } else {
                spec(&name, replicas)
            };
            spec.task.reservations = reservations;
            let volumes: Vec<&str> = VOLUMES.get(volume).copied().into_iter().collect();
            spec.task.mounts = with_volumes("any", 1, &volumes).task.mounts;
            world.service(number.into(), spec);
            world.reconcile(number.into());
        }
        for (name, node) in there {
            let number = name as u128 + 1;
            let name = ["data", "data-1", "data-2", "data-node-1"][name];
            if world.state.node(&node_id(node)).is_some() {
                world.volume(number, name, Some(node));
            }
        }
        let placement = world.schedule();
        for node in world.state.nodes() {
            let reserved = world.state.usage(&node.id).reserved;
            let total = node.description.resources;
            prop_assert!(reserved.cpu <= total.cpu && reserved.memory <= total.memory);
        }
        for task in world.state.tasks().filter(|task| task.node.is_none()) {
            prop_assert!(world.state.nodes().all(|node| !fits(&world, task, node)), "{} has room", task.id);
            prop_assert!(placement.refusals.of(task).is_some());
        }
        let again = schedule(&world.state, world.now);
        prop_assert!(again.assignments.is_empty());
        let refused = |placement: &Placement| -> Vec<_> {
            placement.refusals.iter().map(|(service, revision, _)| (service, revision)).collect()
        };
        prop_assert_eq!(refused(&again), refused(&placement));
    }

    /// One plan of everything and many small ones place the same number.
    #[test]
    fn the_bound_loses_nothing(replicas in 0..40u32, bound in 1..7usize, nodes in 1..4u128) {
        let mut world = World::with_nodes(nodes);
        world.service(1, reserving("web", replicas, resources(500, 0)));
        world.reconcile(1);
        let all = schedule_up_to(&world.state, world.now, usize::MAX).assignments.len();
        let mut placed = 0;
        loop {
            let placement = schedule_up_to(&world.state, world.now, bound);
            prop_assert!(placement.assignments.len() <= bound);
            let Some(command) = placement.command(&world.state, world.now) else { break };
            placed += placement.assignments.len();
            let assigned = matches!(command, Command::AssignTasks { .. });
            prop_assert!(assigned);
            world.accept(command);
        }
        prop_assert_eq!(placed, all);
        prop_assert_eq!(all, (replicas as usize).min(nodes as usize * 8));
    }
}
