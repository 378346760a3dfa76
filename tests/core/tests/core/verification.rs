//! Verification of nodes: who is checked when, who gets tasks, and who is removed.

use std::collections::BTreeSet;
use std::time::Duration;

use warren_core::{ApplyOutcome, Command, reconcile_verification, used_registries, verification_peers};
use warren_types::*;

use crate::test_cluster::*;

fn set(world: &mut TestCluster, verification: VerificationChange) {
    let change = ClusterSettingsChange { verification, ..Default::default() };
    world.accept(Command::UpdateCluster { version: None, change, at: world.now });
}

fn turn(world: &mut TestCluster, enabled: bool) {
    set(world, VerificationChange { enabled: Some(enabled), ..Default::default() });
}

/// Node 1, which counts as verified, and node 2, which has joined since.
fn with_new_node() -> TestCluster {
    let mut world = TestCluster::with_nodes(1);
    turn(&mut world, true);
    world.node(2, resources(4000, 1024));
    world
}

fn verification(world: &TestCluster, number: u128) -> NodeVerification {
    let verification = &world.state.node(&node_id(number)).unwrap().verification;
    (**verification.as_ref().unwrap()).clone()
}

fn is_held_back(world: &TestCluster, number: u128) -> bool {
    let node = world.state.node(&node_id(number)).unwrap();
    let is_tainted = node.taints.contains(&unverified_taint());
    assert_eq!(node.labels[VERIFIED_LABEL], (!is_tainted).to_string());
    is_tainted
}

fn begin(world: &mut TestCluster, number: u128) {
    world.accept(Command::BeginVerification { term: TERM, node: node_id(number), at: world.now });
    assert_eq!(verification(world, number).state, VerificationState::InProgress);
}

fn result(outcome: NodeCheckOutcome) -> NodeCheckResult {
    NodeCheckResult::new("gpu", outcome, "exited with code 1")
}

fn record(world: &mut TestCluster, number: u128, outcome: NodeCheckOutcome) {
    let (node, at) = (node_id(number), world.now);
    let answered = verification(world, number).requested;
    let results = vec![result(NodeCheckOutcome::Passed), result(outcome)];
    world.accept(Command::RecordVerification { term: TERM, node, answered, results, at });
}

fn check(world: &mut TestCluster, number: u128, outcome: NodeCheckOutcome) {
    begin(world, number);
    record(world, number, outcome);
}

/// The nodes whose checks begin, and the seconds until the next plan.
fn plan(world: &TestCluster, running: &[u128]) -> (Vec<u128>, Option<u64>) {
    let running: BTreeSet<NodeId> = running.iter().map(|number| node_id(*number)).collect();
    let plan = reconcile_verification(&world.state, &running, world.now);
    assert_eq!(plan.commands, []);
    let begin = plan.begin.into_iter().map(|NodeId(Id(number))| number).collect();
    (begin, plan.recheck_after.map(|after| after.as_secs()))
}

fn removed(world: &TestCluster) -> Vec<Command> {
    reconcile_verification(&world.state, &BTreeSet::new(), world.now).commands
}

fn global_nodes(world: &TestCluster) -> Vec<NodeId> {
    let tasks = world.state.tasks().filter(|task| task.is_live());
    tasks.filter_map(|task| task.node).collect::<BTreeSet<_>>().into_iter().collect()
}

#[test]
fn new_node_gets_tasks_once_it_is_verified() {
    let mut world = with_new_node();
    assert!(is_held_back(&world, 2) && !is_held_back(&world, 1));
    assert_eq!(verification(&world, 2).state, VerificationState::Unverified);
    assert_eq!(verification(&world, 1).state, VerificationState::Verified);
    world.service(1, global("agent"));
    world.settle();
    assert_eq!(global_nodes(&world), [node_id(1)]);
    check(&mut world, 2, NodeCheckOutcome::Failed);
    assert!(is_held_back(&world, 2));
    let failed = verification(&world, 2);
    assert_eq!((failed.state, failed.failures), (VerificationState::Failed, 1));
    assert_eq!(failed.failed_check(), Some(&result(NodeCheckOutcome::Failed)));
    world.settle();
    assert_eq!(global_nodes(&world), [node_id(1)]);
    begin(&mut world, 2);
    assert!(is_held_back(&world, 2), "the result decides");
    record(&mut world, 2, NodeCheckOutcome::Warning);
    let verified = verification(&world, 2);
    assert_eq!((verified.state, verified.failures), (VerificationState::Verified, 0));
    world.settle();
    assert_eq!(global_nodes(&world), [node_id(1), node_id(2)]);
}

#[test]
fn idle_nodes_are_told_of_each_other_while_nodes_are_verified() {
    let mut world = TestCluster::with_nodes(1);
    assert!(world.state.node_networks(&node_id(1)).is_empty());
    turn(&mut world, true);
    assert_eq!(world.state.node_networks(&node_id(1)), [INGRESS_NETWORK].into());
}

#[test]
fn checks_are_repeated_with_backoff() {
    let mut world = with_new_node();
    assert_eq!(plan(&world, &[]), (vec![2], None));
    assert_eq!(plan(&world, &[2]), (vec![], Some(1)), "they run");
    begin(&mut world, 2);
    assert_eq!(plan(&world, &[]), (vec![2], None), "they were begun by another leader");
    record(&mut world, 2, NodeCheckOutcome::Failed);
    assert_eq!(plan(&world, &[2]), (vec![], Some(5)), "as long as the leader takes them for running");
    world.advance_time(Duration::from_secs(5));
    assert_eq!(plan(&world, &[2]), (vec![], Some(1)));
    assert_eq!(plan(&world, &[]), (vec![2], None));
    check(&mut world, 2, NodeCheckOutcome::Failed);
    for delay in [10, 20, 40, 80, 160, 300, 300] {
        assert_eq!(plan(&world, &[]), (vec![], Some(delay)));
        world.advance_time(Duration::from_secs(delay));
        assert_eq!(plan(&world, &[]), (vec![2], None));
        check(&mut world, 2, NodeCheckOutcome::Failed);
    }
    world.set_down(2);
    world.advance_time(Duration::from_secs(1000));
    assert_eq!(plan(&world, &[]), (vec![], None));
    world.connect(2);
    assert_eq!(plan(&world, &[]), (vec![2], None));
    check(&mut world, 2, NodeCheckOutcome::Passed);
    assert_eq!(plan(&world, &[]), (vec![], None));
}

#[test]
fn at_most_sixteen_nodes_are_checked_at_once() {
    let mut world = TestCluster::new();
    turn(&mut world, true);
    (1..=20).for_each(|number| world.node(number, resources(4000, 1024)));
    let (first, _) = plan(&world, &[]);
    assert_eq!(first.len(), 16);
    assert_eq!(plan(&world, &first), (vec![], Some(1)));
    assert_eq!(plan(&world, &first[1..]).0.len(), 1);
}

#[test]
fn worker_that_fails_for_good_is_removed() {
    let mut world = with_new_node();
    check(&mut world, 2, NodeCheckOutcome::Failed);
    assert_eq!(removed(&world), []);
    set(&mut world, VerificationChange { remove_after: Some(2), ..Default::default() });
    assert_eq!(removed(&world), []);
    check(&mut world, 2, NodeCheckOutcome::Failed);
    let command = Command::RemoveNode { id: node_id(2), force: false, at: world.now };
    assert_eq!(removed(&world), std::slice::from_ref(&command));
    let is_begun = |world: &TestCluster| {
        reconcile_verification(&world.state, &BTreeSet::new(), world.now + Duration::from_secs(9999)).begin
    };
    assert_eq!(is_begun(&world), []);
    world.accept(command);
    assert_eq!(removed(&world), []);
}

#[test]
fn user_asks_for_checks_of_a_verified_node() {
    let mut world = with_new_node();
    let ask = |world: &TestCluster, nodes: &[u128]| Command::RequestVerification {
        nodes: nodes.iter().map(|number| node_id(*number)).collect(),
        at: world.now,
    };
    let command = ask(&world, &[1]);
    world.accept(command.clone());
    let asked = verification(&world, 1);
    assert_eq!((asked.state, asked.requested > asked.answered), (VerificationState::Pending, true));
    assert!(!is_held_back(&world, 1), "it keeps its tasks and gets new ones");
    assert_eq!(plan(&world, &[2]).0, [1]);
    begin(&mut world, 1);
    let answered = asked.requested;
    // A second request comes while the checks run: they run again.
    assert!(matches!(world.apply(&command), ApplyOutcome::Unchanged { .. }), "it is the same request");
    world.advance_time(Duration::from_secs(1));
    let command = ask(&world, &[1]);
    world.accept(command);
    let (node, results, at) = (node_id(1), vec![result(NodeCheckOutcome::Failed)], world.now);
    let recorded = Command::RecordVerification { term: TERM, node, answered, results, at };
    world.accept(recorded.clone());
    let again = verification(&world, 1);
    assert_eq!((again.state, again.answered), (VerificationState::Pending, answered));
    assert!(is_held_back(&world, 1));
    assert!(matches!(world.apply(&recorded), ApplyOutcome::Unchanged { .. }), "no checks are in progress");
    check(&mut world, 1, NodeCheckOutcome::Passed);
    let done = verification(&world, 1);
    assert_eq!((done.state, done.answered), (VerificationState::Verified, done.requested));
    assert!(!is_held_back(&world, 1));
    let missing = ask(&world, &[7]);
    assert!(world.refuse(missing).contains("does not exist"));
    turn(&mut world, false);
    let command = ask(&world, &[1]);
    assert!(world.refuse(command).contains("the cluster verifies no nodes; turn it on"));
}

#[test]
fn nothing_is_left_when_verification_is_turned_off() {
    let mut world = with_new_node();
    check(&mut world, 2, NodeCheckOutcome::Failed);
    turn(&mut world, false);
    for number in [1, 2] {
        let node = world.state.node(&node_id(number)).unwrap();
        assert_eq!((&node.verification, node.taints.len(), node.labels.len()), (&None, 0, 0));
    }
    assert_eq!(plan(&world, &[]), (vec![], None));
    let late = Command::RecordVerification {
        term: TERM,
        node: node_id(2),
        answered: 0,
        results: vec![result(NodeCheckOutcome::Failed)],
        at: world.now,
    };
    assert!(matches!(world.apply(&late), ApplyOutcome::Unchanged { .. }));
    turn(&mut world, true);
    assert!(!is_held_back(&world, 2), "the nodes that the cluster has count as verified");
}

#[test]
fn taint_of_managers_does_not_count_against_those_of_users() {
    let mut world = with_new_node();
    let many: BTreeSet<Taint> = (0..64).map(|n| format!("k{n}:NoSchedule").parse().unwrap()).collect();
    world.accept(Command::UpdateNode {
        id: node_id(2),
        version: None,
        label_add: Default::default(),
        label_rm: Default::default(),
        availability: None,
        taint_add: many,
        taint_rm: Default::default(),
        at: world.now,
    });
    assert!(is_held_back(&world, 2));
}

#[test]
fn peers_are_verified_ready_nodes_in_the_order_of_their_numbers() {
    let mut world = TestCluster::with_nodes(20);
    turn(&mut world, true);
    world.node(21, resources(4000, 1024));
    world.node(22, resources(4000, 1024));
    world.set_down(3);
    let peers = |number: u128| -> Vec<u128> {
        let node = world.state.node(&node_id(number)).unwrap();
        verification_peers(&world.state, node).into_iter().map(|peer| peer.id.0.0).collect()
    };
    assert_eq!(peers(21), (1..=17).filter(|number| *number != 3).collect::<Vec<_>>());
    assert_eq!(peers(19)[..3], [20, 1, 2]);
}

#[test]
fn registry_with_a_credential_is_required() {
    let mut world = TestCluster::with_nodes(1);
    let image = |name: &str, image: &str| {
        let mut spec = spec(name, 1);
        spec.task.image = image.parse().unwrap();
        spec
    };
    world.service(1, image("web", "nginx:1"));
    world.service(2, image("api", "registry.lan:5000/api:1"));
    let mut local = image("local", "never.lan/api:1");
    local.task.pull = PullPolicy::Never;
    world.service(3, local);
    let found = |world: &TestCluster| -> Vec<(String, bool)> {
        used_registries(&world.state).into_iter().map(|used| (used.host, used.is_required)).collect()
    };
    assert_eq!(found(&world), [("docker.io".to_owned(), false), ("registry.lan:5000".to_owned(), false)]);
    world.accept(Command::CreateSecretObject {
        id: secret_object_id(1),
        kind: SecretObjectKind::Credential,
        name: "registry.lan:5000".parse().unwrap(),
        labels: Default::default(),
        data: sealed(1),
        at: world.now,
    });
    set(
        &mut world,
        VerificationChange {
            check_add: vec!["gpu=image:ghcr.io/acme/check:1".parse().unwrap()],
            ..Default::default()
        },
    );
    let expected = [("docker.io", false), ("ghcr.io", false), ("registry.lan:5000", true)];
    assert_eq!(found(&world), expected.map(|(host, required)| (host.to_owned(), required)));
}
