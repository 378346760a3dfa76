//! A task runs only on the node that has its volumes.

use warren_core::State;
use warren_types::{NodeId, TaskId};

use crate::worker::TaskOnMachine;

/// Checks the volumes of a task on a node.
pub fn holds(newest: &State, node: NodeId, task: TaskId, remains: &TaskOnMachine) -> Result<(), String> {
    if !remains.container.is_running() {
        return Ok(());
    }
    for volume in &remains.assignment.volumes {
        let found = newest.volume_by_name(&volume.name);
        if found.is_none_or(|found| found.node != Some(node) || found.removing) {
            return Err(format!(
                "tasks run where their volumes are: {task} runs on {node}, {volume:?} is {found:?}"
            ));
        }
    }
    Ok(())
}
