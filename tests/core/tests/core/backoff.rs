//! How long a slot that keeps failing waits.

use std::time::Duration;

use warren_types::*;

use crate::test_cluster::*;

/// The live task of slot 1 runs for `lasts` seconds and ends in `end`; returns how many seconds its
/// replacement has to wait.
#[track_caller]
fn end(world: &mut TestCluster, lasts: u64, end: TaskState) -> u64 {
    let number = world.live(1)[0].1;
    if let Some(time) = world.task(1, number).not_before() {
        world.now = time.max(world.now);
    }
    world.settle();
    world.advance_time(Duration::from_secs(lasts));
    world.observe(task_id(1, number), end);
    world.reconcile(1);
    world.clean_up();
    world.reap(1);
    let next = world.live(1)[0].1;
    world.task(1, next).not_before().map_or(0, |time| time.saturating_since(world.now).as_secs())
}

fn world() -> TestCluster {
    let mut world = TestCluster::with_nodes(1);
    world.service(1, spec("web", 1));
    world.settle();
    world
}

#[test]
fn consecutive_failure_doubles_delay() {
    let mut world = world();
    let waits: Vec<_> = (0..7).map(|_| end(&mut world, 1, TaskState::Failed)).collect();
    // From the fifth on, the kept records show no more.
    assert_eq!(waits, [5, 10, 20, 40, 80, 160, 160]);
}

#[test]
fn completions_and_rejections_count_as_ends() {
    let mut world = world();
    let ends = [TaskState::Complete, TaskState::Rejected, TaskState::Complete];
    assert_eq!(ends.map(|state| end(&mut world, 1, state)), [5, 10, 20]);
    let newest = world.live(1)[0].1;
    assert!(world.reason(1, newest).ends_with("slot web.1 ended 3 times in a row"));
}

#[test]
fn long_lived_task_resets_streak() {
    let mut world = world();
    assert_eq!(end(&mut world, 1, TaskState::Failed), 5);
    assert_eq!(end(&mut world, 1, TaskState::Failed), 10);
    assert_eq!(end(&mut world, 300, TaskState::Failed), 5);
    assert_eq!(end(&mut world, 1, TaskState::Failed), 10);
}

#[test]
fn lost_and_shutdown_tasks_do_not_count() {
    let mut world = world();
    assert_eq!(end(&mut world, 1, TaskState::Failed), 5);
    world.advance_time(Duration::from_secs(5));
    world.settle();
    world.set_down(1);
    world.reconcile(1);
    assert_eq!(world.task(1, 3).not_before(), None);
    world.connect(1);
    world.clean_up();
    assert_eq!(
        end(&mut world, 1, TaskState::Failed),
        10,
        "the second failure, as if nothing had been between"
    );
}

#[test]
fn old_failure_does_not_delay() {
    let mut world = world();
    world.observe(task_id(1, 1), TaskState::Failed);
    world.advance_time(Duration::from_secs(5));
    world.reconcile(1);
    assert_eq!(world.task(1, 2).not_before(), None);
}
