//! What workers say: ordered by (attempt, state), `removed` as the last word.

use std::time::Duration;

use TaskState::*;
use warren_types::*;

use crate::world::*;

fn running() -> World {
    let mut world = World::with_nodes(2);
    world.service(1, publishing("web", 1, 8080));
    world.reconcile(1);
    world.schedule();
    world
}

/// Reports these (attempt, state) one after the other; the task is then at the last.
#[track_caller]
fn check(reports: &[(u32, TaskState)], wanted: (u32, TaskState)) {
    let mut world = running();
    for (attempt, state) in reports {
        world.report(report(task_id(1, 1), *attempt, *state));
    }
    let observed = &world.task(1, 1).observed;
    assert_eq!((observed.attempt, observed.state), wanted, "{reports:?}");
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
    let mut world = running();
    let say = |state, ready| TaskReport { ready, ..report(task_id(1, 1), 1, state) };
    for (state, said, wanted) in
        [(Starting, true, false), (Running, false, false), (Running, true, true), (Running, false, false)]
    {
        world.report(say(state, said));
        assert_eq!(world.task(1, 1).observed.ready, wanted, "{state:?} {said}");
        assert_eq!(world.state.counts(&service_id(1)).ready, u32::from(wanted));
    }
}

#[test]
fn a_reason_lasts_as_long_as_it_is_said() {
    let mut world = running();
    let long = "é".repeat(1000);
    for reason in ["pulling demo:1", "", &long] {
        world.report(TaskReport { reason: reason.into(), ..report(task_id(1, 1), 1, Starting) });
        let kept = world.task(1, 1).observed.reason();
        assert!(reason.starts_with(kept) && kept.len() == reason.len().min(1024));
    }
    world.observe(task_id(1, 1), Running);
    assert_eq!(world.reason(1, 1), "");
}

#[test]
fn the_last_exit_is_kept() {
    let mut world = running();
    let exit = Some(Exit { code: 137, out_of_memory: true });
    world.report(TaskReport { exit, ..report(task_id(1, 1), 1, Starting) });
    world.report(report(task_id(1, 1), 2, Running));
    assert_eq!(world.task(1, 1).observed.exit(), exit);
    world.report(report(task_id(1, 1), 2, Failed));
    assert_eq!(world.reason(1, 1), "failed; it last ran out of memory");
}

#[test]
fn what_is_removed_is_free_and_stays_removed() {
    let mut world = running();
    let node = world.task(1, 1).node.unwrap();
    world.observe(task_id(1, 1), Running);
    world.scale(1, 0);
    world.reconcile(1);
    world.observe(task_id(1, 1), Shutdown);
    assert_eq!(world.state.usage(&node).tasks, 1, "stopped is not removed");
    let before = world.state.assignment(&node).unwrap();
    world.report(TaskReport { removed: true, ..report(task_id(1, 1), 1, Shutdown) });
    let after = world.state.assignment(&node).unwrap();
    assert_eq!((world.state.usage(&node).tasks, before.tasks.len(), after.tasks.len()), (0, 1, 0));
    assert!(after.version > before.version);
    world.report(report(task_id(1, 1), 7, Running));
    world.report(TaskReport { reason: "late".into(), ..report(task_id(1, 1), 1, Shutdown) });
    assert_eq!(world.task(1, 1).observed.reason(), "");
    assert_eq!((world.task(1, 1).observed.state, world.task(1, 1).observed.removed), (Shutdown, true));
}

#[test]
fn a_task_that_vanished_has_failed() {
    let mut world = running();
    world.observe(task_id(1, 1), Running);
    world.report(TaskReport { removed: true, ..report(task_id(1, 1), 0, New) });
    assert_eq!(world.task(1, 1).observed.state, Failed);
    assert_eq!(world.reason(1, 1), "nothing of it is left on its node");
    assert!(!world.task(1, 1).is_live());
}

#[test]
fn a_task_can_be_removed_while_its_node_counts_as_down() {
    let mut world = running();
    let node = world.task(1, 1).node.unwrap();
    world.observe(task_id(1, 1), Running);
    world.down(node.0.0);
    world.reconcile(1);
    assert!(world.task(1, 1).lost_since().is_some());
    world.report(TaskReport { removed: true, ..report(task_id(1, 1), 1, Shutdown) });
    assert_eq!((world.task(1, 1).lost_since(), world.state.usage(&node).tasks), (None, 0));
}

#[test]
fn a_worker_speaks_only_of_its_own_tasks() {
    let mut world = running();
    let other = if world.task(1, 1).node == Some(node_id(1)) { 2 } else { 1 };
    let reports = vec![report(task_id(1, 1), 1, Running), report(task_id(1, 9), 1, Running)];
    let (node, at) = (node_id(other), world.now);
    world.accept(warren_core::Command::ReportTasks { node, session: 1, reports, at });
    assert_eq!(world.task(1, 1).observed.state, New);
}

#[test]
fn a_wrong_clock_of_a_worker_is_corrected() {
    let mut world = running();
    let created = world.task(1, 1).created_at;
    world.wait(Duration::from_secs(10));
    world.report(TaskReport { since: Timestamp(5), ..report(task_id(1, 1), 0, Accepted) });
    assert_eq!(world.task(1, 1).observed.since, created);
    world.report(TaskReport { since: created + Duration::from_secs(4), ..report(task_id(1, 1), 1, Running) });
    assert_eq!(world.task(1, 1).observed.since, created + Duration::from_secs(4));
    world.report(TaskReport { since: Timestamp(u64::MAX), ..report(task_id(1, 1), 1, Failed) });
    assert_eq!(world.task(1, 1).observed.since, world.now);
}
