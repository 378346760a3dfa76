//! When a task whose node is down is given up, and another takes its place.

use warren_types::{Mode, Service, Task, Timestamp};

/// When another task takes the place of a lost one; `None` for one that is not lost, and for those of a global
/// service, which wait for their nodes.
///
/// A task that stops by itself is given up only when it has done so, so that its slot does not run twice.
pub(crate) fn given_up_at(service: &Service, task: &Task) -> Option<Timestamp> {
    let since = task.lost_since().filter(|_| service.spec.mode != Mode::Global)?;
    Some(since + service.spec.replace_after.max(task.revision.task.stopped_by_itself_after()))
}

/// What a task is waited for that is lost and not given up yet, in words: `it gets another task at ...`.
pub(crate) fn awaited(service: &Service, task: &Task, now: Timestamp) -> Option<String> {
    let until = given_up_at(service, task).filter(|until| *until > now && task.is_live())?;
    let by_itself = task.revision.task.stopped_by_itself_after();
    let why = match by_itself > service.spec.replace_after {
        true => "when this one has stopped by itself for sure (--on-disconnect)",
        false => "unless its node is back before (--replace-after)",
    };
    Some(format!("another takes its place at {until}, {why}"))
}
