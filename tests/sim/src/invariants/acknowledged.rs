//! What a client was told has happened is there, through every crash.

use crate::client::Promise;
use crate::world::World;

pub fn holds(world: &World) -> Result<(), String> {
    // A manager that replays its log is behind what it promised until it leads again.
    let Some(run) = world.manager.run.as_ref().filter(|run| run.may_plan) else { return Ok(()) };
    for (id, promise) in &world.client.promises {
        if world.client.uncertain() == Some(*id) {
            continue;
        }
        let found = run.state.service(id);
        let kept = match promise {
            Promise::Replicas(replicas) => {
                found.is_some_and(|service| !service.removing && service.spec.replicas() == *replicas)
            }
            Promise::Removed => found.is_none_or(|service| service.removing),
        };
        if !kept {
            return Err(format!("{promise:?} was acknowledged of {id}, found {found:?}"));
        }
    }
    Ok(())
}
