//! The state never contradicts itself: one live task per slot, no address or port twice, indexes that agree.

use crate::world::World;

pub fn holds(world: &World) -> Result<(), String> {
    world.state().map_or(Ok(()), |state| state.check().map_err(|broken| broken.to_string()))
}
