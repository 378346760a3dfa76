//! Whoever is wanted to run is not stopped by its node, whatever becomes of the managers.

use warren_task::Action;
use warren_types::{Desired, TaskId};

use super::Oracle;
use crate::worker::Worker;

/// It ends a process.
pub fn stops(action: &Action) -> bool {
    matches!(action, Action::SignalStop | Action::Kill | Action::RemoveContainer)
}

/// An agent is about to do this to a task.
pub fn holds(oracle: &Oracle, worker: &Worker, task: TaskId, action: &Action) -> Result<(), String> {
    let runs = worker.machine.get(&task).is_some_and(|remains| remains.container.is_running());
    // What managers of a life that is over wanted may be done until another one is heard.
    if !stops(action) || !runs || worker.life() != oracle.life() {
        return Ok(());
    }
    let wanted = oracle.newest.task(&task).filter(|wanted| wanted.is_live());
    // Whoever minds to be left alone is another matter.
    let wanted = wanted.filter(|wanted| wanted.revision.task.on_disconnect.is_keep());
    let here = wanted.filter(|wanted| wanted.node == Some(worker.id) && wanted.desired == Desired::Running);
    match here {
        Some(wanted) => Err(format!("what is wanted runs on: {action:?} of {wanted:?} on {}", worker.id)),
        None => Ok(()),
    }
}
