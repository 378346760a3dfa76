//! What a codec takes apart can be put together again, and nonsense cannot.

use std::sync::Arc;

use warren_core::State;
use warren_core::state::Parts;
use warren_types::*;

use crate::world::*;

fn parts() -> Parts {
    let mut world = World::with_nodes(2);
    world.service(1, publishing("web", 3, 8080));
    world.service(2, reserving("api", 2, resources(100, 64)));
    world.settle();
    world.observe(task_id(1, 2), TaskState::Failed);
    world.down(2);
    world.settle();
    world.state.export()
}

#[test]
fn a_restored_state_is_the_same() {
    let parts = parts();
    let restored = State::restore(parts.clone()).unwrap();
    restored.check().unwrap();
    assert_eq!(restored.export(), parts);
}

#[test]
fn tasks_share_their_revision_again() {
    let mut parts = parts();
    for task in &mut parts.tasks {
        let copy = Revision::clone(&task.revision);
        Arc::make_mut(task).revision = Arc::new(copy);
    }
    let restored = State::restore(parts.clone()).unwrap();
    assert_eq!(restored.export(), parts);
    for task in restored.tasks() {
        assert!(Arc::ptr_eq(&task.revision, &restored.service(&task.id.service).unwrap().revision));
    }
}

/// A damaged snapshot is refused.
#[track_caller]
fn check(damage: impl FnOnce(&mut Parts), wanted: &str) {
    let mut parts = parts();
    damage(&mut parts);
    let broken = State::restore(parts).unwrap_err().to_string();
    assert!(broken.contains(wanted), "{broken}");
}

#[test]
fn contradictions_are_found() {
    fn task(parts: &mut Parts) -> &mut Task {
        Arc::make_mut(&mut parts.tasks[0])
    }
    fn node(parts: &mut Parts) -> &mut Node {
        Arc::make_mut(&mut parts.nodes[0].0)
    }
    check(|parts| parts.cluster = None, "without a cluster");
    check(|parts| drop(parts.services.remove(0)), "without a service");
    check(|parts| drop(parts.nodes.remove(0)), "on a node that was removed");
    check(|parts| parts.subnets = 0, "was never given");
    check(|parts| parts.applied.index = 0, "is of a later entry");
    check(|parts| parts.clock = Timestamp(0), "in the future");
    let crowd = |parts: &mut Parts| parts.tasks.iter_mut().for_each(|task| Arc::make_mut(task).slot = 2);
    check(crowd, "is the third live one of slot 2");
    check(|parts| task(parts).slot = 0, "has slot 0");
    check(|parts| task(parts).address = Some([10, 0, 0, 1].into()), "is not for tasks of");
    check(|parts| task(parts).address = None, "with None");
    check(|parts| task(parts).lost_since = Some(Timestamp(1)), "is lost since");
    check(|parts| task(parts).observed.removed = true, "is removed and");
    check(|parts| task(parts).observed.state = TaskState::Starting, "is ready and");
    check(
        |parts| Arc::make_mut(&mut task(parts).revision).number = 1 << 40,
        "which its service does not know",
    );
    check(|parts| Arc::make_mut(&mut task(parts).revision).ports.clear(), "has another revision 1");
    check(|parts| task(parts).id.number = 99, "has a number to come");
    check(|parts| node(parts).subnet = "10.0.1.0/24".parse().unwrap(), "was given twice");
    check(|parts| node(parts).name = "node-2".parse().unwrap(), "two nodes are called node-2");
    check(|parts| node(parts).session = 0, "in session 0");
    let taken = |parts: &mut Parts| {
        let address =
            parts.tasks.iter().filter_map(|t| t.address.filter(|a| a.octets()[2] == 0)).collect::<Vec<_>>();
        for shared in &mut parts.tasks {
            let task = Arc::make_mut(shared);
            if task.address == Some(address[1]) {
                task.address = Some(address[0]);
            }
        }
    };
    check(taken, "is held by");
}
