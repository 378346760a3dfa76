//! The state never contradicts itself: everything of it is checked now and then, and at the end.

use warren_core::State;

use crate::world::World;

/// `before` is the state one entry earlier.
pub fn holds(state: &State, before: &State) -> Result<(), String> {
    state.check().map_err(|broken| broken.to_string())?;
    state.check_after(before).map_err(|broken| broken.to_string())
}

/// Every manager's state, when all is over.
pub fn at_the_end(world: &World) -> Result<(), String> {
    for host in 0..world.managers.len() {
        if let Some(run) = world.life(host) {
            run.state.check().map_err(|broken| broken.to_string())?;
        }
    }
    Ok(())
}
