//! The digest through commands and snapshots. Its unit tests show that every field counts, and the invariants
//! of every test of this crate compare it with the recomputed one.

use std::sync::Arc;

use warren_core::State;
use warren_types::*;

use crate::test_cluster::*;

fn world() -> TestCluster {
    let mut world = TestCluster::with_nodes(2);
    world.service(1, publishing("web", 3, 8080));
    world.settle();
    world
}

#[test]
fn state_change_changes_digest() {
    let mut world = world();
    let mut seen = vec![world.state.digest().value];
    let mut look = |world: &TestCluster, what: &str| {
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
    world.set_down(2);
    look(&world, "lose a node");
    world.remove(1);
    look(&world, "remove");
}

#[test]
fn unchanged_command_keeps_digest_value() {
    let mut world = world();
    let before = world.state.digest();
    world.scale(1, 3);
    world.refuse(warren_core::Command::DeleteService { term: TERM, id: service_id(1) });
    let after = world.state.digest();
    assert_eq!((after.value, after.index), (before.value, before.index + 2));
    assert!(!after.conflicts_with(&before));
}

#[test]
fn diverged_states_conflict_at_later_entries() {
    let mut right = world();
    let mut wrong =
        TestCluster { state: right.state.clone(), now: right.now, changes: Vec::new(), events: Vec::new() };
    // One of them applies the report of another state for the same entry.
    right.observe(task_id(1, 1), TaskState::Complete);
    wrong.observe(task_id(1, 1), TaskState::Failed);
    for replicas in 4..8 {
        assert!(right.state.digest().conflicts_with(&wrong.state.digest()));
        right.scale(1, replicas);
        wrong.scale(1, replicas);
    }
}

#[test]
fn corrupted_object_is_detected_on_write() {
    let right = world();
    // A task differs from what was applied, like after a flipped bit in memory.
    let mut parts = right.state.export();
    parts.digest = None;
    let task = Arc::make_mut(&mut parts.tasks[0]);
    task.rare.update(|special| special.not_before = Some(Timestamp(1)));
    let wrong = State::restore(parts).unwrap();
    assert!(right.state.digest().conflicts_with(&wrong.digest()));
    let mut parts = wrong.export();
    parts.digest = Some(right.state.digest().value);
    let refused = State::restore(parts).unwrap_err().to_string();
    assert!(refused.contains("the digest of its content is"), "{refused}");
}

#[test]
fn snapshot_plus_log_tail_equals_full_log() {
    let mut whole = world();
    let mut joined = TestCluster {
        state: State::restore(whole.state.export()).unwrap(),
        now: whole.now,
        changes: Vec::new(),
        events: Vec::new(),
    };
    assert_eq!(whole.state.digest(), joined.state.digest());
    for world in [&mut whole, &mut joined] {
        world.observe(task_id(1, 2), TaskState::Failed);
        world.set_down(2);
        world.settle();
        world.remove(1);
        world.clean_up();
    }
    assert_eq!(whole.state.digest(), joined.state.digest());
    assert_eq!(whole.state, joined.state);
}
