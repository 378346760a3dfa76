//! Whoever is wanted to run is not stopped by its node, whatever becomes of the managers.

use warren_task::Action;
use warren_types::{Desired, TaskId};

use super::Oracle;
use crate::worker::Worker;

/// An agent is about to do this to a task.
pub fn holds(oracle: &Oracle, worker: &Worker, task: TaskId, action: &Action) -> Result<(), String> {
    let stops = matches!(action, Action::SignalStop | Action::Kill | Action::RemoveContainer);
    let runs = worker.machine.get(&task).is_some_and(|remains| remains.container.is_running());
    // What managers of a life that is over wanted may be done until another one is heard.
    if !stops || !runs || worker.life() != oracle.life() {
        return Ok(());
    }
    let wanted = oracle.newest.task(&task).filter(|wanted| wanted.is_live() && wanted.lost_since.is_none());
    let here = wanted.filter(|wanted| wanted.node == Some(worker.id) && wanted.desired == Desired::Running);
    match here {
        Some(wanted) => Err(format!("what is wanted runs on: {action:?} of {wanted:?} on {}", worker.id)),
        None => Ok(()),
    }
}
