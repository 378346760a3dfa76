//! What is on a machine belongs to a task that holds its address: nothing is given twice before it was removed.

use std::collections::BTreeMap;

use crate::world::World;

pub fn holds(world: &World) -> Result<(), String> {
    let mut addresses = BTreeMap::new();
    for (task, remains) in &world.worker.machine {
        let address = remains.assignment.address;
        if let Some(other) = addresses.insert(address, task).filter(|_| remains.network) {
            return Err(format!("{address} is on the machine for {task} and for {other}"));
        }
        let known = world.manager.run.as_ref().filter(|run| run.may_plan);
        if known.is_some_and(|run| run.state.task(task).is_none_or(|task| task.observed.removed)) {
            return Err(format!("{task} was said to be removed, found {remains:?}"));
        }
    }
    Ok(())
}
