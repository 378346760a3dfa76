//! A task runs only where its volumes are.

use warren_core::State;
use warren_types::{NodeId, TaskId};

use crate::worker::Remains;

/// What is there for a task on a node now.
pub fn holds(newest: &State, node: NodeId, task: TaskId, remains: &Remains) -> Result<(), String> {
    if !remains.container.is_running() {
        return Ok(());
    }
    for volume in &remains.assignment.volumes {
        let found = newest.volume_named(&volume.name);
        if found.is_none_or(|found| found.node != Some(node) || found.removing) {
            return Err(format!(
                "tasks run where their volumes are: {task} runs on {node}, {volume:?} is {found:?}"
            ));
        }
    }
    Ok(())
}
