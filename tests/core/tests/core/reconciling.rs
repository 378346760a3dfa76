//! Which tasks exist, and when they are deleted.

use std::time::Duration;

use warren_core::Command;
use warren_core::reconcile::{MAX_ITEMS, MAX_REMOVALS, REMOVAL_PAUSE};
use warren_types::*;

use crate::test_cluster::*;

/// A running service of `replicas` on two nodes.
fn running(replicas: u32) -> TestCluster {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.service(1, spec("web", replicas));
    cluster.settle();
    cluster
}

/// Numbers of the tasks that are being removed from their nodes.
fn leaving(cluster: &TestCluster) -> Vec<u64> {
    let tasks = cluster.state.tasks_of(&service_id(1));
    tasks.filter(|task| task.desired == DesiredTaskState::Remove).map(|task| task.id.number).collect()
}

#[test]
fn each_slot_has_one_task() {
    let mut cluster = running(3);
    assert_eq!(cluster.live(1), [(1, 1), (2, 2), (3, 3)]);
    assert!(cluster.reconcile(1).is_empty(), "nothing to do");
    cluster.scale(1, 5);
    cluster.settle();
    assert_eq!(cluster.live(1), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]);
}

#[test]
fn scaling_down_takes_the_highest_slots() {
    let mut cluster = running(5);
    cluster.scale(1, 2);
    cluster.settle();
    assert_eq!((cluster.live(1), leaving(&cluster)), (vec![(1, 1), (2, 2)], vec![3, 4, 5]));
    cluster.scale(1, 4);
    cluster.settle();
    assert_eq!(
        cluster.live(1),
        [(1, 1), (2, 2), (3, 6), (4, 7)],
        "what was told to leave is not called back"
    );
    cluster.scale(1, 0);
    cluster.settle();
    assert_eq!(cluster.live(1), []);
}

#[test]
fn lost_tasks_are_replaced_then_stopped_on_return() {
    let mut cluster = running(2);
    let lost = cluster.task(1, 1).node.unwrap().0.0;
    cluster.set_down(lost);
    cluster.settle();
    assert_eq!((cluster.live(1), leaving(&cluster)), (vec![(1, 3), (2, 2)], vec![1]));
    assert_ne!(cluster.task(1, 3).node, Some(node_id(lost)));
    assert_eq!(cluster.task(1, 3).not_before(), None, "a lost node is no failure of the slot");
    cluster.settle();
    cluster.reap(1);
    assert!(cluster.state.task(&task_id(1, 1)).is_some(), "it may still run there");
    cluster.connect(lost);
    let sent = cluster.state.assignment(&node_id(lost)).unwrap();
    assert_eq!(
        sent.tasks.iter().map(|task| (task.id.number, task.desired)).collect::<Vec<_>>(),
        [(1, DesiredTaskState::Remove)]
    );
    cluster.clean_up();
    assert_eq!(cluster.state.tasks_on(&node_id(lost)).count(), 0);
}

#[test]
fn replacements_are_pending_while_all_nodes_are_down() {
    let mut cluster = running(2);
    cluster.set_down(1);
    cluster.set_down(2);
    cluster.settle();
    assert_eq!(cluster.live(1), [(1, 3), (2, 4)]);
    assert_eq!(cluster.reason(1, 3), "0 of 2 nodes fit: 2 are down");
    assert!(cluster.reconcile(1).is_empty());
}

#[test]
fn a_task_that_ended_is_replaced_and_cleaned_up() {
    for end in [TaskState::Complete, TaskState::Failed, TaskState::Rejected, TaskState::Shutdown] {
        let mut cluster = running(2);
        cluster.observe(task_id(1, 2), end);
        cluster.settle();
        assert_eq!((cluster.live(1), leaving(&cluster)), (vec![(1, 1), (2, 3)], vec![2]), "{end:?}");
        cluster.clean_up();
        assert!(cluster.reconcile(1).is_empty());
    }
}

#[test]
fn released_task_is_not_removed_again() {
    let mut cluster = running(1);
    cluster.report(TaskReport { removed: true, ..report(task_id(1, 1), 1, TaskState::Failed) });
    let plan = cluster.reconcile(1);
    assert!(matches!(plan.commands[..], [Command::CreateTasks { .. }]), "{plan:?}");
}

#[test]
fn removing_service_is_deleted_with_last_task() {
    let mut cluster = running(3);
    cluster.observe(task_id(1, 2), TaskState::Failed);
    cluster.remove(1);
    cluster.settle();
    assert_eq!((cluster.live(1), leaving(&cluster)), (vec![], vec![1, 2, 3]));
    assert!(cluster.reap(1).is_empty(), "tasks still hold their nodes");
    cluster.clean_up();
    cluster.reap(1);
    assert_eq!((cluster.state.services().count(), cluster.state.tasks().count()), (0, 0));
    assert!(cluster.reconcile(1).is_empty());
    assert!(cluster.reap(1).is_empty());
}

#[test]
fn a_removed_service_waits_for_a_node_that_is_down() {
    let mut cluster = running(2);
    let lost = cluster.task(1, 1).node.unwrap().0.0;
    cluster.set_down(lost);
    cluster.remove(1);
    cluster.settle();
    cluster.clean_up();
    cluster.reap(1);
    let left: Vec<_> = cluster.state.tasks().map(|task| task.id.number).collect();
    assert_eq!(
        (left, cluster.state.services().count()),
        (vec![1], 1),
        "nothing is freed without the worker's word"
    );
    cluster.connect(lost);
    cluster.clean_up();
    cluster.reap(1);
    assert_eq!(cluster.state.services().count(), 0);
}

#[test]
fn tasks_that_never_ran_leave_no_record() {
    let mut cluster = TestCluster::new();
    cluster.service(1, spec("web", 3));
    cluster.reconcile(1);
    cluster.scale(1, 1);
    cluster.reconcile(1);
    cluster.reap(1);
    assert_eq!(cluster.state.tasks().count(), 1);
}

#[test]
fn bounded_plan_continues() {
    let mut cluster = TestCluster::with_nodes(6);
    let expected = u32::try_from(MAX_ITEMS).unwrap() + 500;
    cluster.service(1, spec("web", expected));
    let first = cluster.reconcile(1);
    assert_eq!((cluster.live(1).len(), first.recheck_after), (MAX_ITEMS, Some(Duration::ZERO)));
    let second = cluster.reconcile(1);
    assert_eq!((cluster.live(1).len(), second.recheck_after), (expected as usize, None));
    cluster.remove(1);
    let removals = u32::try_from(MAX_REMOVALS).unwrap();
    for removed in 1..=expected.div_ceil(removals) {
        let left = expected.saturating_sub(removed * removals);
        let pause = cluster.reconcile(1).pause;
        assert_eq!(cluster.live(1).last().map_or(0, |(slot, ..)| *slot), left, "the highest slots first");
        assert_eq!(pause, (left > 0).then_some(REMOVAL_PAUSE));
    }
    assert_eq!(cluster.reap(1).recheck_after, Some(Duration::ZERO));
    cluster.reap(1);
    assert_eq!(cluster.state.services().count(), 0);
}

#[test]
fn plans_carry_the_term_of_the_state() {
    let mut cluster = TestCluster::new();
    cluster.service(1, spec("web", 1));
    let plan = warren_core::reconcile_service(&cluster.state, &service_id(1), cluster.now);
    assert!(plan.commands.iter().all(|command| command.planner_term() == Some(TERM)));
    // A new leader's own first entry has no command.
    let index = cluster.state.applied().index + 1;
    cluster.state.advance_to(warren_core::AppliedIndex { term: TERM + 1, index });
    let plan = warren_core::reconcile_service(&cluster.state, &service_id(1), cluster.now);
    assert!(matches!(plan.commands[..], [Command::CreateTasks { term, .. }] if term == TERM + 1));
}
