//! Which records of ended tasks are kept, and whose logs nodes retain.

use std::time::Duration;

use warren_core::Command;
use warren_types::*;

use crate::test_cluster::*;

/// A service with two tasks on two nodes that run.
fn running() -> TestCluster {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.service(1, spec("web", 2));
    cluster.settle();
    cluster
}

/// The newest task of the slot ends, is removed from its node, and is replaced.
fn fail(cluster: &mut TestCluster, slot: u32) {
    let newest = cluster.live(1).into_iter().find(|(number, _)| *number == slot).unwrap().1;
    cluster.observe(task_id(1, newest), TaskState::Failed);
    cluster.advance_time(Duration::from_secs(3600));
    cluster.settle();
    cluster.clean_up();
}

/// Slot and number of the service's tasks.
fn records(cluster: &TestCluster) -> Vec<(u32, u64)> {
    cluster.state.tasks_of(&service_id(1)).map(|task| (task.slot, task.id.number)).collect()
}

/// Slot and number of the tasks whose logs the nodes retain.
fn retained(cluster: &TestCluster) -> Vec<(u32, u64)> {
    let logs = [1, 2].map(|node| cluster.state.assignment(&node_id(node)).unwrap().retained);
    let mut logs: Vec<_> = logs.into_iter().flatten().map(|log| (log.slot, log.task.number)).collect();
    logs.sort_unstable();
    logs
}

#[test]
fn newest_ended_tasks_are_kept_per_slot() {
    let mut cluster = running();
    for _ in 3..11 {
        fail(&mut cluster, 2);
    }
    cluster.reap(1);
    assert_eq!(records(&cluster), [(1, 1), (2, 5), (2, 6), (2, 7), (2, 8), (2, 9), (2, 10)]);
    assert_eq!(retained(&cluster), [(2, 5), (2, 6), (2, 7), (2, 8), (2, 9)]);
}

#[test]
fn records_of_removed_slot_are_kept_for_a_week() {
    let mut cluster = running();
    fail(&mut cluster, 2);
    cluster.scale(1, 0);
    cluster.settle();
    cluster.clean_up();
    cluster.reap(1);
    assert_eq!(records(&cluster), [(1, 1), (2, 2), (2, 3)]);
    assert_eq!(retained(&cluster), records(&cluster));
    let left = cluster.reap(1).recheck_after.unwrap();
    assert!(left > LOG_RETENTION - Duration::from_secs(7200), "{left:?}");
    cluster.advance_time(LOG_RETENTION);
    cluster.reap(1);
    assert_eq!((records(&cluster), retained(&cluster)), (vec![], vec![]));
}

#[test]
fn records_of_removed_slots_are_bounded() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.service(1, spec("web", 150));
    cluster.settle();
    cluster.scale(1, 0);
    cluster.settle();
    cluster.clean_up();
    cluster.reap(1);
    let kept = records(&cluster);
    assert_eq!((kept.len(), kept[0]), (100, (51, 51)), "the newest");
}

#[test]
fn tasks_of_removed_slot_do_not_count_for_a_new_one() {
    // Of a job that completed, scaling down and up starts another task.
    let mut cluster = TestCluster::with_nodes(1);
    let mut job = spec("job", 1);
    job.task.restart.condition = RestartCondition::None;
    cluster.service(1, job);
    cluster.settle();
    cluster.observe(task_id(1, 1), TaskState::Complete);
    cluster.reconcile(1);
    assert_eq!(cluster.live(1), []);
    cluster.scale(1, 0);
    cluster.settle();
    cluster.clean_up();
    cluster.reap(1);
    cluster.scale(1, 1);
    cluster.settle();
    assert_eq!((cluster.live(1), records(&cluster)), (vec![(1, 2)], vec![(1, 1), (1, 2)]));

    // The back-off starts anew.
    let mut cluster = TestCluster::with_nodes(1);
    cluster.service(1, spec("web", 1));
    cluster.settle();
    cluster.observe(task_id(1, 1), TaskState::Failed);
    cluster.settle();
    assert!(cluster.task(1, 2).not_before().is_some());
    for replicas in [0, 1] {
        cluster.scale(1, replicas);
        cluster.settle();
        cluster.clean_up();
        cluster.reap(1);
    }
    assert_eq!(cluster.live(1), [(1, 3)]);
    assert_eq!(cluster.task(1, 3).not_before(), None);
    assert_eq!(records(&cluster), [(1, 1), (1, 3)]);
}

#[test]
fn logs_are_released_with_service() {
    let mut cluster = running();
    fail(&mut cluster, 2);
    assert_eq!(retained(&cluster), [(2, 2)]);
    let node = cluster.task(1, 2).node.unwrap();
    let before = cluster.state.assignment_version(&node);
    cluster.remove(1);
    assert_eq!(retained(&cluster), []);
    assert!(cluster.state.assignment_version(&node) > before);
    cluster.settle();
    cluster.clean_up();
    cluster.reap(1);
    assert_eq!(cluster.state.tasks().count(), 0);
}

#[test]
fn deleted_record_releases_its_log() {
    let mut cluster = running();
    for _ in 0..6 {
        fail(&mut cluster, 2);
    }
    let oldest = cluster.task(1, 2).node.unwrap();
    let before = cluster.state.assignment_version(&oldest);
    cluster.reap(1);
    assert!(cluster.state.task(&task_id(1, 2)).is_none());
    assert!(cluster.state.assignment_version(&oldest) > before);
}

#[test]
fn task_that_never_started_retains_no_log() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.service(1, spec("web", 1));
    cluster.reconcile(1);
    cluster.schedule();
    cluster.report(TaskReport { removed: true, ..report(task_id(1, 1), 0, TaskState::Rejected) });
    assert_eq!((records(&cluster), retained(&cluster)), (vec![(1, 1)], vec![]));
}

#[test]
fn previous_task_of_slot_is_the_last_that_ran() {
    let mut cluster = running();
    fail(&mut cluster, 2);
    fail(&mut cluster, 2);
    let previous = |number| cluster.state.previous_task(cluster.task(1, number)).map(|task| task.id.number);
    assert_eq!([1, 2, 3, 4].map(previous), [None, None, Some(2), Some(3)]);
}

#[test]
fn smaller_limit_keeps_what_the_back_off_needs() {
    let mut cluster = running();
    let change = ClusterSettingsChange { task_history_limit: Some(1), ..Default::default() };
    cluster.accept(Command::UpdateCluster { version: None, change, at: cluster.now });
    for _ in 0..3 {
        fail(&mut cluster, 2);
    }
    cluster.reap(1);
    assert_eq!(records(&cluster), [(1, 1), (2, 4), (2, 5)], "each failed an hour after the one before");
    let newest = task_id(1, 5);
    cluster.observe(newest, TaskState::Failed);
    cluster.settle();
    cluster.clean_up();
    let again = cluster.reap(1).recheck_after;
    assert_eq!(records(&cluster), [(1, 1), (2, 5), (2, 6)]);
    assert_eq!(again, None);
    cluster.advance_time(Duration::from_secs(10));
    cluster.settle();
    cluster.observe(task_id(1, 6), TaskState::Failed);
    cluster.settle();
    cluster.clean_up();
    let again = cluster.reap(1).recheck_after.unwrap();
    assert_eq!(records(&cluster), [(1, 1), (2, 5), (2, 6), (2, 7)]);
    cluster.advance_time(again);
    cluster.reap(1);
    assert_eq!(records(&cluster), [(1, 1), (2, 6), (2, 7)]);
}
