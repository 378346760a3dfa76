//! Completed tasks are not replaced.

use warren_types::*;

use crate::test_cluster::*;

/// A service of `replicas` with this restart condition.
fn ending(replicas: u32, condition: RestartCondition) -> TestCluster {
    let mut cluster = TestCluster::with_nodes(2);
    let mut expected = spec("job", replicas);
    expected.task.restart.condition = condition;
    expected.task.reservations = resources(0, 600);
    cluster.service(1, expected);
    cluster.settle();
    cluster
}

/// Whether a task with this end is replaced.
#[track_caller]
fn check(condition: RestartCondition, end: TaskState, replaced: bool) {
    let mut cluster = ending(2, condition);
    cluster.observe(task_id(1, 1), end);
    cluster.settle();
    let live = if replaced { vec![(1, 3), (2, 2)] } else { vec![(2, 2)] };
    assert_eq!(cluster.live(1), live, "{condition:?} {end:?}");
}

#[test]
fn final_end_is_not_replaced() {
    use RestartCondition as On;
    use TaskState as End;
    check(On::None, End::Complete, false);
    check(On::None, End::Failed, false);
    check(On::None, End::Rejected, true);
    check(On::OnFailure, End::Complete, false);
    check(On::OnFailure, End::Failed, true);
    check(On::Any, End::Complete, true);
    check(On::Any, End::Failed, true);
}

#[test]
fn completed_task_keeps_output_and_frees_memory() {
    let mut cluster = ending(2, RestartCondition::None);
    let node = cluster.task(1, 1).node.unwrap();
    assert_eq!(cluster.state.node_allocation(&node).reserved, resources(0, 600));
    cluster.observe(task_id(1, 1), TaskState::Complete);
    assert!(cluster.reconcile(1).is_empty());
    assert_eq!(cluster.state.tasks_on(&node).count(), 1);
    assert_eq!(cluster.state.node_allocation(&node).reserved, resources(0, 0));
    cluster.reap(1);
    assert!(cluster.state.task(&task_id(1, 1)).is_some());
    cluster.scale(1, 0);
    cluster.reconcile(1);
    assert_eq!(cluster.task(1, 1).desired, DesiredTaskState::Remove, "the slot is gone");
}

#[test]
fn a_drained_node_keeps_nothing() {
    let mut cluster = ending(2, RestartCondition::None);
    cluster.observe(task_id(1, 1), TaskState::Complete);
    let node = cluster.task(1, 1).node.unwrap();
    cluster.availability(node.0.0, Availability::Drain);
    cluster.reconcile(1);
    assert_eq!((cluster.task(1, 1).desired, cluster.live(1)), (DesiredTaskState::Remove, vec![(2, 2)]));
}

#[test]
fn completed_task_of_lost_node_is_replaced() {
    let mut cluster = ending(1, RestartCondition::None);
    cluster.set_down(cluster.task(1, 1).node.unwrap().0.0);
    cluster.settle();
    assert_eq!(cluster.live(1), [(1, 2)]);
}

#[test]
fn new_revision_runs_completed_task_once() {
    let mut cluster = ending(1, RestartCondition::None);
    cluster.observe(task_id(1, 1), TaskState::Complete);
    cluster.update_image(1, "demo:2");
    cluster.settle();
    assert_eq!((cluster.live(1), cluster.task(1, 1).desired), (vec![(1, 2)], DesiredTaskState::Remove));
    cluster.observe(task_id(1, 2), TaskState::Complete);
    cluster.reconcile(1);
    assert_eq!(cluster.live(1), []);
}

#[test]
fn replacement_completed_early_is_final() {
    let mut cluster = ending(1, RestartCondition::OnFailure);
    cluster.availability(cluster.task(1, 1).node.unwrap().0.0, Availability::Drain);
    cluster.settle();
    cluster.reconcile(1);
    assert_eq!(cluster.task(1, 2).desired, DesiredTaskState::Running);
    cluster.observe(task_id(1, 2), TaskState::Complete);
    cluster.reconcile(1);
    assert_eq!((cluster.live(1), cluster.task(1, 1).desired), (vec![], DesiredTaskState::Remove));
}

#[test]
fn replacement_is_dropped_when_predecessor_completes() {
    let mut cluster = ending(1, RestartCondition::None);
    cluster.availability(cluster.task(1, 1).node.unwrap().0.0, Availability::Drain);
    cluster.settle();
    cluster.observe(task_id(1, 1), TaskState::Complete);
    cluster.reconcile(1);
    assert_eq!((cluster.live(1), cluster.task(1, 2).desired), (vec![], DesiredTaskState::Remove));
}
