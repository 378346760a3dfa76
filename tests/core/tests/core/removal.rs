//! Nodes: changes by users, and removal.

use warren_core::state::MAX_REMOVED_NODES;
use warren_core::{ApplyOutcome, Command, CommandResponse};
use warren_types::*;

use crate::test_cluster::*;

fn remove(number: u128, force: bool) -> Command {
    Command::RemoveNode { id: node_id(number), force, at: Timestamp(0) }
}

fn running() -> TestCluster {
    let mut world = TestCluster::with_nodes(2);
    world.service(1, spec("web", 4));
    world.settle();
    world
}

#[test]
fn a_node_in_use_is_removed_only_by_force() {
    let mut world = running();
    let refusal = world.refuse(remove(1, false));
    let expected =
        "node node-1 is READY and has 2 tasks; drain it or stop it first, or use force to give up its tasks";
    assert_eq!(refusal, expected);
    world.accept(remove(1, true));
    assert_eq!(world.apply(&remove(1, true)), ApplyOutcome::Unchanged { answer: CommandResponse::Done });
    let lost = world.task(1, 1);
    assert!(lost.observed.removed && !lost.observed.ready);
    assert_eq!((lost.observed.state, lost.lost_since()), (TaskState::Shutdown, None));
    assert_eq!(world.reason(1, 1), "node node-1 was removed from the cluster");
    world.settle();
    assert_eq!(world.live(1).len(), 4);
    assert_eq!(world.state.tasks_on(&node_id(2)).count(), 4);
    assert_eq!(world.task(1, 5).not_before(), None, "it is no failure of the slot");
    assert_eq!(warren_core::State::restore(world.state.export()).unwrap(), world.state);
}

#[test]
fn a_node_that_is_down_or_empty_needs_no_force() {
    let mut world = running();
    world.node(3, resources(1000, 512));
    world.accept(remove(3, false));
    world.set_down(1);
    world.accept(remove(1, false));
    assert_eq!(world.state.nodes().count(), 1);
    world.settle();
    assert_eq!(world.state.tasks_on(&node_id(2)).count(), 4);
}

#[test]
fn removed_node_disappears_everywhere() {
    let mut world = running();
    world.accept(remove(1, true));
    let (node, at) = (node_id(1), world.now);
    let reports = vec![report(task_id(1, 1), 1, TaskState::Running)];
    let missing = "does not exist; `warren node ls` lists the existing ones";
    assert!(world.refuse(Command::ReportTasks { node, session: 1, reports, at }).ends_with(missing));
    let description = description(resources(1000, 512));
    assert!(world.refuse(Command::OpenSession { node, description, manager: 1, at }).ends_with(missing));
    assert_eq!(world.state.assignment(&node), None);
}

#[test]
fn rejoined_node_is_a_new_node() {
    let mut world = running();
    let before = world.state.node(&node_id(1)).unwrap().subnets.clone();
    world.accept(remove(1, true));
    world.node(1, resources(4000, 1024));
    let node = world.state.node(&node_id(1)).unwrap();
    assert_ne!(node.subnets, before, "an address of before may still be in use");
    assert_eq!(world.state.tasks_on(&node_id(1)).count(), 0);
    // Reports of earlier tasks change nothing.
    world.report(report(task_id(1, 1), 2, TaskState::Running));
    assert!(world.task(1, 1).observed.removed);
    assert_eq!(warren_core::State::restore(world.state.export()).unwrap(), world.state);
}

#[test]
fn removed_node_is_recorded_until_it_rejoins() {
    let mut world = running();
    world.accept(remove(1, true));
    let index = world.state.applied().index;
    assert_eq!(world.state.node_removed_at(&node_id(1)), Some(index));
    world.accept(remove(1, true));
    world.accept(remove(9, true));
    assert_eq!(world.state.node_removed_at(&node_id(1)), Some(index), "it was not there any more");
    assert_eq!(world.state.node_removed_at(&node_id(9)), None, "it never was");
    assert_eq!(warren_core::State::restore(world.state.export()).unwrap(), world.state);
    world.node(1, resources(4000, 1024));
    assert_eq!(world.state.node_removed_at(&node_id(1)), None);
}

#[test]
fn removed_nodes_are_bounded() {
    let mut world = TestCluster::new();
    let most = MAX_REMOVED_NODES as u128;
    // Not in the order of their ids.
    for number in (1..=most + 2).rev() {
        world.state.apply(TERM, world.state.applied().index + 1, &registration(number));
        world.state.apply(TERM, world.state.applied().index + 1, &remove(number, true));
    }
    world.state.check().unwrap();
    let known = |number| world.state.node_removed_at(&node_id(number)).is_some();
    assert_eq!([most + 2, most + 1, most, 1].map(known), [false, false, true, true]);
    assert_eq!(world.state.export().removed_nodes.len(), MAX_REMOVED_NODES);
}

fn registration(number: u128) -> Command {
    Command::RegisterNode {
        id: node_id(number),
        name: format!("n{number}").parse().unwrap(),
        role: NodeRole::Worker,
        description: description(resources(1000, 512)),
        taints: Default::default(),
        at: Timestamp(0),
    }
}

#[test]
fn update_node_changes_labels_and_availability() {
    let mut world = TestCluster::with_nodes(1);
    let update = |version, add: &[(&str, &str)], rm: &[&str], availability| Command::UpdateNode {
        id: node_id(1),
        version,
        label_add: add.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect(),
        label_rm: rm.iter().map(ToString::to_string).collect(),
        availability,
        taint_add: Default::default(),
        taint_rm: Default::default(),
        at: Timestamp(0),
    };
    world.accept(update(None, &[("zone", "a"), ("disk", "ssd")], &[], Some(Availability::Pause)));
    let again = world.apply(&update(Some(1), &[("zone", "a")], &["gpu"], None));
    assert!(matches!(again, ApplyOutcome::Unchanged { .. }), "{again:?}");
    assert!(world.refuse(update(Some(1), &[], &["zone"], None)).starts_with("node node-1 is at version"));
    world.accept(update(None, &[], &["zone"], None));
    let node = world.state.node(&node_id(1)).unwrap();
    assert_eq!(node.labels, [("disk".to_string(), "ssd".to_string())].into());
    assert_eq!(node.availability, Availability::Pause, "as it was");
    assert!(world.refuse(update(None, &[("", "a")], &[], None)).starts_with("labels[\"\"]"));
}

#[test]
fn agent_labels_are_no_node_labels() {
    let mut world = TestCluster::new();
    world.node(1, resources(4000, 1024));
    let mut described = description(resources(4000, 1024));
    described.labels = [("zone".to_string(), "a".to_string())].into();
    world.accept(Command::OpenSession {
        node: node_id(1),
        description: described,
        manager: 1,
        at: world.now,
    });
    world.service(1, constrained("web", 1, &["node.labels.zone == a"]));
    world.service(2, constrained("db", 1, &["engine.labels.zone == a"]));
    world.settle();
    assert_eq!(world.reason(1, 1), "0 of 1 nodes fit: 1 does not meet \"node.labels.zone == a\"");
    assert_eq!(world.task(2, 1).node, Some(node_id(1)));
    world.label(1, "zone", Some("a"));
    world.settle();
    assert_eq!(world.task(1, 1).node, Some(node_id(1)));
    // A restarted agent reports no label any more.
    let (node, description) = (node_id(1), description(resources(4000, 1024)));
    world.accept(Command::OpenSession { node, description, manager: 1, at: world.now });
    world.settle();
    assert_eq!(world.reason(2, 2), "0 of 1 nodes fit: 1 does not meet \"engine.labels.zone == a\"");
}
