//! Updates: slot by slot, start-first, and paused by a failure.

use std::time::Duration;

use warren_core::{Command, Rollout, RolloutState, rollout};
use warren_types::*;

use crate::test_cluster::*;

/// A running service of `replicas` on `nodes`, updated to another image.
fn updating(nodes: u128, replicas: u32) -> TestCluster {
    let mut cluster = TestCluster::with_nodes(nodes);
    cluster.service(1, pausing(spec("web", replicas)));
    cluster.settle();
    cluster.update_image(1, "demo:2");
    cluster
}

fn progress(cluster: &TestCluster) -> Rollout {
    rollout(&cluster.state, cluster.state.service(&service_id(1)).unwrap(), cluster.now)
}

/// Slots without a running task, and slots with two live tasks.
fn slots(cluster: &TestCluster) -> (Vec<u32>, Vec<u32>) {
    let live: Vec<_> = cluster.state.tasks().filter(|task| task.is_live()).collect();
    let replicas = cluster.state.service(&service_id(1)).unwrap().spec.replicas().unwrap();
    let runs = |slot: u32| live.iter().any(|task| task.slot == slot && task.observed.ready);
    let two = |slot: &u32| live.iter().filter(|task| task.slot == *slot).count() == 2;
    ((1..=replicas).filter(|slot| !runs(*slot)).collect(), (1..=replicas).filter(two).collect())
}

/// Runs all workers and planners until the update stops or is done, at most one slot at a time and none
/// without a running task.
#[track_caller]
fn go_on(cluster: &mut TestCluster) {
    for _ in 0..100 {
        let before = cluster.state.digest().value;
        cluster.settle();
        cluster.clean_up();
        let (idle, moving) = slots(cluster);
        assert_eq!(idle, [0u32; 0], "slots without a running task");
        assert!(moving.len() <= 1, "slots {moving:?} at a time");
        cluster.reap(1);
        if cluster.state.digest().value == before {
            return;
        }
    }
    panic!("it never ends: {:?}", progress(cluster));
}

fn revisions(cluster: &TestCluster) -> Vec<u64> {
    let live = cluster.live(1).into_iter();
    live.map(|(_, number)| cluster.task(1, number).revision.number).collect()
}

#[test]
fn update_starts_replacement_first_slot_by_slot() {
    let mut cluster = updating(2, 3);
    let plan = cluster.reconcile(1);
    assert_eq!(plan.commands.len(), 1, "{plan:?}");
    assert_eq!(cluster.live(1), [(1, 1), (1, 4), (2, 2), (3, 3)]);
    let new = cluster.task(1, 4);
    assert_eq!((new.desired, new.revision.number), (DesiredTaskState::Ready, 2));
    cluster.schedule();
    assert!(cluster.reconcile(1).is_empty(), "it is not prepared yet");
    cluster.report(report(task_id(1, 4), 0, TaskState::Ready));
    cluster.reconcile(1);
    assert_eq!(
        (cluster.task(1, 4).desired, cluster.task(1, 1).desired),
        (DesiredTaskState::Running, DesiredTaskState::Running)
    );
    cluster.observe(task_id(1, 4), TaskState::Starting);
    assert!(cluster.reconcile(1).is_empty(), "it does not run yet");
    let waits = progress(&cluster).waiting_reason.unwrap();
    assert_eq!(waits, "the new task of web.1: starting on node node-2");
    cluster.observe(task_id(1, 4), TaskState::Running);
    let waits = progress(&cluster).waiting_reason.unwrap();
    assert_eq!(waits, "web.1 is running, settling for 3s more");
    let plan = cluster.reconcile(1);
    assert!(plan.is_empty() && plan.recheck_after == Some(SETTLED), "it may end at once: {plan:?}");
    cluster.advance_time(SETTLED);
    cluster.reconcile(1);
    assert_eq!(cluster.task(1, 1).desired, DesiredTaskState::Remove);
    assert_eq!(cluster.live(1), [(1, 4), (2, 2), (2, 5), (3, 3)], "the next slot begins");
    assert_eq!((progress(&cluster).updated, progress(&cluster).total), (1, 3));
    go_on(&mut cluster);
    assert_eq!(revisions(&cluster), [2, 2, 2]);
    let done = Rollout { updated: 3, total: 3, state: RolloutState::Completed, ..Rollout::default() };
    assert_eq!(progress(&cluster), done);
}

#[test]
fn update_keeps_spread() {
    let mut cluster = updating(3, 6);
    go_on(&mut cluster);
    for node in 1..=3 {
        assert_eq!(cluster.state.tasks_on(&node_id(node)).count(), 2, "node {node}");
    }
    assert_eq!(revisions(&cluster), [2; 6]);
}

#[test]
fn failed_task_stops_update() {
    for (end, what) in [(TaskState::Failed, "failed"), (TaskState::Rejected, "was rejected")] {
        let mut cluster = updating(2, 3);
        cluster.settle();
        let exit = Some(TaskExit { code: 1, out_of_memory: false });
        let reason = "exited with code 1".to_string();
        cluster.report(TaskReport { exit, reason, ..report(task_id(1, 4), 1, end) });
        cluster.settle();
        cluster.clean_up();
        cluster.advance_time(Duration::from_secs(3600));
        assert!(cluster.reconcile(1).is_empty());
        assert_eq!(cluster.live(1), [(1, 1), (2, 2), (3, 3)]);
        let Rollout { updated, total, state, stop_reason, waiting_reason, .. } = progress(&cluster);
        assert_eq!((updated, total, state, waiting_reason), (0, 3, RolloutState::Paused, None));
        let expected = format!(
            "web.1 {what}: exited with code 1; the update is paused, as --update-on-failure says; now running: \
             revision 1 (3 tasks); fix it with `warren service update web`, continue with `warren service update \
             web --resume`, or go back with `warren service rollback web`"
        );
        assert_eq!(stop_reason, Some(expected));
        // The next revision continues.
        cluster.update_image(1, "demo:3");
        assert_eq!(progress(&cluster).stop_reason, None);
        go_on(&mut cluster);
        assert_eq!(revisions(&cluster), [3, 3, 3]);
    }
}

#[test]
fn stopped_update_refills_updated_slot() {
    let mut cluster = updating(2, 3);
    for _ in 0..3 {
        cluster.settle();
    }
    cluster.clean_up();
    assert_eq!(revisions(&cluster), [2, 1, 2, 1]);
    cluster.observe(task_id(1, 4), TaskState::Failed);
    cluster.reconcile(1);
    cluster.clean_up();
    assert_eq!(cluster.live(1), [(1, 6), (2, 2), (3, 3)], "the replacement of slot 2 is called off");
    cluster.advance_time(Duration::from_secs(60));
    cluster.settle();
    cluster.settle();
    assert_eq!((cluster.live(1).len(), cluster.task(1, 6).observed.ready), (3, true));
    assert!(progress(&cluster).stop_reason.is_some(), "until somebody looks at it");
}

#[test]
fn rollback_replaces_only_updated_slots() {
    let mut cluster = updating(2, 3);
    for _ in 0..4 {
        cluster.settle();
    }
    cluster.clean_up();
    assert!(revisions(&cluster).contains(&2));
    cluster.rollback(1, None);
    assert_eq!(cluster.state.service(&service_id(1)).unwrap().revision.number, 3);
    go_on(&mut cluster);
    let numbers = revisions(&cluster);
    assert!(numbers.iter().all(|number| *number != 2) && numbers.contains(&1), "{numbers:?}");
    assert_eq!(progress(&cluster).updated, 3);
}

#[test]
fn forced_update_replaces_every_task() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.service(1, spec("web", 2));
    cluster.settle();
    let (id, at) = (service_id(1), cluster.now);
    let version = Some(cluster.version(1));
    cluster.accept(Command::UpdateService { id, version, spec: spec("web", 2), force: true, at });
    go_on(&mut cluster);
    assert_eq!((revisions(&cluster), progress(&cluster).updated), (vec![2, 2], 2));
}

#[test]
fn second_update_restarts_at_current_slot() {
    let mut cluster = updating(2, 2);
    cluster.settle();
    assert_eq!(cluster.live(1), [(1, 1), (1, 3), (2, 2)]);
    cluster.update_image(1, "demo:3");
    cluster.reconcile(1);
    assert_eq!(cluster.live(1), [(1, 1), (1, 4), (2, 2)]);
    assert_eq!(cluster.task(1, 3).desired, DesiredTaskState::Remove);
    go_on(&mut cluster);
    assert_eq!(revisions(&cluster), [3, 3]);
}

#[test]
fn tasks_without_a_node_are_replaced_at_once() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.service(1, reserving("web", 3, resources(0, 4096)));
    cluster.settle();
    assert_eq!(cluster.state.task_counts(&service_id(1)).running, 0);
    cluster.update(1, reserving("web", 3, resources(0, 16)));
    cluster.settle();
    assert_eq!((revisions(&cluster), cluster.state.task_counts(&service_id(1)).ready), (vec![2, 2, 2], 3));
}

#[test]
fn ended_old_task_leaves_replacement() {
    let mut cluster = updating(2, 1);
    cluster.settle();
    cluster.observe(task_id(1, 1), TaskState::Failed);
    cluster.reconcile(1);
    assert_eq!((cluster.live(1), cluster.task(1, 2).desired), (vec![(1, 2)], DesiredTaskState::Running));
    cluster.settle();
    assert!(cluster.task(1, 2).observed.ready);
}

#[test]
fn lost_old_task_leaves_replacement() {
    // The scheduler spreads: the old task and the new one are on different nodes.
    let mut cluster = updating(2, 1);
    cluster.settle();
    let (old, new) = (cluster.task(1, 1).node.unwrap(), cluster.task(1, 2).node.unwrap());
    assert_ne!(old, new);
    cluster.set_down(old.0.0);
    cluster.reconcile(1);
    assert_eq!((cluster.live(1), cluster.task(1, 2).desired), (vec![(1, 2)], DesiredTaskState::Running));
    // The new one, lost with its node, is created again.
    let mut cluster = updating(2, 1);
    cluster.settle();
    let (old, new) = (cluster.task(1, 1).node.unwrap(), cluster.task(1, 2).node.unwrap());
    assert_ne!(old, new);
    cluster.set_down(new.0.0);
    cluster.reconcile(1);
    assert_eq!(cluster.live(1), [(1, 1), (1, 3)]);
}

#[test]
fn max_per_node_ignores_predecessor() {
    let mut cluster = TestCluster::with_nodes(3);
    let mut expected = spec("web", 3);
    expected.placement.max_per_node = Some(1);
    cluster.service(1, expected);
    cluster.settle();
    cluster.update_image(1, "demo:2");
    go_on(&mut cluster);
    assert_eq!(revisions(&cluster), [2, 2, 2]);
    for node in 1..=3 {
        assert_eq!(cluster.state.tasks_on(&node_id(node)).count(), 1, "node {node}");
    }
}

#[test]
fn lowered_max_per_node_moves_excess_tasks() {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.service(1, spec("web", 3));
    cluster.settle();
    cluster.node(2, resources(4000, 1024));
    let mut expected = spec("web", 3);
    expected.placement.max_per_node = Some(2);
    cluster.update(1, expected);
    go_on(&mut cluster);
    let on = |node| cluster.state.tasks_on(&node_id(node)).count();
    assert_eq!((on(1), on(2), revisions(&cluster)), (2, 1, vec![1, 1, 2]), "those that may stay stay");
}

#[test]
fn prepared_task_beyond_lowered_max_per_node_leaves_before_its_predecessor() {
    let mut cluster = TestCluster::with_nodes(1);
    let mut spec = spec("web", 3);
    spec.update.order = Some(UpdateOrder::StopFirst);
    spec.update.parallelism = Parallelism::Slots(0);
    cluster.service(1, spec.clone());
    cluster.settle();
    cluster.update_image(1, "demo:2");
    cluster.reconcile(1);
    cluster.schedule();
    cluster.node(2, resources(4000, 1024));
    spec.task.image = "demo:2".parse().unwrap();
    spec.placement.max_per_node = Some(2);
    cluster.update(1, spec);
    let excess =
        cluster.live(1).into_iter().filter(|(slot, _)| *slot == 3).map(|(_, number)| number).max().unwrap();
    cluster.report(report(task_id(1, excess), 0, TaskState::Ready));
    cluster.reconcile(1);
    assert!(!cluster.task(1, excess).is_live());
    assert!(cluster.task(1, 3).is_live(), "it stays until its next replacement is prepared on another node");
    for _ in 0..12 {
        cluster.settle();
        cluster.clean_up();
    }
    let on = |node| cluster.state.tasks_on(&node_id(node)).filter(|task| task.is_live()).count();
    assert_eq!((on(1), on(2), revisions(&cluster).len()), (2, 1, 3));
}

#[test]
fn tasks_that_leave_make_room_for_one_beyond_max_per_node_in_the_same_plan() {
    let mut cluster = TestCluster::with_nodes(1);
    let mut spec = spec("web", 3);
    spec.update.order = Some(UpdateOrder::StopFirst);
    spec.update.parallelism = Parallelism::Slots(0);
    cluster.service(1, spec.clone());
    cluster.settle();
    // No replacement gets a node.
    cluster.availability(1, Availability::Pause);
    spec.task.image = "demo:2".parse().unwrap();
    spec.placement.max_per_node = Some(2);
    cluster.update(1, spec);
    cluster.reconcile(1);
    cluster.advance_time(Duration::from_secs(2));
    cluster.reconcile(1);
    let left: Vec<u64> = (1..=3).filter(|number| cluster.task(1, *number).is_live()).collect();
    assert_eq!(left, [0; 0], "without the others the third one fits, so it is stopped first like them");
}

#[test]
fn a_scaled_down_service_updates_what_is_left() {
    let mut cluster = updating(2, 4);
    cluster.settle();
    cluster.scale(1, 1);
    go_on(&mut cluster);
    assert_eq!(revisions(&cluster), [2]);
    cluster.scale(1, 0);
    cluster.settle();
    cluster.reconcile(1);
    assert_eq!(progress(&cluster), Rollout { state: RolloutState::Completed, ..Rollout::default() });
}
