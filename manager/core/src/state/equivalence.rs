//! When tasks of two revisions are equivalent.

use warren_types::spec::RestartCondition;
use warren_types::{PublishedPort, Revision, Task, TaskState};

/// Whether tasks of the two revisions are equivalent, so that none has to be replaced because of the other.
/// Placement is not compared: a task whose node still satisfies it stays. Nor are the options by which nodes select a
/// task for a connection.
pub(crate) fn is_equivalent(one: &Revision, other: &Revision) -> bool {
    one.number == other.number
        || (one.force_count == other.force_count
            && mappings(one).eq(mappings(other))
            && one.secret_objects == other.secret_objects
            && one.labels == other.labels
            && one.task == other.task)
}

fn mappings(revision: &Revision) -> impl Iterator<Item = PublishedPort> {
    revision.ports.iter().map(PublishedPort::mapping)
}

/// Whether the task ended in a way after which its slot needs no further one: it completed, or must not be
/// restarted.
pub(crate) fn is_final(task: &Task) -> bool {
    match task.revision.task.restart.condition {
        RestartCondition::Any => false,
        RestartCondition::OnFailure => task.observed.state == TaskState::Complete,
        RestartCondition::None => matches!(task.observed.state, TaskState::Complete | TaskState::Failed),
    }
}
