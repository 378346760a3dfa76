//! What makes one task as good as another.

use warren_types::spec::RestartCondition;
use warren_types::{Revision, Task, TaskState};

/// Tasks of the two are alike, so that none has to be replaced because of the other. Where they may run is left
/// out: a task that may stay where it is stays.
pub(crate) fn same_shape(one: &Revision, other: &Revision) -> bool {
    one.number == other.number
        || (one.forced == other.forced
            && one.ports == other.ports
            && one.contents == other.contents
            && one.labels == other.labels
            && one.task == other.task)
}

/// The task ended in a way after which its slot wants no further one: it did what it had to do, or may not be
/// started again.
pub(crate) fn finishes(task: &Task) -> bool {
    match task.revision.task.restart.condition {
        RestartCondition::Any => false,
        RestartCondition::OnFailure => task.observed.state == TaskState::Complete,
        RestartCondition::None => matches!(task.observed.state, TaskState::Complete | TaskState::Failed),
    }
}
