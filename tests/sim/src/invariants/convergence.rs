//! After the faults stop, the cluster reaches the acknowledged specs, and nothing is left to plan.

use std::sync::Arc;

use warren_core::session::{NetworkHistory, SentNetwork};
use warren_core::{State, rollout};
use warren_replica::ReconcileKey;
use warren_types::{Member, NetworkView, Node, NodeStatus, ServiceId, Task, TaskId, Timestamp};

use super::{label_values, taints};
use crate::client::{SimClient, has_final_settings};
use crate::manager::SimManager;
use crate::simulation::ClusterSimulation;
use crate::worker::TaskOnMachine;

pub fn holds(world: &ClusterSimulation) -> Result<(), String> {
    let leader = world.leader().ok_or("no manager leads")?;
    let run = world.process(leader).ok_or("no manager leads")?;
    for host in 0..world.managers.len() {
        let applied = world.process(host).map(|run| run.state().applied());
        if applied != Some(run.state().applied()) {
            return Err(format!("manager {host} has applied {applied:?}, not {:?}", run.state().applied()));
        }
    }
    all_members_vote(world)?;
    if world.clients.iter().any(SimClient::is_waiting) {
        return Err("a request is in flight".into());
    }
    let is_final = |node: &&Arc<Node>| node.status == NodeStatus::Ready && has_final_settings(node);
    if let Some(node) = run.state().nodes().find(|node| !is_final(node)) {
        return Err(format!("{node:?} is not ready"));
    }
    workers_know_the_managers(world, run.state())?;
    services(world, run.state(), world.wall_time(leader))?;
    taints::check_settled(run.state())?;
    label_values::check_settled(run.state())?;
    nothing_to_plan(world, leader, run.state())?;
    machines(world, run.state())?;
    networks(world, run.state())
}

fn all_members_vote(world: &ClusterSimulation) -> Result<(), String> {
    let members = world.oracle.members();
    let votes = |id: &u64| members.voters.contains(id);
    let known = |manager: &SimManager| {
        let member = world.oracle.newest.member(manager.id);
        member.is_some_and(|it| {
            it.manager_id == manager.key && it.address == manager.address && it.replaces.is_none()
        })
    };
    let all = world.managers.iter().all(|manager| votes(&manager.id) && known(manager));
    let count = world.managers.len();
    let alone = members.voters.len() == count && world.oracle.newest.members().count() == count;
    if all && alone && members.learners.is_empty() && members.voters_outgoing.is_empty() {
        return Ok(());
    }
    let listed: Vec<&Arc<Member>> = world.oracle.newest.members().collect();
    Err(format!("{members:?} and {listed:?} differ from the running managers"))
}

/// Each worker has the desired assignments of the current incarnation, and the addresses of the managers.
fn workers_know_the_managers(world: &ClusterSimulation, state: &State) -> Result<(), String> {
    for worker in &world.workers {
        let desired = state.node_settings(&worker.id).map(|settings| settings.managers).unwrap_or_default();
        let version = worker.assignment_from_manager().map(|version| version.incarnation);
        if desired != worker.managers || version != state.cluster().map(|cluster| cluster.incarnation) {
            let found = &worker.managers;
            return Err(format!("{} has {found:?} at {version:?}, expected {desired:?}", worker.id));
        }
    }
    Ok(())
}

fn services(world: &ClusterSimulation, state: &State, now: Timestamp) -> Result<(), String> {
    for (id, promise) in world.clients.iter().flat_map(|client| &client.expected) {
        match promise.desired_spec() {
            None if state.service(id).is_some() => {
                let tasks: Vec<&Arc<Task>> = state.tasks_of(id).collect();
                return Err(format!("removed service {id} still has {tasks:?}"));
            }
            None => {}
            Some(_) => service(state, id, now)?,
        }
    }
    Ok(())
}

/// Every slot has one serving task. It runs the current revision, or the rollout stopped and gives a reason.
fn service(state: &State, id: &ServiceId, now: Timestamp) -> Result<(), String> {
    let counts = state.task_counts(id);
    let progress = state.service(id).map(|service| rollout(state, service, now)).unwrap_or_default();
    let desired = progress.total;
    let updated = progress.updated == desired || progress.stop_reason.is_some();
    if counts.ready == desired && counts.live == desired && updated {
        return Ok(());
    }
    let tasks: Vec<&Arc<Task>> = state.tasks_of(id).collect();
    Err(format!("{id} has {counts:?}, expected {desired} ready, {progress:?}: {tasks:?}"))
}

fn nothing_to_plan(world: &ClusterSimulation, leader: usize, state: &State) -> Result<(), String> {
    let now = world.wall_time(leader);
    let services = state.services().map(|service| service.id);
    let keys = services
        .flat_map(|id| [ReconcileKey::Service(id), ReconcileKey::Reap(id)])
        .chain([ReconcileKey::Schedule]);
    for key in keys {
        let plan = key.plan(state, now).unwrap_or_default();
        if !plan.is_empty() {
            return Err(format!("{key:?} still plans {plan:?}"));
        }
    }
    Ok(())
}

/// Each machine runs the tasks that it should run, at their addresses, and nothing else.
fn machines(world: &ClusterSimulation, state: &State) -> Result<(), String> {
    for worker in &world.workers {
        let desired: Vec<TaskId> =
            state.tasks_on(&worker.id).filter(|task| task.is_live()).map(|task| task.id).collect();
        let at_its_address = |(id, remains): &(&TaskId, &TaskOnMachine)| {
            let address = state.task(id).and_then(|task| task.address);
            remains.container.is_running() && Some(remains.assignment.address) == address
        };
        let running = worker.machine.iter().filter(at_its_address);
        let running: Vec<TaskId> = running.map(|(id, _)| *id).collect();
        let same = desired.len() == running.len() && desired.iter().all(|id| running.contains(id));
        if !same || worker.machine.len() != running.len() {
            let machine = &worker.machine;
            return Err(format!("expected {desired:?} on {}, found {machine:?}", worker.id));
        }
    }
    Ok(())
}

/// The kernel of each node has the peers and the networks of its tasks as they are.
fn networks(world: &ClusterSimulation, state: &State) -> Result<(), String> {
    let history = NetworkHistory::new(state);
    for worker in &world.workers {
        let parts = SentNetwork::default().next_update(&history, state, &worker.id);
        let mut expected = NetworkView::default();
        let applied = parts.map(|parts| expected.apply(history.network_update(&parts)));
        let found = &worker.kernel;
        if applied != Some(Ok(()))
            || (&expected.peers, &expected.catalogues) != (&found.peers, &found.catalogues)
        {
            return Err(format!("expected {expected:?} in the kernel of {}, found {found:?}", worker.id));
        }
    }
    Ok(())
}
