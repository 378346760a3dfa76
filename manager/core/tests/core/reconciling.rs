//! Which tasks exist, and when they are forgotten.

use std::time::Duration;

use warren_core::Command;
use warren_core::reconcile::MAX_ITEMS;
use warren_types::*;

use crate::world::*;

/// A running service of `replicas` on two nodes.
fn running(replicas: u32) -> World {
    let mut world = World::with_nodes(2);
    world.service(1, spec("web", replicas));
    world.settle();
    world
}

/// Numbers of the tasks that are to leave their nodes.
fn leaving(world: &World) -> Vec<u64> {
    let tasks = world.state.tasks_of(&service_id(1));
    tasks.filter(|task| task.desired == Desired::Remove).map(|task| task.id.number).collect()
}

#[test]
fn each_slot_has_one_task() {
    let mut world = running(3);
    assert_eq!(world.live(1), [(1, 1), (2, 2), (3, 3)]);
    assert!(world.reconcile(1).is_empty(), "nothing to do");
    world.scale(1, 5);
    world.settle();
    assert_eq!(world.live(1), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]);
}

#[test]
fn scaling_down_takes_the_highest_slots() {
    let mut world = running(5);
    world.scale(1, 2);
    world.settle();
    assert_eq!((world.live(1), leaving(&world)), (vec![(1, 1), (2, 2)], vec![3, 4, 5]));
    world.scale(1, 4);
    world.settle();
    assert_eq!(world.live(1), [(1, 1), (2, 2), (3, 6), (4, 7)], "what was told to leave is not called back");
    world.scale(1, 0);
    world.settle();
    assert_eq!(world.live(1), []);
}

#[test]
fn tasks_of_a_lost_node_are_replaced_and_stopped_when_it_returns() {
    let mut world = running(2);
    let lost = world.task(1, 1).node.unwrap().0.0;
    world.down(lost);
    world.settle();
    assert_eq!((world.live(1), leaving(&world)), (vec![(1, 3), (2, 2)], vec![1]));
    assert_ne!(world.task(1, 3).node, Some(node_id(lost)));
    assert_eq!(world.task(1, 3).not_before(), None, "a lost node is no failure of the slot");
    world.settle();
    world.reap(1);
    assert!(world.state.task(&task_id(1, 1)).is_some(), "it may still run there");
    world.connect(lost);
    let told = world.state.assignment(&node_id(lost)).unwrap();
    assert_eq!(
        told.tasks.iter().map(|task| (task.id.number, task.desired)).collect::<Vec<_>>(),
        [(1, Desired::Remove)]
    );
    world.clean_up();
    assert_eq!(world.state.tasks_on(&node_id(lost)).count(), 0);
}

#[test]
fn with_every_node_down_the_replacements_wait() {
    let mut world = running(2);
    world.down(1);
    world.down(2);
    world.settle();
    assert_eq!(world.live(1), [(1, 3), (2, 4)]);
    assert_eq!(world.reason(1, 3), "0 of 2 nodes fit: 2 are down");
    assert!(world.reconcile(1).is_empty());
}

#[test]
fn a_task_that_ended_is_replaced_and_cleaned_up() {
    for end in [TaskState::Complete, TaskState::Failed, TaskState::Rejected, TaskState::Shutdown] {
        let mut world = running(2);
        world.observe(task_id(1, 2), end);
        world.settle();
        assert_eq!((world.live(1), leaving(&world)), (vec![(1, 1), (2, 3)], vec![2]), "{end:?}");
        world.clean_up();
        assert!(world.reconcile(1).is_empty());
    }
}

#[test]
fn a_task_that_holds_nothing_is_not_told_to_leave() {
    let mut world = running(1);
    world.report(TaskReport { removed: true, ..report(task_id(1, 1), 1, TaskState::Failed) });
    let plan = world.reconcile(1);
    assert!(matches!(plan.commands[..], [Command::CreateTasks { .. }]), "{plan:?}");
}

#[test]
fn a_removed_service_goes_with_its_last_task() {
    let mut world = running(3);
    world.observe(task_id(1, 2), TaskState::Failed);
    world.remove(1);
    world.settle();
    assert_eq!((world.live(1), leaving(&world)), (vec![], vec![1, 2, 3]));
    assert!(world.reap(1).is_empty(), "tasks still hold their nodes");
    world.clean_up();
    world.reap(1);
    assert_eq!((world.state.services().count(), world.state.tasks().count()), (0, 0));
    assert!(world.reconcile(1).is_empty());
    assert!(world.reap(1).is_empty());
}

#[test]
fn a_removed_service_waits_for_a_node_that_is_down() {
    let mut world = running(2);
    let lost = world.task(1, 1).node.unwrap().0.0;
    world.down(lost);
    world.remove(1);
    world.settle();
    world.clean_up();
    world.reap(1);
    let left: Vec<_> = world.state.tasks().map(|task| task.id.number).collect();
    assert_eq!(
        (left, world.state.services().count()),
        (vec![1], 1),
        "nothing is freed without the worker's word"
    );
    world.connect(lost);
    world.clean_up();
    world.reap(1);
    assert_eq!(world.state.services().count(), 0);
}

#[test]
fn five_ended_tasks_are_kept_per_slot() {
    let mut world = running(2);
    for number in 3..11 {
        let (_, newest) = world.live(1)[1];
        world.observe(task_id(1, newest), TaskState::Failed);
        world.wait(Duration::from_secs(3600));
        world.settle();
        world.clean_up();
        assert_eq!(world.live(1)[1], (2, number));
    }
    world.reap(1);
    let records: Vec<_> =
        world.state.tasks_of(&service_id(1)).map(|task| (task.slot, task.id.number)).collect();
    assert_eq!(records, [(1, 1), (2, 5), (2, 6), (2, 7), (2, 8), (2, 9), (2, 10)]);
    world.scale(1, 1);
    world.settle();
    world.clean_up();
    world.reap(1);
    assert_eq!(world.state.tasks_of(&service_id(1)).count(), 1, "a slot that is gone has no history");
}

#[test]
fn tasks_that_never_ran_leave_no_record() {
    let mut world = World::new();
    world.service(1, spec("web", 3));
    world.reconcile(1);
    world.scale(1, 1);
    world.reconcile(1);
    world.reap(1);
    assert_eq!(world.state.tasks().count(), 1);
}

#[test]
fn plans_are_bounded_and_go_on() {
    let mut world = World::new();
    let wanted = u32::try_from(MAX_ITEMS).unwrap() + 500;
    world.service(1, spec("web", wanted));
    let first = world.reconcile(1);
    assert_eq!((world.live(1).len(), first.recheck_after), (MAX_ITEMS, Some(Duration::ZERO)));
    let second = world.reconcile(1);
    assert_eq!((world.live(1).len(), second.recheck_after), (wanted as usize, None));
    world.remove(1);
    world.reconcile(1);
    assert_eq!(world.live(1).last().unwrap().0, wanted - 1000, "the highest slots first");
    world.reconcile(1);
    assert_eq!(world.reap(1).recheck_after, Some(Duration::ZERO));
    world.reap(1);
    assert_eq!(world.state.services().count(), 0);
}

#[test]
fn plans_carry_the_term_of_the_state() {
    let mut world = World::new();
    world.service(1, spec("web", 1));
    let plan = warren_core::reconcile_service(&world.state, &service_id(1), world.now);
    assert!(plan.commands.iter().all(|command| command.planned_in() == Some(TERM)));
    // A new leader's own first entry carries no command.
    let index = world.state.applied().index + 1;
    world.state.advance(warren_core::Applied { term: TERM + 1, index });
    let plan = warren_core::reconcile_service(&world.state, &service_id(1), world.now);
    assert!(matches!(plan.commands[..], [Command::CreateTasks { term, .. }] if term == TERM + 1));
}
