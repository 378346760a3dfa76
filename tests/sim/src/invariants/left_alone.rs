//! A task that is well, runs what is wanted and may be where it is, gets no replacement.

use warren_core::{Command, Plan, State};
use warren_types::{Availability, Health, Service, ServiceId, Task, TaskId};

/// `state` is the one that was planned on. Answers how many unhealthy tasks get a replacement.
pub fn holds(state: &State, plan: &Plan) -> Result<u64, String> {
    let mut replaced = 0;
    for command in &plan.commands {
        let Command::CreateTasks { service, slots, .. } = command else { continue };
        for number in slots.iter().filter_map(|new| new.replaces) {
            let id = TaskId { service: *service, number };
            let Some(task) = state.task(&id) else { continue };
            replaced += u64::from(task.observed.health == Health::Unhealthy);
            if task.observed.health != Health::Unhealthy && !has_reason_to_go(state, *service, task) {
                return Err(format!("who is well is left alone: {task:?} gets a replacement"));
            }
        }
    }
    Ok(replaced)
}

/// It must leave its node, or runs what is not wanted any more. Where a service says which nodes it wants, it may.
fn has_reason_to_go(state: &State, service: ServiceId, task: &Task) -> bool {
    let Some(service) = state.service(&service) else { return true };
    let Service { revision, .. } = &**service;
    let placement = &revision.placement;
    let picky = !placement.constraints.is_empty() || placement.max_per_node.is_some();
    let node = task.node.and_then(|node| state.node(&node));
    let drained = node.is_none_or(|node| node.availability == Availability::Drain);
    task.revision.number != revision.number || picky || drained
}
