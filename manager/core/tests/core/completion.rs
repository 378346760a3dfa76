//! Tasks that end for good are not replaced.

use warren_types::*;

use crate::world::*;

/// A service of `replicas` that are not started again after such ends.
fn ending(replicas: u32, condition: RestartCondition) -> World {
    let mut world = World::with_nodes(2);
    let mut wanted = spec("job", replicas);
    wanted.task.restart.condition = condition;
    wanted.task.reservations = resources(0, 600);
    world.service(1, wanted);
    world.settle();
    world
}

/// Whether a task that ended so is replaced.
#[track_caller]
fn check(condition: RestartCondition, end: TaskState, replaced: bool) {
    let mut world = ending(2, condition);
    world.observe(task_id(1, 1), end);
    world.settle();
    let live = if replaced { vec![(1, 3), (2, 2)] } else { vec![(2, 2)] };
    assert_eq!(world.live(1), live, "{condition:?} {end:?}");
}

#[test]
fn which_ends_are_for_good() {
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
fn what_finished_stays_with_its_output_and_needs_no_memory() {
    let mut world = ending(2, RestartCondition::None);
    let node = world.task(1, 1).node.unwrap();
    assert_eq!(world.state.usage(&node).reserved, resources(0, 600));
    world.observe(task_id(1, 1), TaskState::Complete);
    assert!(world.reconcile(1).is_empty());
    assert_eq!(world.state.tasks_on(&node).count(), 1);
    assert_eq!(world.state.usage(&node).reserved, resources(0, 0));
    world.reap(1);
    assert!(world.state.task(&task_id(1, 1)).is_some());
    world.scale(1, 0);
    world.reconcile(1);
    assert_eq!(world.task(1, 1).desired, Desired::Remove, "the slot is gone");
}

#[test]
fn a_drained_node_keeps_nothing() {
    let mut world = ending(2, RestartCondition::None);
    world.observe(task_id(1, 1), TaskState::Complete);
    let node = world.task(1, 1).node.unwrap();
    world.availability(node.0.0, Availability::Drain);
    world.reconcile(1);
    assert_eq!((world.task(1, 1).desired, world.live(1)), (Desired::Remove, vec![(2, 2)]));
}

#[test]
fn lost_with_its_node_it_is_replaced() {
    let mut world = ending(1, RestartCondition::None);
    world.down(world.task(1, 1).node.unwrap().0.0);
    world.settle();
    assert_eq!(world.live(1), [(1, 2)]);
}

#[test]
fn a_new_revision_runs_it_again_once() {
    let mut world = ending(1, RestartCondition::None);
    world.observe(task_id(1, 1), TaskState::Complete);
    world.update_image(1, "demo:2");
    world.settle();
    assert_eq!((world.live(1), world.task(1, 1).desired), (vec![(1, 2)], Desired::Remove));
    world.observe(task_id(1, 2), TaskState::Complete);
    assert!(world.reconcile(1).is_empty());
}

#[test]
fn a_replacement_that_finishes_before_it_was_seen_running_is_the_end() {
    let mut world = ending(1, RestartCondition::OnFailure);
    world.availability(world.task(1, 1).node.unwrap().0.0, Availability::Drain);
    world.settle();
    world.reconcile(1);
    assert_eq!(world.task(1, 2).desired, Desired::Running);
    world.observe(task_id(1, 2), TaskState::Complete);
    world.reconcile(1);
    assert_eq!((world.live(1), world.task(1, 1).desired), (vec![], Desired::Remove));
}

#[test]
fn a_replacement_is_not_needed_once_its_predecessor_finished() {
    let mut world = ending(1, RestartCondition::None);
    world.availability(world.task(1, 1).node.unwrap().0.0, Availability::Drain);
    world.settle();
    world.observe(task_id(1, 1), TaskState::Complete);
    world.reconcile(1);
    assert_eq!((world.live(1), world.task(1, 2).desired), (vec![], Desired::Remove));
}
