//! How long a slot that keeps failing waits.

use std::time::Duration;

use warren_types::*;

use crate::world::*;

/// Lets the live task of slot 1 run for `lasts` seconds and come to `end`, and answers how many seconds its
/// replacement has to wait.
#[track_caller]
fn end(world: &mut World, lasts: u64, end: TaskState) -> u64 {
    let number = world.live(1)[0].1;
    if let Some(time) = world.task(1, number).not_before() {
        world.now = time.max(world.now);
    }
    world.settle();
    world.wait(Duration::from_secs(lasts));
    world.observe(task_id(1, number), end);
    world.reconcile(1);
    world.clean_up();
    world.reap(1);
    let next = world.live(1)[0].1;
    world.task(1, next).not_before().map_or(0, |time| time.since(world.now).as_secs())
}

fn world() -> World {
    let mut world = World::with_nodes(1);
    world.service(1, spec("web", 1));
    world.settle();
    world
}

#[test]
fn each_failure_in_a_row_doubles_the_wait() {
    let mut world = world();
    let waits: Vec<_> = (0..7).map(|_| end(&mut world, 1, TaskState::Failed)).collect();
    // From the fifth on, the records that are kept do not tell of more.
    assert_eq!(waits, [5, 10, 20, 40, 80, 160, 160]);
}

#[test]
fn ends_with_success_and_rejections_count_too() {
    let mut world = world();
    let ends = [TaskState::Complete, TaskState::Rejected, TaskState::Complete];
    assert_eq!(ends.map(|state| end(&mut world, 1, state)), [5, 10, 20]);
    let newest = world.live(1)[0].1;
    assert!(world.reason(1, newest).ends_with("slot web.1 ended 3 times in a row"));
}

#[test]
fn a_task_that_lasted_begins_a_new_row() {
    let mut world = world();
    assert_eq!(end(&mut world, 1, TaskState::Failed), 5);
    assert_eq!(end(&mut world, 1, TaskState::Failed), 10);
    assert_eq!(end(&mut world, 300, TaskState::Failed), 5);
    assert_eq!(end(&mut world, 1, TaskState::Failed), 10);
}

#[test]
fn lost_nodes_and_wanted_stops_do_not_count() {
    let mut world = world();
    assert_eq!(end(&mut world, 1, TaskState::Failed), 5);
    world.wait(Duration::from_secs(5));
    world.settle();
    world.down(1);
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
fn a_failure_of_long_ago_delays_nothing() {
    let mut world = world();
    world.observe(task_id(1, 1), TaskState::Failed);
    world.wait(Duration::from_secs(5));
    world.reconcile(1);
    assert_eq!(world.task(1, 2).not_before(), None);
}
