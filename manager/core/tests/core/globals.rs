//! Global services: one task on every node that may have it.

use warren_core::Command;
use warren_types::*;

use crate::world::*;

/// A running global service on nodes 1 to `nodes`.
fn everywhere(nodes: u128, spec: ServiceSpec) -> World {
    let mut world = World::with_nodes(nodes);
    world.service(1, spec);
    world.settle();
    world
}

/// The nodes with a live task, each with its slot.
fn nodes(world: &World) -> Vec<(u128, u32)> {
    let live = world.state.tasks_of(&service_id(1)).filter(|task| task.is_live());
    let mut nodes: Vec<_> = live.map(|task| (task.node.map_or(0, |node| node.0.0), task.slot)).collect();
    nodes.sort_unstable();
    nodes
}

fn wanted(world: &World) -> u32 {
    world.state.wanted(world.state.service(&service_id(1)).unwrap())
}

#[test]
fn every_node_has_one_task_also_one_that_joins_later() {
    let mut world = everywhere(2, global("agent"));
    assert_eq!(nodes(&world), [(1, 1), (2, 2)]);
    world.node(3, resources(4000, 1024));
    world.settle();
    assert_eq!((nodes(&world), wanted(&world)), (vec![(1, 1), (2, 2), (3, 3)], 3));
    let scale = Command::ScaleService { id: service_id(1), version: None, replicas: 2, at: world.now };
    assert_eq!(world.refuse(scale), "replicas: agent is a global service: it has one task per node");
    world.remove(1);
    world.settle();
    world.clean_up();
    world.reap(1);
    assert_eq!((world.state.services().count(), world.state.tasks().count()), (0, 0));
}

#[test]
fn a_node_that_is_down_keeps_its_task() {
    let mut world = everywhere(2, global("agent"));
    world.down(1);
    assert!(world.reconcile(1).is_empty(), "there is nothing to replace it with");
    assert_eq!((nodes(&world), wanted(&world)), (vec![(1, 1), (2, 2)], 2));
    world.connect(1);
    assert!(world.reconcile(1).is_empty());
}

#[test]
fn a_drained_node_loses_its_task_at_once_and_gets_one_when_it_is_back() {
    let mut world = everywhere(2, global("agent"));
    world.availability(1, Availability::Drain);
    world.reconcile(1);
    assert_eq!((nodes(&world), wanted(&world)), (vec![(2, 2)], 1));
    world.clean_up();
    world.availability(1, Availability::Active);
    world.settle();
    assert_eq!(nodes(&world), [(1, 1), (2, 2)]);
}

#[test]
fn a_paused_node_keeps_its_task_and_gets_none() {
    let mut world = everywhere(2, global("agent"));
    world.availability(1, Availability::Pause);
    assert!(world.reconcile(1).is_empty());
    world.update_image(1, "demo:2");
    for _ in 0..4 {
        world.settle();
        world.clean_up();
    }
    let old = world.state.live_task(&service_id(1), 1).unwrap().revision.number;
    let new = world.state.live_task(&service_id(1), 2).unwrap().revision.number;
    assert_eq!((old, new), (1, 2));
    let progress = warren_core::rollout(&world.state, world.state.service(&service_id(1)).unwrap());
    assert_eq!((progress.updated, progress.total), (1, 2));
    let waits = "1 tasks of earlier revisions may be on nodes that are paused or down";
    assert_eq!(progress.waiting.as_deref(), Some(waits));
    world.availability(1, Availability::Active);
    for _ in 0..4 {
        world.settle();
        world.clean_up();
    }
    assert_eq!(warren_core::rollout(&world.state, world.state.service(&service_id(1)).unwrap()).updated, 2);
    assert_eq!(nodes(&world), [(1, 1), (2, 2)]);
}

#[test]
fn labels_decide_where_it_runs() {
    let mut spec = global("agent");
    spec.placement.constraints = vec!["node.labels.gpu exists".parse().unwrap()];
    let mut world = everywhere(3, spec);
    assert_eq!((nodes(&world), wanted(&world)), (vec![], 0));
    world.label(2, "gpu", Some("yes"));
    world.settle();
    assert_eq!(nodes(&world), [(2, 2)]);
    world.label(2, "gpu", None);
    world.settle();
    world.clean_up();
    assert_eq!(nodes(&world), []);
}

#[test]
fn a_task_that_does_not_fit_on_its_node_says_why() {
    let mut spec = global("agent");
    spec.task.reservations = resources(0, 2048);
    let world = everywhere(2, spec);
    let why = "0 of 1 nodes fit: 1 lacks memory (need 2GiB, best has 1GiB)";
    assert_eq!((world.reason(1, 1), world.reason(1, 2)), (why.to_string(), why.to_string()));
}

#[test]
fn an_update_goes_node_by_node_on_the_same_node() {
    let mut world = everywhere(3, global("agent"));
    world.update_image(1, "demo:2");
    let mut most = 0;
    for _ in 0..12 {
        world.settle();
        most = most.max(world.live(1).len());
        world.clean_up();
    }
    assert_eq!((nodes(&world), most), (vec![(1, 1), (2, 2), (3, 3)], 4));
    assert_eq!(warren_core::rollout(&world.state, world.state.service(&service_id(1)).unwrap()).updated, 3);
}

#[test]
fn slots_of_a_removed_node_go_with_their_records() {
    let mut world = everywhere(2, global("agent"));
    world.remove_node(1);
    world.reconcile(1);
    world.reap(1);
    assert_eq!(nodes(&world), [(2, 2)]);
    assert_eq!(world.state.tasks().count(), 1);
    world.node(1, resources(4000, 1024));
    world.settle();
    assert_eq!(nodes(&world), [(1, 3), (2, 2)], "a node that joins again is another slot");
}

#[test]
fn a_node_keeps_five_records() {
    let mut world = everywhere(1, global("agent"));
    for _ in 0..8 {
        let (_, newest) = world.live(1)[0];
        world.observe(task_id(1, newest), TaskState::Failed);
        world.wait(std::time::Duration::from_secs(3600));
        world.settle();
        world.clean_up();
    }
    world.reap(1);
    assert_eq!(world.state.tasks().count(), 6);
}
