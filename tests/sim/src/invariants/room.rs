//! A service has at most as many tasks without a node as there is room for, and some more.

use warren_core::reconcile::{SPARE_TASKS, unplaced_tasks};
use warren_core::{Command, ReconcilePlan, State};
use warren_types::{
    Availability, DesiredTaskState, Node, NodeStatus, Resources, Service, ServiceId, Task, TaskId,
};

use super::taints;

/// Tasks that the empty workers have room for, if they are bounded at all: 5 workers with 16 each.
const MOST_ROOM: u64 = 80;

/// A plan creates tasks for vacant slots only up to the free room and [`SPARE_TASKS`]. `state` is the state that it
/// was computed from.
pub fn bounds_created(state: &State, plan: &ReconcilePlan) -> Result<(), String> {
    let removed = plan.commands.iter().filter_map(|command| match command {
        Command::SetDesiredTaskState { tasks, desired: DesiredTaskState::Remove, .. } => Some(tasks),
        _ => None,
    });
    let removed: Vec<&TaskId> = removed.flatten().collect();
    for command in &plan.commands {
        let Command::CreateTasks { service: id, slots, .. } = command else { continue };
        let Some(service) = state.service(id).filter(|service| service.spec.replicas().is_some()) else {
            continue;
        };
        let created = slots.iter().filter(|slot| slot.replaces.is_none()).count() as u64;
        let waits = |task: &&Task| task.is_live() && task.node.is_none() && removed.contains(&&task.id);
        let freed = state.tasks_of(id).map(AsRef::as_ref).filter(waits).count() as u64;
        // There may be more of them since room was lost; each may be replaced by one of the new revision.
        let before = unplaced_tasks(state, id);
        let most = free_room(state, service).saturating_add(SPARE_TASKS).max(before);
        let unplaced = before.saturating_sub(freed) + created;
        if created > 0 && unplaced > most {
            return Err(format!(
                "tasks without a node are bounded: {id} would have {unplaced}, and not {most}"
            ));
        }
    }
    Ok(())
}

/// The tasks of the service without a node. Their number is bounded even if the room is lost after they were
/// created, and if each of those that are placed is being replaced.
pub fn count_unplaced(state: &State, service: ServiceId) -> Result<u64, String> {
    let unplaced = unplaced_tasks(state, &service);
    if unplaced <= 2 * MOST_ROOM + SPARE_TASKS {
        return Ok(unplaced);
    }
    Err(format!("tasks without a node are bounded: {service} has {unplaced}"))
}

/// How many more tasks of the service the nodes have room for.
fn free_room(state: &State, service: &Service) -> u64 {
    state.nodes().map(|node| room_on(state, service, node)).fold(0, u64::saturating_add)
}

fn room_on(state: &State, service: &Service, node: &Node) -> u64 {
    let placement = &service.revision.placement;
    let meets = |zone: &str| placement.constraints.iter().all(|it| it.to_string().ends_with(zone));
    let accepts = node.status == NodeStatus::Ready && node.availability == Availability::Active;
    if !accepts || !taints::admits(service, node) || !node.labels.get("zone").is_none_or(|zone| meets(zone)) {
        return 0;
    }
    let held = || state.tasks_on(&node.id).filter(|task| !task.observed.removed);
    let here = held().filter(|task| task.id.service == service.id && task.is_live()).count() as u64;
    let addresses = u64::from(state.address_capacity(node));
    let Resources { cpu, .. } = service.revision.task.reservations;
    // An ended task needs no CPU.
    let reserved = held().filter(|task| !task.observed.state.is_terminal());
    let reserved: u64 = reserved.map(|task| task.revision.task.reservations.cpu.0).sum();
    let by_cpu = node.description.resources.cpu.0.saturating_sub(reserved).checked_div(cpu.0);
    let by_number = placement.max_per_node.map(|most| u64::from(most).saturating_sub(here));
    let bounds = [Some(addresses.saturating_sub(held().count() as u64)), by_cpu, by_number];
    bounds.into_iter().flatten().min().unwrap_or_default()
}
