//! Commands on nodes.

use std::time::Duration;

use warren_core::{ApplyOutcome, Command, CommandResponse, FEATURE_LEVEL};
use warren_types::*;

use crate::test_cluster::*;

fn register(number: u128, name: &str) -> Command {
    let (id, description) = (node_id(number), description(resources(1000, 512)));
    Command::RegisterNode {
        id,
        name: name.parse().unwrap(),
        role: NodeRole::Worker,
        description,
        taints: Default::default(),
        at: Timestamp(0),
    }
}

#[test]
fn each_node_gets_a_subnet_of_its_own() {
    let mut cluster = TestCluster::new();
    cluster.accept(register(1, "one"));
    cluster.accept(register(2, "two"));
    let subnet =
        |cluster: &TestCluster, number| cluster.state.node(&node_id(number)).unwrap().subnets[0].to_string();
    assert_eq!((subnet(&cluster, 1), subnet(&cluster, 2)), ("10.0.0.0/24".into(), "10.0.1.0/24".into()));
    let answer = CommandResponse::Node(cluster.state.node(&node_id(1)).unwrap().clone());
    assert_eq!(cluster.apply(&register(1, "one")), ApplyOutcome::Unchanged { answer });
    cluster.accept(register(1, "uno"));
    assert_eq!(subnet(&cluster, 1), "10.0.0.0/24");
    assert!(cluster.refuse(register(1, "two")).starts_with("node two already exists"));
    assert!(cluster.refuse(register(3, "two")).starts_with("node two already exists"));
    cluster.accept(register(3, "one"));
    let settings = cluster.state.node_settings(&node_id(3)).unwrap();
    assert_eq!(
        (settings.subnets[0].to_string(), settings.heartbeat),
        ("10.0.2.0/24".into(), Duration::from_secs(5))
    );
}

#[test]
fn subnets_run_out_with_a_reason() {
    let mut cluster = TestCluster {
        state: warren_core::State::new(),
        now: Timestamp(1),
        changes: Vec::new(),
        events: Vec::new(),
    };
    let ranges = vec!["10.0.0.0/24".parse().unwrap()];
    cluster.accept(Command::CreateCluster {
        id: ClusterId(Id(1)),
        ranges,
        feature_level: FEATURE_LEVEL,
        at: cluster.now,
    });
    cluster.accept(register(1, "one"));
    let refusal = cluster.refuse(register(2, "two"));
    assert_eq!(refusal, "all 1 node subnets of the cluster's address ranges are allocated; add a range");
}

#[test]
fn stale_session_is_refused() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.service(1, spec("web", 1));
    cluster.settle();
    assert_eq!(cluster.connect(1), 2);
    let say = |session| Command::ReportTasks {
        node: node_id(1),
        session,
        reports: vec![report(task_id(1, 1), 1, TaskState::Failed)],
        at: Timestamp(0),
    };
    let stale = "node node-1 is in session 2, this is of session 1; open a new session";
    assert_eq!(cluster.refuse(say(1)), stale);
    assert!(cluster.refuse(say(3)).contains("is in session 2"));
    cluster.accept(say(2));
    assert_eq!(cluster.task(1, 1).observed.state, TaskState::Failed);
}

#[test]
fn tasks_of_down_node_are_lost_until_it_returns() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.service(1, spec("web", 1));
    cluster.settle();
    cluster.advance_time(Duration::from_secs(9));
    cluster.set_down(1);
    assert_eq!(cluster.task(1, 1).lost_since(), Some(cluster.now));
    assert_eq!(cluster.task(1, 1).observed.state, TaskState::Running, "what was observed is not invented");
    assert_eq!(cluster.state.task_counts(&service_id(1)).running, 0);
    cluster.advance_time(Duration::from_secs(9));
    cluster.set_down(1);
    assert_eq!(cluster.reason(1, 1), "node node-1 has been down since 2026-11-20T14:30:09Z");
    cluster.connect(1);
    assert_eq!(cluster.task(1, 1).lost_since(), None);
    assert_eq!(cluster.state.task_counts(&service_id(1)).running, 1);
}

#[test]
fn timeout_of_old_session_is_ignored() {
    let mut cluster = TestCluster::with_nodes(1);
    let node = node_id(1);
    let status =
        |session, status| Command::SetNodeStatus { term: TERM, node, session, status, at: Timestamp(0) };
    cluster.connect(1);
    assert!(cluster.refuse(status(1, NodeStatus::Down)).contains("is in session 2"));
    assert!(
        cluster.refuse(status(2, NodeStatus::Unknown)).starts_with("status: UNKNOWN is the status before")
    );
    cluster.accept(status(2, NodeStatus::Down));
    assert!(matches!(cluster.apply(&status(2, NodeStatus::Down)), ApplyOutcome::Unchanged { .. }));
    cluster.accept(status(2, NodeStatus::Ready));
    cluster.accept(register(5, "new"));
    let node = node_id(5);
    let never =
        Command::SetNodeStatus { term: TERM, node, session: 0, status: NodeStatus::Ready, at: Timestamp(0) };
    assert!(cluster.refuse(never).contains("in session 0"));
}
