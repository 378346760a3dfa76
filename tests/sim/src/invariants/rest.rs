//! When faults have stopped, the cluster comes to what was promised, and there is nothing left to plan.

use std::sync::Arc;

use warren_core::{State, rollout};
use warren_types::{Availability, Member, Node, NodeStatus, ServiceId, Task, TaskId};

use crate::client::Client;
use crate::manager::{Key, Manager, ask};
use crate::worker::Remains;
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
    if world.clients.iter().any(Client::is_waiting) {
        return Err("a request is under way".into());
    }
    let as_it_was = |node: &Arc<Node>| node.availability == Availability::Active && node.labels.is_empty();
    if let Some(node) = run.state.nodes().find(|node| node.status != NodeStatus::Ready || !as_it_was(node)) {
        return Err(format!("{node:?} is not ready"));
    }
    workers_know_the_managers(world, &run.state)?;
    services(world, &run.state)?;
    nothing_to_plan(world, leader, &run.state)?;
    machines(world, &run.state)
}

fn everybody_votes(world: &World) -> Result<(), String> {
    let members = world.oracle.members();
    let votes = |id: &u64| members.voters.contains(id);
    let known = |manager: &Manager| {
        let member = world.oracle.newest.member(manager.id);
        member
            .is_some_and(|it| it.id == manager.key && it.address == manager.address && it.replaces.is_none())
    };
    let all = world.managers.iter().all(|manager| votes(&manager.id) && known(manager));
    let count = world.managers.len();
    let alone = members.voters.len() == count && world.oracle.newest.members().count() == count;
    if all && alone && members.learners.is_empty() && members.voters_outgoing.is_empty() {
        return Ok(());
    }
    let listed: Vec<&Arc<Member>> = world.oracle.newest.members().collect();
    Err(format!("{members:?} and {listed:?} are not the managers that run"))
}

/// Each worker has what managers know, in the cluster's present life, and knows where they are.
fn workers_know_the_managers(world: &World, state: &State) -> Result<(), String> {
    for worker in &world.workers {
        let wanted = state.node_settings(&worker.id).map(|settings| settings.managers).unwrap_or_default();
        let version = worker.told().map(|version| version.incarnation);
        if wanted != worker.managers || version != state.cluster().map(|cluster| cluster.incarnation) {
            let found = &worker.managers;
            return Err(format!("{} knows {found:?} in life {version:?}, not {wanted:?}", worker.id));
        }
    }
    Ok(())
}

fn services(world: &World, state: &State) -> Result<(), String> {
    for (id, promise) in world.clients.iter().flat_map(|client| &client.promises) {
        match promise.wanted() {
            None if state.service(id).is_some() => {
                let tasks: Vec<&Arc<Task>> = state.tasks_of(id).collect();
                return Err(format!("{id} is not gone, it has {tasks:?}"));
            }
            None => {}
            Some(_) => service(state, id)?,
        }
    }
    Ok(())
}

/// Every slot has one task, which serves. It runs what is wanted, or the update stopped and says why.
fn service(state: &State, id: &ServiceId) -> Result<(), String> {
    let counts = state.counts(id);
    let progress = state.service(id).map(|service| rollout(state, service)).unwrap_or_default();
    let wanted = progress.total;
    let updated = progress.updated == wanted || progress.stopped.is_some();
    if counts.ready == wanted && counts.live == wanted && updated {
        return Ok(());
    }
    let tasks: Vec<&Arc<Task>> = state.tasks_of(id).collect();
    Err(format!("{id} has {counts:?}, wanted {wanted} ready, {progress:?}: {tasks:?}"))
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

/// On each machine runs what should run there, at its address, and nothing else is left.
fn machines(world: &World, state: &State) -> Result<(), String> {
    for worker in &world.workers {
        let wanted: Vec<TaskId> =
            state.tasks_on(&worker.id).filter(|task| task.is_live()).map(|task| task.id).collect();
        let at_its_address = |(id, remains): &(&TaskId, &Remains)| {
            let address = state.task(id).and_then(|task| task.address);
            remains.container.is_running() && Some(remains.assignment.address) == address
        };
        let running = worker.machine.iter().filter(at_its_address);
        let running: Vec<TaskId> = running.map(|(id, _)| *id).collect();
        let same = wanted.len() == running.len() && wanted.iter().all(|id| running.contains(id));
        if !same || worker.machine.len() != running.len() {
            let machine = &worker.machine;
            return Err(format!("wanted {wanted:?} on {}, found {machine:?}", worker.id));
        }
    }
    Ok(())
}
