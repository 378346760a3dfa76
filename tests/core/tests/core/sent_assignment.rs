//! Updates of a session; a node that applies all of them has its full assignment.

use std::collections::BTreeMap;

use warren_core::session::{AssignmentDiff, AssignmentUpdate, SentAssignment};
use warren_types::*;

use crate::test_cluster::*;

/// One node with two tasks.
fn running() -> TestCluster {
    let mut cluster = TestCluster::with_nodes(1);
    cluster.service(1, spec("web", 2));
    cluster.reconcile(1);
    cluster.schedule();
    cluster
}

fn version(cluster: &TestCluster) -> AssignmentVersion {
    cluster.state.assignment_version(&node_id(1)).unwrap()
}

/// A node that applies updates.
#[derive(Default)]
struct ModelNode {
    version: AssignmentVersion,
    tasks: BTreeMap<TaskId, TaskAssignment>,
    retained: BTreeMap<TaskId, RetainedLog>,
}

impl ModelNode {
    #[track_caller]
    fn apply(&mut self, word: AssignmentUpdate, cluster: &TestCluster) {
        match word {
            AssignmentUpdate::Full(assignment) => {
                self.version = assignment.version;
                self.tasks = assignment.tasks.into_iter().map(|task| (task.id, task)).collect();
                self.retained = assignment.retained.into_iter().map(|log| (log.task, log)).collect();
            }
            AssignmentUpdate::Diff(AssignmentDiff { base, version, changed, removed, retained }) => {
                assert_eq!(base, self.version, "it lacks what came before");
                self.version = version;
                let ended = |id: &TaskId| retained.iter().any(|log| log.task == *id);
                self.tasks.retain(|id, _| !removed.contains(id) && !ended(id));
                self.retained.retain(|id, _| !removed.contains(id));
                self.tasks.extend(changed.into_iter().map(|task| (task.id, task)));
                self.retained.extend(retained.into_iter().map(|log| (log.task, log)));
            }
            AssignmentUpdate::Current => {}
        }
        let expected = cluster.state.assignment(&node_id(1)).unwrap();
        assert_eq!(
            (self.version, self.tasks.values().cloned().collect(), self.retained.values().cloned().collect()),
            (expected.version, expected.tasks, expected.retained)
        );
    }
}

#[test]
fn first_update_is_full_unless_node_is_current() {
    let cluster = running();
    let has = version(&cluster);
    for (known, is_current) in
        [(has, true), (AssignmentVersion { index: has.index - 1, ..has }, false), (Default::default(), false)]
    {
        let word = SentAssignment::default().first_update(&cluster.state, &node_id(1), known).unwrap();
        assert_eq!(word == AssignmentUpdate::Current, is_current, "{known:?}");
        assert!(is_current || word == AssignmentUpdate::Full(cluster.state.assignment(&node_id(1)).unwrap()));
    }
    assert_eq!(
        SentAssignment::default().first_update(&cluster.state, &node_id(9), has),
        None,
        "nobody knows it"
    );
}

#[test]
fn diffs_add_up_to_full_assignment() {
    let mut cluster = running();
    let (mut sent, mut node, id) = (SentAssignment::default(), ModelNode::default(), node_id(1));
    node.apply(sent.first_update(&cluster.state, &id, node.version).unwrap(), &cluster);
    assert_eq!(sent.update_if_changed(&cluster.state, &id), Some(None), "nothing changed");
    assert_eq!(sent.next_update(&cluster.state, &id, node.version), Some(AssignmentUpdate::Current));
    // Its image is pinned, a task is not desired any more, those of other services are new, and some are
    // removed.
    let pins = TaskReport { image: Some(digest('a')), ..report(task_id(1, 1), 1, TaskState::Starting) };
    let changes: [&dyn Fn(&mut TestCluster); 6] = [
        &|cluster| cluster.report(pins.clone()),
        &|cluster| {
            cluster.scale(1, 1);
            cluster.reconcile(1);
        },
        &|cluster| {
            cluster.service(2, spec("db", 1));
            cluster.reconcile(2);
            cluster.schedule();
        },
        &|cluster| {
            cluster.service(3, spec("api", 3));
            cluster.reconcile(3);
            cluster.schedule();
        },
        &|cluster| {
            cluster.report(TaskReport { removed: true, ..report(task_id(1, 2), 1, TaskState::Shutdown) })
        },
        &|cluster| {
            cluster.report(TaskReport { removed: true, ..report(task_id(3, 2), 1, TaskState::Shutdown) })
        },
    ];
    for change in changes {
        change(&mut cluster);
        let word = sent.update_if_changed(&cluster.state, &id).flatten().expect("something changed");
        assert!(matches!(word, AssignmentUpdate::Diff(_)), "{word:?}");
        node.apply(word, &cluster);
        assert_eq!(sent.update_if_changed(&cluster.state, &id), Some(None), "the second time");
    }
    // A node that reports another version gets the full assignment.
    let word = sent.next_update(&cluster.state, &id, AssignmentVersion::default()).unwrap();
    assert!(matches!(word, AssignmentUpdate::Full(_)));
    node.apply(word, &cluster);
    cluster.remove_node(1);
    assert_eq!(sent.update_if_changed(&cluster.state, &id), None);
}
