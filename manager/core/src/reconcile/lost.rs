//! When a task whose node is down is replaced.

use warren_types::{Service, ServiceMode, Task, Timestamp};

/// When a lost task is replaced; `None` for one that is not lost, and for those of a global service with a task on
/// each node, which wait for their nodes. One for a value of a label also waits until another node with the value
/// may have it.
///
/// A task that stops by itself is replaced only when it has done so, so that its slot does not run twice.
pub(crate) fn replace_at(service: &Service, task: &Task) -> Option<Timestamp> {
    let waits_for_node = service.spec.mode == ServiceMode::Global && service.spec.per.is_none();
    let since = task.lost_since().filter(|_| !waits_for_node)?;
    Some(since + service.spec.replace_after.max(task.revision.task.self_stop_delay()))
}

/// When a lost task will be replaced, as text: `it gets another task at ...`.
pub(crate) fn explain_wait(service: &Service, task: &Task, now: Timestamp) -> Option<String> {
    let until = replace_at(service, task).filter(|until| *until > now && task.is_live())?;
    let by_itself = task.revision.task.self_stop_delay();
    let why = match by_itself > service.spec.replace_after {
        true => "when it has certainly stopped by itself (--on-disconnect)",
        false => "unless its node returns before (--replace-after)",
    };
    Some(format!("it is replaced at {until}, {why}"))
}
