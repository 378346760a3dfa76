//! Commands on nodes.

use std::time::Duration;

use warren_core::{Answer, Command, LEVEL, Outcome};
use warren_types::*;

use crate::world::*;

fn register(number: u128, name: &str) -> Command {
    let (id, description) = (node_id(number), description(resources(1000, 512)));
    Command::RegisterNode {
        id,
        name: name.parse().unwrap(),
        role: NodeRole::Worker,
        description,
        at: Timestamp(0),
    }
}

#[test]
fn each_node_gets_a_subnet_of_its_own() {
    let mut world = World::new();
    world.accept(register(1, "one"));
    world.accept(register(2, "two"));
    let subnet = |world: &World, number| world.state.node(&node_id(number)).unwrap().subnet.to_string();
    assert_eq!((subnet(&world, 1), subnet(&world, 2)), ("10.0.0.0/24".into(), "10.0.1.0/24".into()));
    let answer = Answer::Node(world.state.node(&node_id(1)).unwrap().clone());
    assert_eq!(world.run(&register(1, "one")), Outcome::Unchanged { answer });
    world.accept(register(1, "uno"));
    assert_eq!(subnet(&world, 1), "10.0.0.0/24");
    assert!(world.refuse(register(1, "two")).starts_with("node two already exists"));
    assert!(world.refuse(register(3, "two")).starts_with("node two already exists"));
    world.accept(register(3, "one"));
    let settings = world.state.node_settings(&node_id(3)).unwrap();
    assert_eq!(
        (settings.subnet.to_string(), settings.heartbeat),
        ("10.0.2.0/24".into(), Duration::from_secs(5))
    );
}

#[test]
fn subnets_run_out_with_a_reason() {
    let mut world = World { state: warren_core::State::new(), now: Timestamp(1) };
    let ranges = vec!["10.0.0.0/24".parse().unwrap()];
    world.accept(Command::CreateCluster { id: ClusterId(Id(1)), ranges, level: LEVEL, at: world.now });
    world.accept(register(1, "one"));
    let refusal = world.refuse(register(2, "two"));
    assert_eq!(refusal, "all 1 node subnets of the cluster's address ranges are given out; add a range");
}

#[test]
fn sessions_count_up_and_old_ones_are_not_heard() {
    let mut world = World::with_nodes(1);
    world.service(1, spec("web", 1));
    world.settle();
    assert_eq!(world.connect(1), 2);
    let say = |session| Command::ReportTasks {
        node: node_id(1),
        session,
        reports: vec![report(task_id(1, 1), 1, TaskState::Failed)],
        at: Timestamp(0),
    };
    let stale = "node node-1 is in session 2, this is of session 1; open a new session";
    assert_eq!(world.refuse(say(1)), stale);
    assert!(world.refuse(say(3)).contains("is in session 2"));
    world.accept(say(2));
    assert_eq!(world.task(1, 1).observed.state, TaskState::Failed);
}

#[test]
fn tasks_of_a_node_that_is_down_are_lost_until_it_returns() {
    let mut world = World::with_nodes(1);
    world.service(1, spec("web", 1));
    world.settle();
    world.wait(Duration::from_secs(9));
    world.down(1);
    assert_eq!(world.task(1, 1).lost_since(), Some(world.now));
    assert_eq!(world.task(1, 1).observed.state, TaskState::Running, "what was observed is not invented");
    assert_eq!(world.state.counts(&service_id(1)).running, 0);
    world.wait(Duration::from_secs(9));
    world.down(1);
    assert_eq!(world.reason(1, 1), "node node-1 has been down since 2026-11-20T14:30:09Z");
    world.connect(1);
    assert_eq!(world.task(1, 1).lost_since(), None);
    assert_eq!(world.state.counts(&service_id(1)).running, 1);
}

#[test]
fn silence_of_an_old_session_does_not_take_a_node_down() {
    let mut world = World::with_nodes(1);
    let node = node_id(1);
    let status =
        |session, status| Command::SetNodeStatus { term: TERM, node, session, status, at: Timestamp(0) };
    world.connect(1);
    assert!(world.refuse(status(1, NodeStatus::Down)).contains("is in session 2"));
    assert!(world.refuse(status(2, NodeStatus::Unknown)).starts_with("status: UNKNOWN is what a node is"));
    world.accept(status(2, NodeStatus::Down));
    assert!(matches!(world.run(&status(2, NodeStatus::Down)), Outcome::Unchanged { .. }));
    world.accept(status(2, NodeStatus::Ready));
    world.accept(register(5, "new"));
    let node = node_id(5);
    let never =
        Command::SetNodeStatus { term: TERM, node, session: 0, status: NodeStatus::Ready, at: Timestamp(0) };
    assert!(world.refuse(never).contains("in session 0"));
}
