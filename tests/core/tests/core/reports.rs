//! Reports of workers: ordered by (attempt, state), `removed` is final.

use std::time::Duration;

use TaskState::*;
use warren_types::*;

use crate::test_cluster::*;

fn running() -> TestCluster {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.service(1, publishing("web", 1, 8080));
    cluster.reconcile(1);
    cluster.schedule();
    cluster
}

/// Reports these (attempt, state) in order; the task is then at the last.
#[track_caller]
fn check(reports: &[(u32, TaskState)], expected: (u32, TaskState)) {
    let mut cluster = running();
    for (attempt, state) in reports {
        cluster.report(report(task_id(1, 1), *attempt, *state));
    }
    let observed = &cluster.task(1, 1).observed;
    assert_eq!((observed.attempt, observed.state), expected, "{reports:?}");
}

#[test]
fn reports_are_ordered_by_attempt_and_state() {
    check(&[(1, Running)], (1, Running));
    check(&[(0, Accepted), (0, Preparing), (1, Starting), (1, Running)], (1, Running));
    check(&[(1, Running), (1, Starting)], (1, Running));
    check(&[(2, Starting), (1, Running)], (2, Starting));
    check(&[(1, Running), (2, Starting), (2, Running)], (2, Running));
    check(&[(3, Failed), (4, Running)], (3, Failed));
    check(&[(3, Failed), (3, Rejected)], (3, Failed));
    check(&[(1, Complete), (1, Shutdown)], (1, Complete));
}

#[test]
fn only_a_running_task_gets_traffic() {
    let mut cluster = running();
    let say = |state, ready| TaskReport { ready, ..report(task_id(1, 1), 1, state) };
    for (state, text, expected) in
        [(Starting, true, false), (Running, false, false), (Running, true, true), (Running, false, false)]
    {
        cluster.report(say(state, text));
        assert_eq!(cluster.task(1, 1).observed.ready, expected, "{state:?} {text}");
        assert_eq!(cluster.state.task_counts(&service_id(1)).ready, u32::from(expected));
    }
}

#[test]
fn reason_is_cleared_by_next_report() {
    let mut cluster = running();
    let long = "é".repeat(1000);
    for reason in ["pulling demo:1", "", &long] {
        cluster.report(TaskReport { reason: reason.into(), ..report(task_id(1, 1), 1, Starting) });
        let kept = cluster.task(1, 1).observed.reason();
        assert!(reason.starts_with(kept) && kept.len() == reason.len().min(1024));
    }
    cluster.observe(task_id(1, 1), Running);
    assert_eq!(cluster.reason(1, 1), "");
}

#[test]
fn the_last_exit_is_kept() {
    let mut cluster = running();
    let exit = Some(TaskExit { code: 137, out_of_memory: true });
    cluster.report(TaskReport { exit, ..report(task_id(1, 1), 1, Starting) });
    cluster.report(report(task_id(1, 1), 2, Running));
    assert_eq!(cluster.task(1, 1).observed.exit(), exit);
    cluster.report(report(task_id(1, 1), 2, Failed));
    assert_eq!(cluster.reason(1, 1), "failed; it last ran out of memory");
}

#[test]
fn removed_task_frees_resources_for_good() {
    let mut cluster = running();
    let node = cluster.task(1, 1).node.unwrap();
    cluster.observe(task_id(1, 1), Running);
    cluster.scale(1, 0);
    cluster.reconcile(1);
    cluster.observe(task_id(1, 1), Shutdown);
    assert_eq!(cluster.state.node_allocation(&node).tasks, 1, "stopped is not removed");
    let before = cluster.state.assignment(&node).unwrap();
    cluster.report(TaskReport { removed: true, ..report(task_id(1, 1), 1, Shutdown) });
    let after = cluster.state.assignment(&node).unwrap();
    assert_eq!(
        (cluster.state.node_allocation(&node).tasks, before.tasks.len(), after.tasks.len()),
        (0, 1, 0)
    );
    assert!(after.version > before.version);
    cluster.report(report(task_id(1, 1), 7, Running));
    cluster.report(TaskReport { reason: "late".into(), ..report(task_id(1, 1), 1, Shutdown) });
    assert_eq!(cluster.task(1, 1).observed.reason(), "");
    assert_eq!((cluster.task(1, 1).observed.state, cluster.task(1, 1).observed.removed), (Shutdown, true));
}

#[test]
fn vanished_task_is_failed() {
    let mut cluster = running();
    cluster.observe(task_id(1, 1), Running);
    cluster.report(TaskReport { removed: true, ..report(task_id(1, 1), 0, New) });
    assert_eq!(cluster.task(1, 1).observed.state, Failed);
    assert_eq!(cluster.reason(1, 1), "removed from its node");
    assert!(!cluster.task(1, 1).is_live());
}

#[test]
fn removed_report_is_accepted_while_node_is_down() {
    let mut cluster = running();
    let node = cluster.task(1, 1).node.unwrap();
    cluster.observe(task_id(1, 1), Running);
    cluster.set_down(node.0.0);
    cluster.reconcile(1);
    assert!(cluster.task(1, 1).lost_since().is_some());
    cluster.report(TaskReport { removed: true, ..report(task_id(1, 1), 1, Shutdown) });
    assert_eq!((cluster.task(1, 1).lost_since(), cluster.state.node_allocation(&node).tasks), (None, 0));
}

#[test]
fn report_of_other_nodes_task_is_ignored() {
    let mut cluster = running();
    let other = if cluster.task(1, 1).node == Some(node_id(1)) { 2 } else { 1 };
    let reports = vec![report(task_id(1, 1), 1, Running), report(task_id(1, 9), 1, Running)];
    let (node, at) = (node_id(other), cluster.now);
    cluster.accept(warren_core::Command::ReportTasks { node, session: 1, reports, at });
    assert_eq!(cluster.task(1, 1).observed.state, New);
}

#[test]
fn a_wrong_clock_of_a_worker_is_corrected() {
    let mut cluster = running();
    let created = cluster.task(1, 1).created_at;
    cluster.advance_time(Duration::from_secs(10));
    cluster.report(TaskReport { since: Timestamp(5), ..report(task_id(1, 1), 0, Accepted) });
    assert_eq!(cluster.task(1, 1).observed.since, created);
    cluster
        .report(TaskReport { since: created + Duration::from_secs(4), ..report(task_id(1, 1), 1, Running) });
    assert_eq!(cluster.task(1, 1).observed.since, created + Duration::from_secs(4));
    cluster.report(TaskReport { since: Timestamp(u64::MAX), ..report(task_id(1, 1), 1, Failed) });
    assert_eq!(cluster.task(1, 1).observed.since, cluster.now);
}
