//! Every task that is not running has a reason.

use warren_core::{State, explain_task};
use warren_types::{Task, TaskState};

pub fn holds(state: &State, task: &Task) -> Result<(), String> {
    let runs = task.observed.state == TaskState::Running && task.is_live() && task.lost_since().is_none();
    if runs || !explain_task(state, None, task, state.clock()).is_empty() {
        return Ok(());
    }
    Err(format!("every task has a reason: {task:?} is not running and has no reason"))
}
