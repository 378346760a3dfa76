//! Drain, pause and constraints that change: tasks move, the replacement first.

use warren_types::*;

use crate::test_cluster::*;

fn on(cluster: &TestCluster, node: u128) -> usize {
    cluster.state.tasks_on(&node_id(node)).filter(|task| task.is_live()).count()
}

#[track_caller]
fn settle_fully(cluster: &mut TestCluster) {
    for _ in 0..5 {
        cluster.settle();
        for slot in 1..=6 {
            let mut tasks = cluster.state.live_tasks(&service_id(1), slot);
            assert!(tasks.any(|task| task.observed.ready), "slot {slot} stands still");
        }
        cluster.clean_up();
    }
    assert!(cluster.reconcile(1).is_empty());
}

#[test]
fn drain_starts_replacements_first() {
    let mut cluster = TestCluster::with_nodes(3);
    cluster.service(1, spec("web", 6));
    cluster.settle();
    cluster.availability(1, Availability::Drain);
    let plan = cluster.reconcile(1);
    assert_eq!(cluster.live(1).len(), 8, "both of its slots at once: {plan:?}");
    settle_fully(&mut cluster);
    assert_eq!((on(&cluster, 1), on(&cluster, 2), on(&cluster, 3)), (0, 3, 3));
    assert_eq!(cluster.state.tasks_on(&node_id(1)).count(), 0);
    assert_eq!(cluster.state.service(&service_id(1)).unwrap().revision.number, 1);
    cluster.availability(1, Availability::Active);
    assert!(cluster.reconcile(1).is_empty(), "nothing moves back by itself");
}

#[test]
fn drain_without_other_node_keeps_tasks() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.service(1, spec("web", 2));
    cluster.settle();
    cluster.availability(1, Availability::Drain);
    cluster.availability(2, Availability::Pause);
    cluster.settle();
    assert_eq!((on(&cluster, 1), on(&cluster, 2)), (1, 1));
    assert_eq!(cluster.reason(1, 3), "0 of 2 nodes fit: 1 is drained, 1 is paused");
    cluster.availability(1, Availability::Active);
    cluster.reconcile(1);
    assert_eq!(cluster.live(1), [(1, 1), (2, 2)], "the replacement is called off");
    cluster.clean_up();
    cluster.reap(1);
    assert!(cluster.reconcile(1).is_empty());
}

#[test]
fn paused_node_keeps_tasks() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.service(1, spec("web", 2));
    cluster.settle();
    cluster.availability(1, Availability::Pause);
    assert!(cluster.reconcile(1).is_empty());
    cluster.scale(1, 6);
    settle_fully(&mut cluster);
    assert_eq!((on(&cluster, 1), on(&cluster, 2)), (1, 5));
}

#[test]
fn task_leaves_node_violating_constraint() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.label(1, "zone", Some("a"));
    cluster.service(1, constrained("web", 6, &["node.labels.zone in (a,b)"]));
    cluster.settle();
    assert_eq!((on(&cluster, 1), on(&cluster, 2)), (6, 0));
    cluster.label(2, "zone", Some("b"));
    assert!(cluster.reconcile(1).is_empty());
    cluster.label(1, "zone", None);
    settle_fully(&mut cluster);
    assert_eq!((on(&cluster, 1), on(&cluster, 2)), (0, 6));
    // A changed placement moves only tasks whose node it does not admit, and makes no new tasks for the
    // others.
    cluster.label(1, "zone", Some("a"));
    cluster.update(1, constrained("web", 6, &["node.labels.zone == b"]));
    let live = cluster.live(1);
    cluster.reconcile(1);
    assert_eq!(cluster.live(1), live);
    assert_eq!(
        warren_core::rollout(&cluster.state, cluster.state.service(&service_id(1)).unwrap(), cluster.now)
            .updated,
        6
    );
    cluster.update(1, constrained("web", 6, &["node.labels.zone == a"]));
    settle_fully(&mut cluster);
    assert_eq!((on(&cluster, 1), on(&cluster, 2)), (6, 0));
}

#[test]
fn failed_replacement_is_retried_with_backoff() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.service(1, spec("web", 1));
    cluster.settle();
    cluster.availability(1, Availability::Drain);
    cluster.settle();
    cluster.settle();
    cluster.observe(task_id(1, 2), TaskState::Failed);
    cluster.reconcile(1);
    assert_eq!(cluster.live(1), [(1, 1), (1, 3)]);
    assert!(cluster.task(1, 3).not_before().is_some(), "not at once");
    assert_eq!(cluster.task(1, 1).desired, DesiredTaskState::Running, "the old one goes on");
}

#[test]
fn drained_twice_moves_twice() {
    let mut cluster = TestCluster::with_nodes(3);
    cluster.service(1, spec("web", 1));
    cluster.settle();
    cluster.availability(1, Availability::Drain);
    cluster.settle();
    let second = cluster.task(1, 2).node.unwrap();
    // The target node is drained before it runs there.
    cluster.availability(second.0.0, Availability::Drain);
    for _ in 0..5 {
        cluster.settle();
        cluster.clean_up();
    }
    assert_eq!(cluster.live(1).len(), 1);
    assert_eq!((on(&cluster, 1), on(&cluster, second.0.0)), (0, 0));
}

#[test]
fn pending_task_uses_current_placement() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.service(1, constrained("web", 1, &["node.labels.zone == a"]));
    cluster.settle();
    assert_eq!(cluster.task(1, 1).node, None);
    cluster.update(1, spec("web", 1));
    cluster.settle();
    assert_eq!(cluster.task(1, 1).node, Some(node_id(1)), "its own revision once said otherwise");
}
