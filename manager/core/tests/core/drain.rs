//! Drain, pause and constraints that change: tasks move, the replacement first.

use warren_types::*;

use crate::world::*;

fn on(world: &World, node: u128) -> usize {
    world.state.tasks_on(&node_id(node)).filter(|task| task.is_live()).count()
}

#[track_caller]
fn settle_fully(world: &mut World) {
    for _ in 0..5 {
        world.settle();
        for slot in 1..=6 {
            let mut tasks = world.state.live_tasks(&service_id(1), slot);
            assert!(tasks.any(|task| task.observed.ready), "slot {slot} stands still");
        }
        world.clean_up();
    }
    assert!(world.reconcile(1).is_empty());
}

#[test]
fn a_drained_node_is_left_with_the_replacements_first() {
    let mut world = World::with_nodes(3);
    world.service(1, spec("web", 6));
    world.settle();
    world.availability(1, Availability::Drain);
    let plan = world.reconcile(1);
    assert_eq!(world.live(1).len(), 8, "both of its slots at once: {plan:?}");
    settle_fully(&mut world);
    assert_eq!((on(&world, 1), on(&world, 2), on(&world, 3)), (0, 3, 3));
    assert_eq!(world.state.tasks_on(&node_id(1)).count(), 0);
    assert_eq!(world.state.service(&service_id(1)).unwrap().revision.number, 1);
    world.availability(1, Availability::Active);
    assert!(world.reconcile(1).is_empty(), "nothing moves back by itself");
}

#[test]
fn with_nowhere_to_go_tasks_stay_and_say_why() {
    let mut world = World::with_nodes(2);
    world.service(1, spec("web", 2));
    world.settle();
    world.availability(1, Availability::Drain);
    world.availability(2, Availability::Pause);
    world.settle();
    assert_eq!((on(&world, 1), on(&world, 2)), (1, 1));
    assert_eq!(world.reason(1, 3), "0 of 2 nodes fit: 1 is drained, 1 is paused");
    world.availability(1, Availability::Active);
    world.reconcile(1);
    assert_eq!(world.live(1), [(1, 1), (2, 2)], "the replacement is called off");
    world.clean_up();
    world.reap(1);
    assert!(world.reconcile(1).is_empty());
}

#[test]
fn a_paused_node_keeps_what_it_has() {
    let mut world = World::with_nodes(2);
    world.service(1, spec("web", 2));
    world.settle();
    world.availability(1, Availability::Pause);
    assert!(world.reconcile(1).is_empty());
    world.scale(1, 6);
    settle_fully(&mut world);
    assert_eq!((on(&world, 1), on(&world, 2)), (1, 5));
}

#[test]
fn tasks_leave_a_node_that_does_not_meet_a_constraint_any_more() {
    let mut world = World::with_nodes(2);
    world.label(1, "zone", Some("a"));
    world.service(1, constrained("web", 6, &["node.labels.zone in (a,b)"]));
    world.settle();
    assert_eq!((on(&world, 1), on(&world, 2)), (6, 0));
    world.label(2, "zone", Some("b"));
    assert!(world.reconcile(1).is_empty());
    world.label(1, "zone", None);
    settle_fully(&mut world);
    assert_eq!((on(&world, 1), on(&world, 2)), (0, 6));
    // Another placement moves only those whose node it does not admit, and is no new task for the rest.
    world.label(1, "zone", Some("a"));
    world.update(1, constrained("web", 6, &["node.labels.zone == b"]));
    assert!(world.reconcile(1).is_empty());
    assert_eq!(warren_core::rollout(&world.state, world.state.service(&service_id(1)).unwrap()).updated, 6);
    world.update(1, constrained("web", 6, &["node.labels.zone == a"]));
    settle_fully(&mut world);
    assert_eq!((on(&world, 1), on(&world, 2)), (6, 0));
}

#[test]
fn a_replacement_that_fails_elsewhere_is_tried_again_later() {
    let mut world = World::with_nodes(2);
    world.service(1, spec("web", 1));
    world.settle();
    world.availability(1, Availability::Drain);
    world.settle();
    world.settle();
    world.observe(task_id(1, 2), TaskState::Failed);
    world.reconcile(1);
    assert_eq!(world.live(1), [(1, 1), (1, 3)]);
    assert!(world.task(1, 3).not_before().is_some(), "not at once");
    assert_eq!(world.task(1, 1).desired, Desired::Running, "the old one goes on");
}

#[test]
fn an_image_that_is_drained_twice_moves_twice() {
    let mut world = World::with_nodes(3);
    world.service(1, spec("web", 1));
    world.settle();
    world.availability(1, Availability::Drain);
    world.settle();
    let second = world.task(1, 2).node.unwrap();
    // The node that it was to move to is drained before it runs there.
    world.availability(second.0.0, Availability::Drain);
    for _ in 0..5 {
        world.settle();
        world.clean_up();
    }
    assert_eq!(world.live(1).len(), 1);
    assert_eq!((on(&world, 1), on(&world, second.0.0)), (0, 0));
}

#[test]
fn a_task_that_waits_goes_where_the_service_may_run_now() {
    let mut world = World::with_nodes(1);
    world.service(1, constrained("web", 1, &["node.labels.zone == a"]));
    world.settle();
    assert_eq!(world.task(1, 1).node, None);
    world.update(1, spec("web", 1));
    world.settle();
    assert_eq!(world.task(1, 1).node, Some(node_id(1)), "its own revision once said otherwise");
}
