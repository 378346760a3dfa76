//! Taints of nodes, and services that tolerate them.

use std::collections::BTreeSet;

use warren_core::{ApplyOutcome, Command};
use warren_types::*;

use crate::test_cluster::*;

fn taints(texts: &[&str]) -> BTreeSet<Taint> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn update(add: &[&str], rm: &[&str]) -> Command {
    Command::UpdateNode {
        id: node_id(1),
        version: None,
        label_add: Default::default(),
        label_rm: Default::default(),
        availability: None,
        taint_add: taints(add),
        taint_rm: rm.iter().map(|text| text.parse().unwrap()).collect(),
        at: Timestamp(0),
    }
}

/// Numbers of the service's live tasks on each of the nodes.
fn spread<const N: usize>(cluster: &TestCluster, nodes: [u128; N]) -> [usize; N] {
    nodes.map(|node| cluster.state.tasks_on(&node_id(node)).filter(|task| task.is_live()).count())
}

fn settle_fully(cluster: &mut TestCluster) {
    for _ in 0..12 {
        cluster.settle();
        cluster.clean_up();
    }
}

#[test]
fn update_replaces_and_removes_taints() {
    let mut world = TestCluster::with_nodes(1);
    let check = |world: &TestCluster, expected: &[&str]| {
        assert_eq!(world.state.node(&node_id(1)).unwrap().taints, taints(expected));
    };
    world.accept(update(&["a=1:NoSchedule", "a=1:NoExecute", "b:NoSchedule"], &[]));
    let again = world.apply(&update(&["b:NoSchedule"], &["c"]));
    assert!(matches!(again, ApplyOutcome::Unchanged { .. }), "{again:?}");
    world.accept(update(&["a=2:NoSchedule"], &[]));
    check(&world, &["a=2:NoSchedule", "a=1:NoExecute", "b:NoSchedule"]);
    world.accept(update(&["b:PreferNoSchedule"], &["a:NoExecute", "a=1", "b"]));
    check(&world, &["a=2:NoSchedule", "b:PreferNoSchedule"]);
    world.accept(update(&[], &["*"]));
    check(&world, &[]);
    assert_eq!(world.refuse(update(&["a=1:NoSchedule", "a=2:NoSchedule"], &[])), "taints[1]: is given twice");
    let many: Vec<String> = (0..65).map(|number| format!("k{number}:NoSchedule")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    world.accept(update(&many[..64], &[]));
    assert_eq!(world.refuse(update(&many[64..], &[])), "taints: 65 are more than 64");
}

#[test]
fn registration_sets_taints_of_new_node_only() {
    let mut world = TestCluster::new();
    let register = |given: &[&str], cpu| Command::RegisterNode {
        id: node_id(1),
        name: "n1".parse().unwrap(),
        role: NodeRole::Worker,
        description: description(resources(cpu, 512)),
        taints: taints(given),
        at: Timestamp(0),
    };
    let wrong = register(&["a=1:NoSchedule", "a=2:NoSchedule"], 1000);
    assert_eq!(world.refuse(wrong), "taints[1]: is given twice");
    world.accept(register(&["a:NoSchedule"], 1000));
    world.accept(register(&["b:NoSchedule"], 2000));
    assert_eq!(world.state.node(&node_id(1)).unwrap().taints, taints(&["a:NoSchedule"]));
    world.accept(update(&[], &["a"]));
    world.accept(register(&["a:NoSchedule"], 1000));
    assert_eq!(world.state.node(&node_id(1)).unwrap().taints, taints(&[]));
}

#[test]
fn untolerated_taints_are_a_reason() {
    let check = |tolerations: &[&str], expected: &str| {
        let mut world = TestCluster::with_nodes(5);
        world.taint(1, &["gpu=a:NoSchedule"], &[]);
        world.taint(2, &["gpu=a:NoSchedule", "gpu=a:NoExecute"], &[]);
        world.taint(3, &["disk:NoExecute", "old:PreferNoSchedule"], &[]);
        world.taint(4, &["x:NoSchedule", "y:NoSchedule", "z:NoSchedule", "gpu=a:NoSchedule"], &[]);
        world.availability(5, Availability::Drain);
        world.service(1, tolerating(spec("web", 1), tolerations));
        world.settle();
        assert_eq!(world.reason(1, 1), expected);
    };
    let untolerated = |nodes: u32, taints: &str| {
        let verb = if nodes == 1 { "has" } else { "have" };
        format!(
            "0 of 5 nodes fit: {nodes} {verb} a taint that the service does not tolerate: {taints}, 1 is drained"
        )
    };
    let all = "gpu=a:NoSchedule and disk:NoExecute and gpu=a:NoExecute and 3 more";
    check(&[], &untolerated(4, all));
    check(&["gpu=b"], &untolerated(4, all));
    check(&["gpu:PreferNoSchedule", "disk:NoSchedule", "x:NoExecute"], &untolerated(4, all));
    check(&["z", "disk"], "");
    check(&["disk=", "gpu=c"], "");
    check(&["*"], "");
}

#[test]
fn no_schedule_keeps_running_tasks_and_avoids_new_ones() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.service(1, spec("web", 4));
    cluster.settle();
    assert_eq!(spread(&cluster, [1, 2]), [2, 2]);
    cluster.taint(1, &["gpu:NoSchedule"], &[]);
    assert!(cluster.reconcile(1).is_empty());
    cluster.scale(1, 8);
    settle_fully(&mut cluster);
    assert_eq!(spread(&cluster, [1, 2]), [2, 6]);
    cluster.update(1, tolerating(spec("web", 12), &["gpu"]));
    settle_fully(&mut cluster);
    assert_eq!(spread(&cluster, [1, 2]), [6, 6]);
}

/// A plan that was made before the taint was set.
#[test]
fn assignment_to_tainted_node_is_skipped() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.service(1, spec("web", 1));
    cluster.reconcile(1);
    cluster.taint(1, &["gpu:NoSchedule"], &[]);
    let assign =
        Command::AssignTasks { term: TERM, placements: vec![(task_id(1, 1), node_id(1))], at: cluster.now };
    cluster.accept(assign.clone());
    assert_eq!(cluster.task(1, 1).node, None);
    cluster.taint(1, &["gpu:PreferNoSchedule"], &["gpu"]);
    cluster.accept(assign);
    assert_eq!(cluster.task(1, 1).node, Some(node_id(1)));
}

#[test]
fn prefer_no_schedule_is_used_last() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.taint(1, &["old:PreferNoSchedule"], &[]);
    cluster.service(1, reserving("web", 10, resources(500, 0)));
    cluster.settle();
    assert_eq!(spread(&cluster, [1, 2]), [2, 8]);
    cluster.service(2, tolerating(reserving("api", 2, resources(100, 0)), &["old=:PreferNoSchedule"]));
    cluster.reconcile(2);
    cluster.settle();
    assert_eq!(spread(&cluster, [1, 2]), [4, 8]);
}

#[test]
fn no_execute_moves_tasks_that_do_not_tolerate_it() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.service(1, spec("web", 4));
    cluster.settle();
    cluster.taint(1, &["bad:NoExecute"], &[]);
    let before = cluster.live(1);
    cluster.reconcile(1);
    let live = cluster.live(1);
    assert!(before.iter().all(|task| live.contains(task)), "the replacement starts first: {live:?}");
    settle_fully(&mut cluster);
    assert_eq!(spread(&cluster, [1, 2]), [0, 4]);
    assert!(cluster.reconcile(1).is_empty());
    cluster.taint(2, &["bad=1:NoExecute"], &[]);
    cluster.update(1, tolerating(spec("web", 4), &["bad=:NoExecute"]));
    settle_fully(&mut cluster);
    assert_eq!(spread(&cluster, [1, 2]), [4, 0]);
}

#[test]
fn global_service_follows_taints() {
    let global = ServiceSpec { mode: ServiceMode::Global, ..spec("agent", 1) };
    let mut cluster = TestCluster::with_nodes(3);
    cluster.taint(1, &["gpu:NoSchedule"], &[]);
    cluster.service(1, global.clone());
    settle_fully(&mut cluster);
    assert_eq!(spread(&cluster, [1, 2, 3]), [0, 1, 1]);
    let desired =
        |cluster: &TestCluster| cluster.state.desired_tasks(cluster.state.service(&service_id(1)).unwrap());
    assert_eq!(desired(&cluster), 2);
    cluster.taint(2, &["gpu:NoSchedule"], &[]);
    cluster.taint(3, &["gpu:NoExecute"], &[]);
    settle_fully(&mut cluster);
    assert_eq!((spread(&cluster, [1, 2, 3]), desired(&cluster)), ([0, 1, 0], 1));
    cluster.update(1, tolerating(global, &["gpu:NoExecute"]));
    settle_fully(&mut cluster);
    assert_eq!(spread(&cluster, [1, 2, 3]), [0, 1, 1]);
    cluster.taint(1, &[], &["gpu"]);
    settle_fully(&mut cluster);
    assert_eq!(spread(&cluster, [1, 2, 3]), [1, 1, 1]);
}
