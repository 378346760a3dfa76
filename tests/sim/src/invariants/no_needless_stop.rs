//! A node never stops a task that is desired to run, whatever happens to the managers.

use warren_task::Action;
use warren_types::{DesiredTaskState, TaskId};

use super::InvariantOracle;
use crate::worker::SimWorker;

/// The action ends a process.
pub fn stops(action: &Action) -> bool {
    matches!(action, Action::SignalStop | Action::Kill | Action::RemoveContainer)
}

/// An agent starts this action on a task.
pub fn holds(
    oracle: &InvariantOracle,
    worker: &SimWorker,
    task: TaskId,
    action: &Action,
) -> Result<(), String> {
    let runs = worker.machine.get(&task).is_some_and(|remains| remains.container.is_running());
    // An agent may follow assignments of a superseded incarnation until it has a session in the current one.
    if !stops(action) || !runs || worker.incarnation() != oracle.incarnation() {
        return Ok(());
    }
    let expected = oracle.newest.task(&task).filter(|expected| expected.is_live());
    // Tasks with a disconnect timeout are checked in `disconnected.rs`.
    let expected = expected.filter(|expected| expected.revision.task.on_disconnect.is_keep());
    let here = expected
        .filter(|expected| expected.node == Some(worker.id) && expected.desired == DesiredTaskState::Running);
    match here {
        Some(expected) => {
            Err(format!("desired tasks keep running: {action:?} of {expected:?} on {}", worker.id))
        }
        None => Ok(()),
    }
}
