//! Unhealthy tasks: replaced next to them, with growing delays, and kept when they recover.

mod served;

use std::time::Duration;

use warren_core::{Rollout, RolloutState, rollout};
use warren_types::Health::{Healthy, Starting, Unhealthy};
use warren_types::*;

use crate::test_cluster::*;

const WHY: &str = "unhealthy: HTTP 404 from :80/ (3 consecutive failures)";

fn checked(mut spec: ServiceSpec) -> ServiceSpec {
    spec.task.health = Some(HealthCheck::new(Probe::Tcp { port: 80 }));
    spec
}

/// The task runs and reports this health.
#[track_caller]
fn check(world: &mut TestCluster, number: u64, health: Health) {
    let reason = match health {
        Unhealthy => WHY.to_string(),
        Starting => "no health check has succeeded yet".to_string(),
        Healthy | Health::None => String::new(),
    };
    let attempt = world.task(1, number).observed.attempt.max(1);
    let output = report(task_id(1, number), attempt, TaskState::Running);
    world.report(TaskReport { health, reason, ready: health == Healthy, ..output });
}

/// Running tasks without a report are healthy.
fn all_healthy(world: &mut TestCluster) {
    let runs = |task: &&std::sync::Arc<Task>| task.is_live() && task.observed.state == TaskState::Running;
    let numbers: Vec<u64> = world.state.tasks().filter(runs).map(|task| task.id.number).collect();
    numbers.into_iter().for_each(|number| check(world, number, Healthy));
}

/// A service of healthy tasks.
fn healthy(nodes: u128, spec: ServiceSpec) -> TestCluster {
    let mut world = TestCluster::with_nodes(nodes);
    world.service(1, checked(spec));
    world.settle();
    all_healthy(&mut world);
    world
}

/// Seconds that the task has to wait before it is assigned.
fn waits(world: &TestCluster, number: u64) -> u64 {
    world.task(1, number).not_before().map_or(0, |time| time.saturating_since(world.now).as_secs())
}

/// Advances the new task of slot 1 to the state.
#[track_caller]
fn bring(world: &mut TestCluster, number: u64, state: TaskState) {
    world.advance_time(Duration::from_secs(waits(world, number)));
    world.schedule();
    assert!(world.task(1, number).node.is_some());
    world.report(report(task_id(1, number), 0, TaskState::Ready));
    if state > TaskState::Ready {
        world.reconcile(1);
        assert_eq!(world.task(1, number).desired, DesiredTaskState::Running);
        check(world, number, Starting);
    }
}

#[test]
fn unhealthy_task_is_kept_until_replacement_is_ready() {
    let mut world = healthy(2, spec("web", 1));
    check(&mut world, 1, Unhealthy);
    world.reconcile(1);
    assert_eq!((world.live(1), waits(&world, 2)), (vec![(1, 1), (1, 2)], 5));
    let held = "back-off until 2026-11-20T14:30:05Z: slot web.1 was unhealthy";
    assert_eq!((world.task(1, 2).desired, world.reason(1, 2).as_str()), (DesiredTaskState::Ready, held));
    bring(&mut world, 2, TaskState::Running);
    assert_ne!(world.task(1, 2).node, world.task(1, 1).node, "it tries its luck elsewhere");
    assert!(world.reconcile(1).is_empty(), "it is not ready yet");
    assert_eq!(world.task(1, 1).desired, DesiredTaskState::Running);
    check(&mut world, 2, Healthy);
    world.reconcile(1);
    assert_eq!(world.live(1), [(1, 2)], "the old one serves nobody: there is nothing to wait for");
    assert_eq!(world.task(1, 1).desired, DesiredTaskState::Remove);
    assert_eq!(world.reason(1, 1), WHY);
}

#[test]
fn recovered_task_is_not_replaced() {
    let steps: [fn(&mut TestCluster); 3] =
        [|_| (), |world| bring(world, 2, TaskState::Ready), |world| bring(world, 2, TaskState::Running)];
    for step in steps {
        let mut world = healthy(2, spec("web", 1));
        check(&mut world, 1, Unhealthy);
        world.reconcile(1);
        step(&mut world);
        check(&mut world, 1, Healthy);
        world.reconcile(1);
        assert_eq!((world.live(1), world.task(1, 2).desired), (vec![(1, 1)], DesiredTaskState::Remove));
        world.clean_up();
        world.advance_time(Duration::from_secs(3600));
        assert!(world.reconcile(1).is_empty(), "nothing is held against it");
    }
    // Too late: another one receives traffic.
    let mut world = healthy(2, spec("web", 1));
    check(&mut world, 1, Unhealthy);
    world.reconcile(1);
    bring(&mut world, 2, TaskState::Running);
    check(&mut world, 2, Healthy);
    check(&mut world, 1, Healthy);
    world.advance_time(SETTLED);
    world.reconcile(1);
    assert_eq!(world.live(1), [(1, 2)]);
}

#[test]
fn stopped_task_stays_unhealthy() {
    let mut world = healthy(1, spec("web", 1));
    check(&mut world, 1, Unhealthy);
    world.scale(1, 0);
    world.reconcile(1);
    let stopping = |state| TaskReport {
        reason: "stopping: grace period of 10s".into(),
        ready: false,
        ..report(task_id(1, 1), 1, state)
    };
    // A process that exited by itself before the worker received the stop is about to be started again.
    let again = |state| TaskReport { attempt: 2, ..stopping(state) };
    let output = [stopping(TaskState::Running), again(TaskState::Starting), again(TaskState::Shutdown)];
    for text in output {
        let state = text.state;
        world.report(text);
        let observed = &world.task(1, 1).observed;
        assert_eq!((observed.state, observed.health, observed.reason()), (state, Unhealthy, WHY));
        assert_eq!(
            world.state.unhealthy_tasks_of(&service_id(1)).count(),
            0,
            "nothing is to be done about it"
        );
    }
    world.clean_up();
    assert_eq!((world.task(1, 1).observed.health, world.task(1, 1).observed.removed), (Unhealthy, true));
    // A healthy task does not become unhealthy because it is stopped.
    let mut world = healthy(1, spec("web", 1));
    world.scale(1, 0);
    world.reconcile(1);
    world.report(stopping(TaskState::Running));
    world.clean_up();
    assert_eq!(world.task(1, 1).observed.health, Health::None);
}

/// A service whose checks fail a second after the start, for `seconds`: returns the start time of each of its
/// tasks.
fn starts_of_a_bad_check(spec: ServiceSpec, seconds: u64) -> Vec<u64> {
    let mut world = TestCluster::with_nodes(3);
    world.service(1, checked(spec));
    let begin = world.now;
    let mut starts = Vec::new();
    for second in 0..seconds {
        world.now = begin + Duration::from_secs(second);
        for _ in 0..3 {
            world.reconcile(1);
            world.schedule();
            let tasks: Vec<_> = world.state.tasks().filter(|task| task.is_live()).cloned().collect();
            for task in tasks.iter().filter(|task| task.node.is_some()) {
                let Task { id, desired, observed, .. } = &**task;
                if *desired == DesiredTaskState::Ready {
                    world.report(report(*id, 0, TaskState::Ready));
                } else if observed.state < TaskState::Running {
                    check(&mut world, id.number, Starting);
                    starts.push(second);
                } else if observed.since + Duration::from_secs(1) <= world.now {
                    check(&mut world, id.number, Unhealthy);
                }
            }
            world.clean_up();
        }
        world.reap(1);
        assert!(world.live(1).len() <= 2, "{:?}", world.live(1));
        assert!(world.state.live_task(&service_id(1), 1).is_some());
    }
    starts
}

#[test]
fn failing_health_check_backs_off() {
    let expected = [0, 6, 17, 38, 79, 160, 321, 622, 923, 1224];
    assert_eq!(starts_of_a_bad_check(spec("web", 1), 1500), expected);
    assert_eq!(starts_of_a_bad_check(constrained("web", 1, &["node.name == node-1"]), 1500), expected);
}

#[test]
fn old_unhealthiness_does_not_delay() {
    let mut world = healthy(2, spec("web", 1));
    for (number, pause, expected) in [(1, 1, 5), (2, 1, 10), (3, 300, 5), (4, 1, 10), (5, 3600, 5)] {
        world.advance_time(Duration::from_secs(pause));
        check(&mut world, number, Unhealthy);
        world.reconcile(1);
        assert_eq!(waits(&world, number + 1), expected, "after {number}");
        bring(&mut world, number + 1, TaskState::Running);
        check(&mut world, number + 1, Healthy);
        world.reconcile(1);
        world.clean_up();
        world.reap(1);
        assert_eq!(world.live(1), [(1, number + 1)]);
    }
}

#[test]
fn recovery_resets_streak() {
    let mut world = healthy(2, spec("web", 1));
    check(&mut world, 1, Unhealthy);
    world.reconcile(1);
    bring(&mut world, 2, TaskState::Running);
    check(&mut world, 2, Unhealthy);
    world.reconcile(1);
    check(&mut world, 1, Healthy);
    world.reconcile(1);
    world.clean_up();
    for (pause, expected) in [(60, 10), (300, 5)] {
        world.advance_time(Duration::from_secs(pause));
        check(&mut world, 1, Unhealthy);
        world.reconcile(1);
        let newest = world.live(1)[1].1;
        assert_eq!(waits(&world, newest), expected, "after {pause} s");
        check(&mut world, 1, Healthy);
        world.reconcile(1);
    }
}

#[test]
fn unhealthy_replacement_is_retried() {
    let mut world = healthy(2, spec("web", 1));
    check(&mut world, 1, Unhealthy);
    world.reconcile(1);
    bring(&mut world, 2, TaskState::Running);
    check(&mut world, 2, Unhealthy);
    world.reconcile(1);
    assert_eq!((world.live(1), world.task(1, 2).desired), (vec![(1, 1), (1, 3)], DesiredTaskState::Remove));
    assert_eq!(waits(&world, 3), 10);
    assert!(world.reason(1, 3).ends_with("slot web.1 was unhealthy 2 times in a row"));
    check(&mut world, 1, Healthy);
    world.reconcile(1);
    assert_eq!(world.live(1), [(1, 1)], "it may still recover");
    // Failures of both kinds count as one streak.
    world.observe(task_id(1, 1), TaskState::Failed);
    world.reconcile(1);
    assert_eq!(waits(&world, 4), 10);
}

#[test]
fn unhealthy_update_stops() {
    let mut world = healthy(2, pausing(spec("web", 3)));
    world.update_image(1, "demo:2");
    world.reconcile(1);
    bring(&mut world, 4, TaskState::Running);
    let progress =
        |world: &TestCluster| rollout(&world.state, world.state.service(&service_id(1)).unwrap(), world.now);
    let waiting = "web.1 is running but not ready: no health check has succeeded yet";
    assert_eq!(progress(&world).waiting_reason.as_deref(), Some(waiting));
    check(&mut world, 4, Unhealthy);
    world.reconcile(1);
    let expected = format!(
        "web.1 is {WHY}; the update is paused, as --update-on-failure says; now running: revision 1 (3 tasks); fix \
         it with `warren service update web`, continue with `warren service update web --resume`, or go back with \
         `warren service rollback web`"
    );
    assert_eq!(progress(&world).stop_reason.as_ref(), Some(&expected));
    for _ in 0..3 {
        world.settle();
        world.clean_up();
        world.reap(1);
        world.advance_time(Duration::from_secs(3600));
    }
    assert!(world.reconcile(1).is_empty());
    assert_eq!(world.live(1), [(1, 1), (2, 2), (3, 3)]);
    let stopped = progress(&world);
    assert_eq!((stopped.updated, stopped.total, stopped.stop_reason), (0, 3, Some(expected)));
    assert_eq!(stopped.failed_task, Some(task_id(1, 4)));
    // An old task that becomes unhealthy meanwhile is not replaced by the failing revision either.
    check(&mut world, 2, Unhealthy);
    world.reconcile(1);
    assert_eq!(world.live(1), [(1, 1), (2, 2), (2, 5), (3, 3)]);
    world.rollback(1, None);
    world.reconcile(1);
    assert_eq!(world.task(1, 6).revision.number, 3);
    assert_eq!((progress(&world).updated, progress(&world).stop_reason), (3, None));
}

#[test]
fn recovered_update_continues() {
    let mut spec = spec("web", 2);
    spec.update.on_failure = Some(FailureAction::Continue);
    let mut world = healthy(2, spec);
    world.update_image(1, "demo:2");
    world.reconcile(1);
    bring(&mut world, 3, TaskState::Running);
    check(&mut world, 3, Unhealthy);
    world.reconcile(1);
    assert_eq!(world.task(1, 3).desired, DesiredTaskState::Remove, "another one is tried");
    let progress =
        |world: &TestCluster| rollout(&world.state, world.state.service(&service_id(1)).unwrap(), world.now);
    assert_eq!(progress(&world).stop_reason, None);
    for _ in 0..8 {
        world.advance_time(Duration::from_secs(30));
        world.settle();
        all_healthy(&mut world);
        world.clean_up();
    }
    assert_eq!((progress(&world).state, progress(&world).updated), (RolloutState::Completed, 2));
}

#[test]
fn fixed_spec_replaces_all_unhealthy_tasks() {
    let mut world = healthy(2, spec("web", 3));
    [1, 3].into_iter().for_each(|number| check(&mut world, number, Unhealthy));
    world.reconcile(1);
    world.update_image(1, "demo:2");
    world.reconcile(1);
    let new: Vec<_> = world.live(1).into_iter().filter(|(_, number)| *number > 5).collect();
    assert_eq!(new, [(1, 6), (2, 8), (3, 7)], "and one of the others, whose turn it is");
    assert_eq!((waits(&world, 6), waits(&world, 7)), (0, 0), "nothing is known against the new revision");
    for _ in 0..8 {
        world.settle();
        all_healthy(&mut world);
        world.clean_up();
    }
    let progress = rollout(&world.state, world.state.service(&service_id(1)).unwrap(), world.now);
    let done = Rollout { updated: 3, total: 3, state: RolloutState::Completed, ..Rollout::default() };
    assert_eq!(progress, done);
}

#[test]
fn replacement_waits_for_free_resources() {
    let mut world = healthy(1, reserving("web", 1, resources(0, 600)));
    check(&mut world, 1, Unhealthy);
    world.reconcile(1);
    world.advance_time(Duration::from_secs(5));
    world.schedule();
    assert_eq!(world.reason(1, 2), "0 of 1 nodes fit: 1 lacks memory (need 600MiB, best has 424MiB)");
    assert!(world.reconcile(1).is_empty(), "the old one may recover");
}

#[test]
fn max_per_node_task_is_replaced_in_place() {
    let mut one = spec("web", 1);
    one.placement.max_per_node = Some(1);
    for spec in [one, global("web")] {
        let mut world = healthy(1, spec);
        check(&mut world, 1, Unhealthy);
        world.reconcile(1);
        bring(&mut world, 2, TaskState::Running);
        check(&mut world, 2, Healthy);
        world.reconcile(1);
        assert_eq!((world.live(1), world.task(1, 2).node), (vec![(1, 2)], Some(node_id(1))));
    }
    // A paused node keeps its task.
    let mut world = healthy(1, global("web"));
    world.availability(1, Availability::Pause);
    check(&mut world, 1, Unhealthy);
    assert!(world.reconcile(1).is_empty());
}
