//! Every task that is not running says why.

use warren_core::{State, reason};
use warren_types::{Task, TaskState};

pub fn holds(state: &State, task: &Task) -> Result<(), String> {
    let runs = task.observed.state == TaskState::Running && task.is_live() && task.lost_since().is_none();
    if runs || !reason(state, None, task, state.clock()).is_empty() {
        return Ok(());
    }
    Err(format!("every task says why: {task:?} does not say why it is not running"))
}
