//! Tasks whose checks fail: replaced beside them, ever later, and left alone when they recover.

mod served;

use std::time::Duration;

use warren_core::{Rollout, rollout};
use warren_types::Health::{Healthy, Starting, Unhealthy};
use warren_types::*;

use crate::world::*;

const WHY: &str = "unhealthy: HTTP 404 from :80/ (3 failures in a row)";

fn checked(mut spec: ServiceSpec) -> ServiceSpec {
    spec.task.health = Some(HealthCheck::new(Probe::Tcp { port: 80 }));
    spec
}

/// The task runs, and its checks say so.
#[track_caller]
fn check(world: &mut World, number: u64, health: Health) {
    let reason = match health {
        Unhealthy => WHY.to_string(),
        Starting => "no check has succeeded yet".to_string(),
        Healthy | Health::None => String::new(),
    };
    let attempt = world.task(1, number).observed.attempt.max(1);
    let said = report(task_id(1, number), attempt, TaskState::Running);
    world.report(TaskReport { health, reason, ready: health == Healthy, ..said });
}

/// Whoever runs and is told nothing else is healthy.
fn all_healthy(world: &mut World) {
    let runs = |task: &&std::sync::Arc<Task>| task.is_live() && task.observed.state == TaskState::Running;
    let numbers: Vec<u64> = world.state.tasks().filter(runs).map(|task| task.id.number).collect();
    numbers.into_iter().for_each(|number| check(world, number, Healthy));
}

/// A service of healthy tasks.
fn healthy(nodes: u128, spec: ServiceSpec) -> World {
    let mut world = World::with_nodes(nodes);
    world.service(1, checked(spec));
    world.settle();
    all_healthy(&mut world);
    world
}

/// Seconds that the task has to wait before it is placed.
fn waits(world: &World, number: u64) -> u64 {
    world.task(1, number).not_before().map_or(0, |time| time.since(world.now).as_secs())
}

/// Brings the new task of slot 1 so far.
#[track_caller]
fn bring(world: &mut World, number: u64, state: TaskState) {
    world.wait(Duration::from_secs(waits(world, number)));
    world.schedule();
    assert!(world.task(1, number).node.is_some());
    world.report(report(task_id(1, number), 0, TaskState::Ready));
    if state > TaskState::Ready {
        world.reconcile(1);
        assert_eq!(world.task(1, number).desired, Desired::Running);
        check(world, number, Starting);
    }
}

#[test]
fn an_unhealthy_task_stays_until_its_replacement_is_ready() {
    let mut world = healthy(2, spec("web", 1));
    check(&mut world, 1, Unhealthy);
    world.reconcile(1);
    assert_eq!((world.live(1), waits(&world, 2)), (vec![(1, 1), (1, 2)], 5));
    let held = "held back until 2026-11-20T14:30:05Z: slot web.1 was unhealthy";
    assert_eq!((world.task(1, 2).desired, world.reason(1, 2).as_str()), (Desired::Ready, held));
    bring(&mut world, 2, TaskState::Running);
    assert_ne!(world.task(1, 2).node, world.task(1, 1).node, "it tries its luck elsewhere");
    assert!(world.reconcile(1).is_empty(), "it is not ready yet");
    assert_eq!(world.task(1, 1).desired, Desired::Running);
    check(&mut world, 2, Healthy);
    world.reconcile(1);
    assert_eq!(world.live(1), [(1, 2)], "the old one serves nobody: there is nothing to wait for");
    assert_eq!(world.task(1, 1).desired, Desired::Remove);
    assert_eq!(world.reason(1, 1), WHY);
}

#[test]
fn a_task_that_recovers_keeps_its_place() {
    let steps: [fn(&mut World); 3] =
        [|_| (), |world| bring(world, 2, TaskState::Ready), |world| bring(world, 2, TaskState::Running)];
    for step in steps {
        let mut world = healthy(2, spec("web", 1));
        check(&mut world, 1, Unhealthy);
        world.reconcile(1);
        step(&mut world);
        check(&mut world, 1, Healthy);
        world.reconcile(1);
        assert_eq!((world.live(1), world.task(1, 2).desired), (vec![(1, 1)], Desired::Remove));
        world.clean_up();
        world.wait(Duration::from_secs(3600));
        assert!(world.reconcile(1).is_empty(), "nothing is held against it");
    }
    // Too late: another one serves.
    let mut world = healthy(2, spec("web", 1));
    check(&mut world, 1, Unhealthy);
    world.reconcile(1);
    bring(&mut world, 2, TaskState::Running);
    check(&mut world, 2, Healthy);
    check(&mut world, 1, Healthy);
    world.wait(SETTLED);
    world.reconcile(1);
    assert_eq!(world.live(1), [(1, 2)]);
}

#[test]
fn what_was_unhealthy_when_it_was_stopped_stays_so() {
    let mut world = healthy(1, spec("web", 1));
    check(&mut world, 1, Unhealthy);
    world.scale(1, 0);
    world.reconcile(1);
    let stopping = |state| TaskReport {
        reason: "stopping: has 10s".into(),
        ready: false,
        ..report(task_id(1, 1), 1, state)
    };
    // A process that ended by itself before the worker heard of it is about to be started again.
    let again = |state| TaskReport { attempt: 2, ..stopping(state) };
    let said = [stopping(TaskState::Running), again(TaskState::Starting), again(TaskState::Shutdown)];
    for said in said {
        let state = said.state;
        world.report(said);
        let observed = &world.task(1, 1).observed;
        assert_eq!((observed.state, observed.health, observed.reason()), (state, Unhealthy, WHY));
        assert_eq!(world.state.unhealthy_of(&service_id(1)).count(), 0, "nothing is to be done about it");
    }
    world.clean_up();
    assert_eq!((world.task(1, 1).observed.health, world.task(1, 1).observed.removed), (Unhealthy, true));
    // One that was well is not ill because it is stopped.
    let mut world = healthy(1, spec("web", 1));
    world.scale(1, 0);
    world.reconcile(1);
    world.report(stopping(TaskState::Running));
    world.clean_up();
    assert_eq!(world.task(1, 1).observed.health, Health::None);
}

/// A service whose checks fail a second after the start, for `seconds`: when each of its tasks was started.
fn starts_of_a_bad_check(spec: ServiceSpec, seconds: u64) -> Vec<u64> {
    let mut world = World::with_nodes(3);
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
                if *desired == Desired::Ready {
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
fn a_bad_check_is_tried_ever_more_slowly() {
    let wanted = [0, 6, 17, 38, 79, 160, 321, 622, 923, 1224];
    assert_eq!(starts_of_a_bad_check(spec("web", 1), 1500), wanted);
    assert_eq!(starts_of_a_bad_check(constrained("web", 1, &["node.name == node-1"]), 1500), wanted);
}

#[test]
fn trouble_of_long_ago_delays_nothing() {
    let mut world = healthy(2, spec("web", 1));
    for (number, pause, wanted) in [(1, 1, 5), (2, 1, 10), (3, 300, 5), (4, 1, 10), (5, 3600, 5)] {
        world.wait(Duration::from_secs(pause));
        check(&mut world, number, Unhealthy);
        world.reconcile(1);
        assert_eq!(waits(&world, number + 1), wanted, "after {number}");
        bring(&mut world, number + 1, TaskState::Running);
        check(&mut world, number + 1, Healthy);
        world.reconcile(1);
        world.clean_up();
        world.reap(1);
        assert_eq!(world.live(1), [(1, number + 1)]);
    }
}

#[test]
fn a_task_that_recovered_begins_a_new_row() {
    let mut world = healthy(2, spec("web", 1));
    check(&mut world, 1, Unhealthy);
    world.reconcile(1);
    bring(&mut world, 2, TaskState::Running);
    check(&mut world, 2, Unhealthy);
    world.reconcile(1);
    check(&mut world, 1, Healthy);
    world.reconcile(1);
    world.clean_up();
    for (pause, wanted) in [(60, 10), (300, 5)] {
        world.wait(Duration::from_secs(pause));
        check(&mut world, 1, Unhealthy);
        world.reconcile(1);
        let newest = world.live(1)[1].1;
        assert_eq!(waits(&world, newest), wanted, "after {pause} s");
        check(&mut world, 1, Healthy);
        world.reconcile(1);
    }
}

#[test]
fn a_replacement_that_is_unhealthy_goes_and_is_tried_again() {
    let mut world = healthy(2, spec("web", 1));
    check(&mut world, 1, Unhealthy);
    world.reconcile(1);
    bring(&mut world, 2, TaskState::Running);
    check(&mut world, 2, Unhealthy);
    world.reconcile(1);
    assert_eq!((world.live(1), world.task(1, 2).desired), (vec![(1, 1), (1, 3)], Desired::Remove));
    assert_eq!(waits(&world, 3), 10);
    assert!(world.reason(1, 3).ends_with("slot web.1 was unhealthy 2 times in a row"));
    check(&mut world, 1, Healthy);
    world.reconcile(1);
    assert_eq!(world.live(1), [(1, 1)], "it may still recover");
    // Failures of both kinds are one row.
    world.observe(task_id(1, 1), TaskState::Failed);
    world.reconcile(1);
    assert_eq!(waits(&world, 4), 10);
}

#[test]
fn an_update_that_is_unhealthy_stops_and_the_old_tasks_go_on() {
    let mut world = healthy(2, spec("web", 3));
    world.update_image(1, "demo:2");
    world.reconcile(1);
    bring(&mut world, 4, TaskState::Running);
    let progress = |world: &World| rollout(&world.state, world.state.service(&service_id(1)).unwrap());
    let waiting = "web.1 runs, and is not ready yet: no check has succeeded yet";
    assert_eq!(progress(&world).waiting.as_deref(), Some(waiting));
    check(&mut world, 4, Unhealthy);
    let wanted = format!(
        "web.1 is {WHY}; the update stopped: fix it with `warren service update web`, or go back with \
         `warren service rollback web`"
    );
    assert_eq!(progress(&world).stopped.as_ref(), Some(&wanted));
    for _ in 0..3 {
        world.settle();
        world.clean_up();
        world.reap(1);
        world.wait(Duration::from_secs(3600));
    }
    assert!(world.reconcile(1).is_empty());
    assert_eq!(world.live(1), [(1, 1), (2, 2), (3, 3)]);
    let stopped = Rollout { updated: 0, total: 3, stopped: Some(wanted), waiting: None };
    assert_eq!(progress(&world), stopped);
    // An old task that becomes unhealthy meanwhile has no better chance than the current revision.
    check(&mut world, 2, Unhealthy);
    world.reconcile(1);
    assert_eq!(world.live(1), [(1, 1), (2, 2), (2, 5), (3, 3)]);
    world.rollback(1, None);
    world.reconcile(1);
    assert_eq!(world.task(1, 6).revision.number, 3);
    assert_eq!((progress(&world).updated, progress(&world).stopped), (3, None));
}

#[test]
fn an_update_that_recovers_goes_on() {
    let mut world = healthy(2, spec("web", 2));
    world.update_image(1, "demo:2");
    for _ in 0..4 {
        world.reconcile(1);
        world.settle();
        all_healthy(&mut world);
    }
    world.wait(SETTLED);
    world.reconcile(1);
    assert_eq!(world.task(1, 3).revision.number, 2);
    check(&mut world, 3, Unhealthy);
    assert!(
        rollout(&world.state, world.state.service(&service_id(1)).unwrap()).stopped.is_some()
            || world.task(1, 2).desired > Desired::Running
    );
    check(&mut world, 3, Healthy);
    assert_eq!(rollout(&world.state, world.state.service(&service_id(1)).unwrap()).stopped, None);
}

#[test]
fn a_fix_reaches_every_unhealthy_task_at_once() {
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
    let progress = rollout(&world.state, world.state.service(&service_id(1)).unwrap());
    assert_eq!(progress, Rollout { updated: 3, total: 3, stopped: None, waiting: None });
}

#[test]
fn a_node_with_room_for_one_waits_and_says_so() {
    let mut world = healthy(1, reserving("web", 1, resources(0, 600)));
    check(&mut world, 1, Unhealthy);
    world.reconcile(1);
    world.wait(Duration::from_secs(5));
    world.schedule();
    assert_eq!(world.reason(1, 2), "0 of 1 nodes fit: 1 lacks memory (need 600MiB, best has 424MiB)");
    assert!(world.reconcile(1).is_empty(), "the old one may recover");
}

#[test]
fn one_task_per_node_and_global_services_are_replaced_where_they_are() {
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
    // A node that takes nothing new keeps what it has.
    let mut world = healthy(1, global("web"));
    world.availability(1, Availability::Pause);
    check(&mut world, 1, Unhealthy);
    assert!(world.reconcile(1).is_empty());
}
