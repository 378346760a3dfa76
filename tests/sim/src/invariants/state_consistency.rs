//! The state never contradicts itself: all of it is checked periodically and at the end.

use warren_core::State;

use crate::simulation::ClusterSimulation;

/// `before` is the state one entry earlier.
pub fn holds(state: &State, before: &State) -> Result<(), String> {
    state.check().map_err(|broken| broken.to_string())?;
    state.check_after(before).map_err(|broken| broken.to_string())
}

/// Checks the state of every manager at the end.
pub fn at_the_end(world: &ClusterSimulation) -> Result<(), String> {
    for host in 0..world.managers.len() {
        if let Some(run) = world.process(host) {
            run.state().check().map_err(|broken| broken.to_string())?;
        }
    }
    Ok(())
}
