//! When faults have stopped, the cluster comes to what was promised, and there is nothing left to plan.

use std::sync::Arc;

use warren_core::State;
use warren_types::{NodeStatus, Task, TaskId};

use crate::manager::{Key, ask};
use crate::world::World;

pub fn holds(world: &World) -> Result<(), String> {
    let leader = world.leader().ok_or("no manager leads")?;
    let run = world.life(leader).ok_or("no manager leads")?;
    for host in 0..world.managers.len() {
        let applied = world.life(host).map(|run| run.state.applied());
        if applied != Some(run.state.applied()) {
            return Err(format!("manager {host} has applied {applied:?}, not {:?}", run.state.applied()));
        }
    }
    everybody_votes(world)?;
    if world.clients.iter().any(|client| client.uncertain().is_some()) {
        return Err("a request is under way".into());
    }
    if let Some(node) = run.state.nodes().find(|node| node.status != NodeStatus::Ready) {
        return Err(format!("{node:?} is not ready"));
    }
    services(world, &run.state)?;
    nothing_to_plan(world, leader, &run.state)?;
    machines(world, &run.state)
}

fn everybody_votes(world: &World) -> Result<(), String> {
    let members = world.oracle.members();
    let votes = |id: &u64| members.voters.contains(id);
    let all = world.managers.iter().all(|manager| votes(&manager.id));
    let alone = members.voters.len() == world.managers.len();
    if all && alone && members.learners.is_empty() && members.voters_outgoing.is_empty() {
        return Ok(());
    }
    Err(format!("{members:?} are not the managers that run"))
}

fn services(world: &World, state: &State) -> Result<(), String> {
    for (id, promise) in world.clients.iter().flat_map(|client| &client.promises) {
        match promise.replicas {
            None if state.service(id).is_some() => {
                let tasks: Vec<&Arc<Task>> = state.tasks_of(id).collect();
                return Err(format!("{id} is not gone, it has {tasks:?}"));
            }
            None => {}
            Some(replicas) => {
                let counts = state.counts(id);
                if counts.ready != replicas {
                    let tasks: Vec<&Arc<Task>> = state.tasks_of(id).collect();
                    return Err(format!("{id} has {counts:?}, wanted {replicas} ready: {tasks:?}"));
                }
            }
        }
    }
    Ok(())
}

fn nothing_to_plan(world: &World, leader: usize, state: &State) -> Result<(), String> {
    let now = world.stamp(leader);
    let services = state.services().map(|service| service.id);
    let keys = services.flat_map(|id| [Key::Replicas(id), Key::Reap(id)]).chain([Key::Schedule]);
    for key in keys {
        let plan = ask(state, key, now);
        if !plan.is_empty() {
            return Err(format!("{key:?} still plans {plan:?}"));
        }
    }
    Ok(())
}

/// On each machine runs what should run there, and nothing else is left.
fn machines(world: &World, state: &State) -> Result<(), String> {
    for worker in &world.workers {
        let wanted: Vec<TaskId> =
            state.tasks_on(&worker.id).filter(|task| task.is_live()).map(|task| task.id).collect();
        let running = worker.machine.iter().filter(|(_, remains)| remains.container.is_running());
        let running: Vec<TaskId> = running.map(|(id, _)| *id).collect();
        let same = wanted.len() == running.len() && wanted.iter().all(|id| running.contains(id));
        if !same || worker.machine.len() != running.len() {
            let machine = &worker.machine;
            return Err(format!("wanted {wanted:?} on {}, found {machine:?}", worker.id));
        }
    }
    Ok(())
}
