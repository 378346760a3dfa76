//! What a node is told in a session, and that whoever takes it all over has what it should have.

use std::collections::BTreeMap;

use warren_core::session::{Diff, Told, Word};
use warren_types::*;

use crate::world::*;

/// One node with two tasks.
fn running() -> World {
    let mut world = World::with_nodes(1);
    world.service(1, spec("web", 2));
    world.reconcile(1);
    world.schedule();
    world
}

fn version(world: &World) -> AssignmentVersion {
    world.state.assignment_version(&node_id(1)).unwrap()
}

/// A node that does what it is told.
#[derive(Default)]
struct Node {
    version: AssignmentVersion,
    tasks: BTreeMap<TaskId, TaskAssignment>,
}

impl Node {
    #[track_caller]
    fn takes(&mut self, word: Word, world: &World) {
        match word {
            Word::Full(assignment) => {
                self.version = assignment.version;
                self.tasks = assignment.tasks.into_iter().map(|task| (task.id, task)).collect();
            }
            Word::Diff(Diff { base, version, changed, removed }) => {
                assert_eq!(base, self.version, "it lacks what came before");
                self.version = version;
                self.tasks.retain(|id, _| !removed.contains(id));
                self.tasks.extend(changed.into_iter().map(|task| (task.id, task)));
            }
            Word::Current => {}
        }
        let wanted = world.state.assignment(&node_id(1)).unwrap();
        assert_eq!((self.version, self.tasks.values().cloned().collect()), (wanted.version, wanted.tasks));
    }
}

#[test]
fn a_session_begins_with_everything_unless_the_node_has_it() {
    let world = running();
    let has = version(&world);
    for (known, is_current) in
        [(has, true), (AssignmentVersion { index: has.index - 1, ..has }, false), (Default::default(), false)]
    {
        let word = Told::default().open(&world.state, &node_id(1), known).unwrap();
        assert_eq!(word == Word::Current, is_current, "{known:?}");
        assert!(is_current || word == Word::Full(world.state.assignment(&node_id(1)).unwrap()));
    }
    assert_eq!(Told::default().open(&world.state, &node_id(9), has), None, "nobody knows it");
}

#[test]
fn differences_add_up_to_what_the_node_should_have() {
    let mut world = running();
    let (mut told, mut node, id) = (Told::default(), Node::default(), node_id(1));
    node.takes(told.open(&world.state, &id, node.version).unwrap(), &world);
    assert_eq!(told.news(&world.state, &id), Some(None), "nothing changed");
    assert_eq!(told.answer(&world.state, &id, node.version), Some(Word::Current));
    // Its image becomes known, a task is not wanted any more, those of other services are new, and some are gone.
    let pins = TaskReport { image: Some(digest('a')), ..report(task_id(1, 1), 1, TaskState::Starting) };
    let changes: [&dyn Fn(&mut World); 6] = [
        &|world| world.report(pins.clone()),
        &|world| {
            world.scale(1, 1);
            world.reconcile(1);
        },
        &|world| {
            world.service(2, spec("db", 1));
            world.reconcile(2);
            world.schedule();
        },
        &|world| {
            world.service(3, spec("api", 3));
            world.reconcile(3);
            world.schedule();
        },
        &|world| world.report(TaskReport { removed: true, ..report(task_id(1, 2), 1, TaskState::Shutdown) }),
        &|world| world.report(TaskReport { removed: true, ..report(task_id(3, 2), 1, TaskState::Shutdown) }),
    ];
    for change in changes {
        change(&mut world);
        let word = told.news(&world.state, &id).flatten().expect("something changed");
        assert!(matches!(word, Word::Diff(_)), "{word:?}");
        node.takes(word, &world);
        assert_eq!(told.news(&world.state, &id), Some(None), "the second time");
    }
    // Whoever says that it has something else gets everything.
    let word = told.answer(&world.state, &id, AssignmentVersion::default()).unwrap();
    assert!(matches!(word, Word::Full(_)));
    node.takes(word, &world);
    world.remove_node(1);
    assert_eq!(told.news(&world.state, &id), None);
}
