//! Updates: slot by slot, the replacement first, and stopped by a failure.

use std::time::Duration;

use warren_core::{Command, Rollout, rollout};
use warren_types::*;

use crate::world::*;

/// A running service of `replicas` on `nodes`, which shall run another image.
fn updating(nodes: u128, replicas: u32) -> World {
    let mut world = World::with_nodes(nodes);
    world.service(1, spec("web", replicas));
    world.settle();
    world.update_image(1, "demo:2");
    world
}

fn progress(world: &World) -> Rollout {
    rollout(&world.state, world.state.service(&service_id(1)).unwrap())
}

/// Slots that have no task that runs, and slots with two live tasks.
fn slots(world: &World) -> (Vec<u32>, Vec<u32>) {
    let live: Vec<_> = world.state.tasks().filter(|task| task.is_live()).collect();
    let replicas = world.state.service(&service_id(1)).unwrap().spec.replicas().unwrap();
    let runs = |slot: u32| live.iter().any(|task| task.slot == slot && task.observed.ready);
    let two = |slot: &u32| live.iter().filter(|task| task.slot == *slot).count() == 2;
    ((1..=replicas).filter(|slot| !runs(*slot)).collect(), (1..=replicas).filter(two).collect())
}

/// Lets everybody work until the update does not go on any more, at most one slot at a time and none without a
/// running task.
#[track_caller]
fn go_on(world: &mut World) {
    for _ in 0..100 {
        let before = world.state.digest().value;
        world.settle();
        world.clean_up();
        let (idle, moving) = slots(world);
        assert_eq!(idle, [0u32; 0], "slots without a running task");
        assert!(moving.len() <= 1, "slots {moving:?} at a time");
        world.reap(1);
        if world.state.digest().value == before {
            return;
        }
    }
    panic!("it never ends: {:?}", progress(world));
}

fn revisions(world: &World) -> Vec<u64> {
    let live = world.live(1).into_iter();
    live.map(|(_, number)| world.task(1, number).revision.number).collect()
}

#[test]
fn an_update_goes_slot_by_slot_with_the_replacement_first() {
    let mut world = updating(2, 3);
    let plan = world.reconcile(1);
    assert_eq!(plan.commands.len(), 1, "{plan:?}");
    assert_eq!(world.live(1), [(1, 1), (1, 4), (2, 2), (3, 3)]);
    let new = world.task(1, 4);
    assert_eq!((new.desired, new.revision.number), (Desired::Ready, 2));
    world.schedule();
    assert!(world.reconcile(1).is_empty(), "it is not prepared yet");
    world.report(report(task_id(1, 4), 0, TaskState::Ready));
    world.reconcile(1);
    assert_eq!((world.task(1, 4).desired, world.task(1, 1).desired), (Desired::Running, Desired::Running));
    world.observe(task_id(1, 4), TaskState::Starting);
    assert!(world.reconcile(1).is_empty(), "it does not run yet");
    let waits = progress(&world).waiting.unwrap();
    assert_eq!(waits, "the new task of web.1 is being started on node node-2");
    world.observe(task_id(1, 4), TaskState::Running);
    let plan = world.reconcile(1);
    assert!(plan.is_empty() && plan.recheck_after == Some(SETTLED), "it may end at once: {plan:?}");
    world.wait(SETTLED);
    world.reconcile(1);
    assert_eq!(world.task(1, 1).desired, Desired::Remove);
    assert_eq!(world.live(1), [(1, 4), (2, 2), (2, 5), (3, 3)], "the next slot begins");
    assert_eq!((progress(&world).updated, progress(&world).total), (1, 3));
    go_on(&mut world);
    assert_eq!(revisions(&world), [2, 2, 2]);
    assert_eq!(progress(&world), Rollout { updated: 3, total: 3, stopped: None, waiting: None });
}

#[test]
fn an_update_leaves_tasks_spread_as_they_were() {
    let mut world = updating(3, 6);
    go_on(&mut world);
    for node in 1..=3 {
        assert_eq!(world.state.tasks_on(&node_id(node)).count(), 2, "node {node}");
    }
    assert_eq!(revisions(&world), [2; 6]);
}

#[test]
fn a_failure_stops_the_update_and_the_old_tasks_go_on() {
    for (end, what) in [(TaskState::Failed, "failed"), (TaskState::Rejected, "was rejected")] {
        let mut world = updating(2, 3);
        world.settle();
        let exit = Some(Exit { code: 1, out_of_memory: false });
        let reason = "exited with code 1".to_string();
        world.report(TaskReport { exit, reason, ..report(task_id(1, 4), 1, end) });
        world.settle();
        world.clean_up();
        world.wait(Duration::from_secs(3600));
        assert!(world.reconcile(1).is_empty());
        assert_eq!(world.live(1), [(1, 1), (2, 2), (3, 3)]);
        let Rollout { updated, total, stopped, waiting } = progress(&world);
        assert_eq!((updated, total, waiting), (0, 3, None));
        let wanted = format!(
            "web.1 {what}: exited with code 1; the update stopped: fix it with `warren service update web`, or go \
             back with `warren service rollback web`"
        );
        assert_eq!(stopped, Some(wanted));
        // The next revision goes on.
        world.update_image(1, "demo:3");
        assert_eq!(progress(&world).stopped, None);
        go_on(&mut world);
        assert_eq!(revisions(&world), [3, 3, 3]);
    }
}

#[test]
fn a_slot_that_an_update_reached_is_filled_also_when_it_stopped() {
    let mut world = updating(2, 3);
    for _ in 0..3 {
        world.settle();
    }
    world.clean_up();
    assert_eq!(revisions(&world), [2, 1, 2, 1]);
    world.observe(task_id(1, 4), TaskState::Failed);
    world.reconcile(1);
    world.clean_up();
    assert_eq!(world.live(1), [(1, 6), (2, 2), (3, 3)], "the replacement of slot 2 is called off");
    world.wait(Duration::from_secs(60));
    world.settle();
    world.settle();
    assert_eq!((world.live(1).len(), world.task(1, 6).observed.ready), (3, true));
    assert!(progress(&world).stopped.is_some(), "until somebody looks at it");
}

#[test]
fn a_rollback_replaces_only_what_the_update_had_reached() {
    let mut world = updating(2, 3);
    for _ in 0..4 {
        world.settle();
    }
    world.clean_up();
    assert!(revisions(&world).contains(&2));
    world.rollback(1, None);
    assert_eq!(world.state.service(&service_id(1)).unwrap().revision.number, 3);
    go_on(&mut world);
    let numbers = revisions(&world);
    assert!(numbers.iter().all(|number| *number != 2) && numbers.contains(&1), "{numbers:?}");
    assert_eq!(progress(&world).updated, 3);
}

#[test]
fn the_same_again_by_force_replaces_every_task() {
    let mut world = World::with_nodes(2);
    world.service(1, spec("web", 2));
    world.settle();
    let (id, at) = (service_id(1), world.now);
    let version = Some(world.version(1));
    world.accept(Command::UpdateService { id, version, spec: spec("web", 2), force: true, at });
    go_on(&mut world);
    assert_eq!((revisions(&world), progress(&world).updated), (vec![2, 2], 2));
}

#[test]
fn a_further_update_begins_again_with_the_slot_under_way() {
    let mut world = updating(2, 2);
    world.settle();
    assert_eq!(world.live(1), [(1, 1), (1, 3), (2, 2)]);
    world.update_image(1, "demo:3");
    world.reconcile(1);
    assert_eq!(world.live(1), [(1, 1), (1, 4), (2, 2)]);
    assert_eq!(world.task(1, 3).desired, Desired::Remove);
    go_on(&mut world);
    assert_eq!(revisions(&world), [3, 3]);
}

#[test]
fn tasks_without_a_node_are_replaced_at_once() {
    let mut world = World::with_nodes(1);
    world.service(1, reserving("web", 3, resources(0, 4096)));
    world.settle();
    assert_eq!(world.state.counts(&service_id(1)).running, 0);
    world.update(1, reserving("web", 3, resources(0, 16)));
    world.settle();
    assert_eq!((revisions(&world), world.state.counts(&service_id(1)).ready), (vec![2, 2, 2], 3));
}

#[test]
fn a_slot_whose_old_task_ends_meanwhile_goes_on_with_the_new_one() {
    let mut world = updating(2, 1);
    world.settle();
    world.observe(task_id(1, 1), TaskState::Failed);
    world.reconcile(1);
    assert_eq!((world.live(1), world.task(1, 2).desired), (vec![(1, 2)], Desired::Running));
    world.settle();
    assert!(world.task(1, 2).observed.ready);
}

#[test]
fn a_slot_whose_old_task_is_lost_meanwhile_goes_on_with_the_new_one() {
    // The scheduler spreads: the old task and the new one are on different nodes.
    let mut world = updating(2, 1);
    world.settle();
    let (old, new) = (world.task(1, 1).node.unwrap(), world.task(1, 2).node.unwrap());
    assert_ne!(old, new);
    world.down(old.0.0);
    world.reconcile(1);
    assert_eq!((world.live(1), world.task(1, 2).desired), (vec![(1, 2)], Desired::Running));
    // And the new one, lost with its node, is made anew.
    let mut world = updating(2, 1);
    world.settle();
    let (old, new) = (world.task(1, 1).node.unwrap(), world.task(1, 2).node.unwrap());
    assert_ne!(old, new);
    world.down(new.0.0);
    world.reconcile(1);
    assert_eq!(world.live(1), [(1, 1), (1, 3)]);
}

#[test]
fn with_one_task_per_node_the_predecessor_does_not_count() {
    let mut world = World::with_nodes(3);
    let mut wanted = spec("web", 3);
    wanted.placement.max_per_node = Some(1);
    world.service(1, wanted);
    world.settle();
    world.update_image(1, "demo:2");
    go_on(&mut world);
    assert_eq!(revisions(&world), [2, 2, 2]);
    for node in 1..=3 {
        assert_eq!(world.state.tasks_on(&node_id(node)).count(), 1, "node {node}");
    }
}

#[test]
fn fewer_tasks_per_node_moves_those_that_are_too_many() {
    let mut world = World::with_nodes(1);
    world.service(1, spec("web", 3));
    world.settle();
    world.node(2, resources(4000, 1024));
    let mut wanted = spec("web", 3);
    wanted.placement.max_per_node = Some(2);
    world.update(1, wanted);
    go_on(&mut world);
    let on = |node| world.state.tasks_on(&node_id(node)).count();
    assert_eq!((on(1), on(2), revisions(&world)), (2, 1, vec![1, 1, 2]), "those that may stay stay");
}

#[test]
fn a_scaled_down_service_updates_what_is_left() {
    let mut world = updating(2, 4);
    world.settle();
    world.scale(1, 1);
    go_on(&mut world);
    assert_eq!(revisions(&world), [2]);
    world.scale(1, 0);
    world.settle();
    assert_eq!(progress(&world), Rollout::default());
}
