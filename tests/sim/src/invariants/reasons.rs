//! Every task that is not running says why.

use warren_core::reason;
use warren_types::TaskState;

use crate::world::World;

pub fn holds(world: &World) -> Result<(), String> {
    let Some(state) = world.state() else { return Ok(()) };
    for task in state.tasks() {
        let runs = task.observed.state == TaskState::Running && task.is_live() && task.lost_since.is_none();
        if !runs && reason(state, None, task, world.time()).is_empty() {
            return Err(format!("{task:?} does not say why it is not running"));
        }
    }
    Ok(())
}
