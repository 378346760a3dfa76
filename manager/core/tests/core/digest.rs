//! The digest through commands and snapshots. That every field counts is shown beside its code, and that it
//! always is the one of the content is an invariant, so that every test of this crate holds it to that.

use std::sync::Arc;

use warren_core::State;
use warren_types::*;

use crate::world::*;

fn world() -> World {
    let mut world = World::with_nodes(2);
    world.service(1, publishing("web", 3, 8080));
    world.settle();
    world
}

#[test]
fn what_changes_a_state_changes_its_digest() {
    let mut world = world();
    let mut seen = vec![world.state.digest().value];
    let mut look = |world: &World, what: &str| {
        let digest = world.state.digest();
        assert_eq!(digest.index, world.state.applied().index);
        assert!(!seen.contains(&digest.value), "{what}");
        seen.push(digest.value);
    };
    world.scale(1, 4);
    look(&world, "scale");
    world.reconcile(1);
    look(&world, "create a task");
    world.schedule();
    look(&world, "place it");
    world.observe(task_id(1, 4), TaskState::Starting);
    look(&world, "report");
    world.connect(1);
    look(&world, "open a session");
    world.down(2);
    look(&world, "lose a node");
    world.remove(1);
    look(&world, "remove");
}

#[test]
fn what_changes_nothing_leaves_the_value_and_moves_the_index() {
    let mut world = world();
    let before = world.state.digest();
    world.scale(1, 3);
    world.refuse(warren_core::Command::DeleteService { term: TERM, id: service_id(1) });
    let after = world.state.digest();
    assert_eq!((after.value, after.index), (before.value, before.index + 2));
    assert!(!after.contradicts(&before));
}

#[test]
fn members_that_went_apart_contradict_each_other_at_every_later_entry() {
    let mut right = world();
    let mut wrong = World { state: right.state.clone(), now: right.now };
    // One of them takes the report of another state for the same entry.
    right.observe(task_id(1, 1), TaskState::Complete);
    wrong.observe(task_id(1, 1), TaskState::Failed);
    for replicas in 4..8 {
        assert!(right.state.digest().contradicts(&wrong.state.digest()));
        right.scale(1, replicas);
        wrong.scale(1, replicas);
    }
}

#[test]
fn an_object_that_changed_by_itself_is_found_when_it_is_written() {
    let right = world();
    // A task's content is not what was applied: as a flipped bit in memory would make it.
    let mut parts = right.state.export();
    parts.digest = None;
    let task = Arc::make_mut(&mut parts.tasks[0]);
    task.special.change(|special| special.not_before = Some(Timestamp(1)));
    let wrong = State::restore(parts).unwrap();
    assert!(right.state.digest().contradicts(&wrong.digest()));
    let mut parts = wrong.export();
    parts.digest = Some(right.state.digest().value);
    let refused = State::restore(parts).unwrap_err().to_string();
    assert!(refused.contains("the digest of its content is"), "{refused}");
}

#[test]
fn a_snapshot_and_the_tail_give_what_the_whole_log_gives() {
    let mut whole = world();
    let mut joined = World { state: State::restore(whole.state.export()).unwrap(), now: whole.now };
    assert_eq!(whole.state.digest(), joined.state.digest());
    for world in [&mut whole, &mut joined] {
        world.observe(task_id(1, 2), TaskState::Failed);
        world.down(2);
        world.settle();
        world.remove(1);
        world.clean_up();
    }
    assert_eq!(whole.state.digest(), joined.state.digest());
    assert_eq!(whole.state, joined.state);
}
