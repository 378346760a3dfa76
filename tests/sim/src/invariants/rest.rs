//! When faults have stopped, the cluster comes to what was promised, and planning again is empty.

use warren_core::{reap, reconcile_replicated, schedule};

use crate::client::Promise;
use crate::world::World;

pub fn holds(world: &World) -> Result<(), String> {
    let run = world.manager.run.as_ref().filter(|run| run.may_plan).ok_or("no manager leads")?;
    if world.client.uncertain().is_some() {
        return Err("a request is under way".into());
    }
    let mut wanted = 0;
    for (id, promise) in &world.client.promises {
        match promise {
            Promise::Removed if run.state.service(id).is_some() => {
                let tasks: Vec<_> = run.state.tasks_of(id).collect();
                return Err(format!("{id} is not gone, it has {tasks:?}"));
            }
            Promise::Removed => {}
            Promise::Replicas(replicas) => {
                wanted += replicas;
                let counts = run.state.counts(id);
                if counts.ready != *replicas {
                    return Err(format!("{id} has {counts:?}, wanted {replicas} ready"));
                }
            }
        }
        let plans = [reconcile_replicated(&run.state, id, world.time()), reap(&run.state, id)];
        if plans.iter().any(|plan| !plan.is_empty()) {
            return Err(format!("{id} still has {plans:?}"));
        }
    }
    if !schedule(&run.state, world.time()).assignments.is_empty() {
        return Err("there are tasks to place".into());
    }
    let machine = &world.worker.machine;
    let running = machine.values().filter(|remains| remains.container.is_running()).count();
    if running != wanted as usize || machine.len() != running {
        return Err(format!("{running} processes run, wanted {wanted}; on the machine: {machine:?}"));
    }
    Ok(())
}
