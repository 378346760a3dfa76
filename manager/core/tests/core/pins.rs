//! The image of a revision is what the first worker said, on every node.

use warren_types::*;

use crate::world::*;

fn resolved(task: TaskId, image: ImageDigest) -> TaskReport {
    TaskReport { image: Some(image), ready: false, ..report(task, 0, TaskState::Preparing) }
}

/// What the task's worker is told.
fn told(world: &World, number: u64) -> Option<ImageDigest> {
    let node = world.task(1, number).node.unwrap();
    let tasks = world.state.assignment(&node).unwrap().tasks;
    tasks.into_iter().find(|task| task.id.number == number).unwrap().digest
}

fn placed() -> World {
    let mut world = World::with_nodes(2);
    world.service(1, spec("web", 2));
    world.reconcile(1);
    world.schedule();
    world
}

#[test]
fn the_first_word_counts_for_all() {
    let mut world = placed();
    let before: Vec<_> = (1..=2).map(|node| world.state.assignment_version(&node_id(node))).collect();
    assert_eq!(told(&world, 1), None);
    let version = world.state.service(&service_id(1)).unwrap().version;
    world.report(resolved(task_id(1, 1), digest('a')));
    for (number, before) in (1..=2).zip(before) {
        assert_eq!(told(&world, number), Some(digest('a')));
        let node = world.task(1, number).node.unwrap();
        assert!(world.state.assignment_version(&node) > before, "its node is told");
    }
    let once = world.state.export();
    world.report(resolved(task_id(1, 2), digest('b')));
    world.report(resolved(task_id(1, 1), digest('b')));
    assert_eq!((told(&world, 1), told(&world, 2)), (Some(digest('a')), Some(digest('a'))));
    assert_eq!(world.state.export().services, once.services);
    assert_eq!(world.state.service(&service_id(1)).unwrap().version, version, "no person changed it");
}

#[test]
fn another_revision_is_another_image_and_a_rollback_keeps_its_own() {
    let mut world = placed();
    world.report(resolved(task_id(1, 1), digest('a')));
    world.settle();
    world.update_image(1, "demo:2");
    world.settle();
    assert_eq!(told(&world, 3), None);
    world.report(resolved(task_id(1, 3), digest('b')));
    assert_eq!((told(&world, 1), told(&world, 3)), (Some(digest('a')), Some(digest('b'))));
    world.rollback(1, None);
    let service = world.state.service(&service_id(1)).unwrap();
    assert_eq!(service.pins.get(&3), Some(&digest('a')));
}

#[test]
fn a_reference_with_a_digest_is_pinned_by_itself() {
    let mut world = World::with_nodes(1);
    let mut wanted = spec("web", 1);
    wanted.task.image = format!("demo@{}", digest('c')).parse().unwrap();
    world.service(1, wanted);
    world.reconcile(1);
    world.schedule();
    world.report(resolved(task_id(1, 1), digest('d')));
    assert_eq!(told(&world, 1), Some(digest('c')));
    world.update_image(1, &format!("demo@{}", digest('e')));
    let pins = &world.state.service(&service_id(1)).unwrap().pins;
    assert_eq!(*pins, [(1, digest('c')), (2, digest('e'))].into());
}

#[test]
fn pins_survive_a_snapshot_and_go_with_their_revision() {
    let mut world = placed();
    world.report(resolved(task_id(1, 1), digest('a')));
    let restored = warren_core::State::restore(world.state.export()).unwrap();
    assert_eq!(restored, world.state);
    world.scale(1, 0);
    world.settle();
    world.clean_up();
    world.reap(1);
    for number in 2..=12 {
        world.update_image(1, &format!("demo:{number}"));
    }
    let service = world.state.service(&service_id(1)).unwrap();
    assert!(service.pins.is_empty() && service.history[0].number == 2, "{:?}", service.history[0]);
}
