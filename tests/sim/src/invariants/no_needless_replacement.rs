//! A healthy task of the current revision on an allowed node gets no replacement.

use std::sync::Arc;

use warren_core::{Command, ReconcilePlan, State};
use warren_types::{Availability, Health, Node, ServiceId, TaintEffect, Task, TaskId};

use super::taints;

/// `state` is the state the plan was computed from. Returns the number of unhealthy tasks that get a
/// replacement.
pub fn holds(state: &State, plan: &ReconcilePlan) -> Result<u64, String> {
    let mut replaced = 0;
    for command in &plan.commands {
        let Command::CreateTasks { service, revision, slots, .. } = command else { continue };
        for number in slots.iter().filter_map(|new| new.replaces) {
            let id = TaskId { service: *service, number };
            let Some(task) = state.task(&id) else { continue };
            replaced += u64::from(task.observed.health == Health::Unhealthy);
            if task.observed.health != Health::Unhealthy && !may_be_replaced(state, *service, *revision, task)
            {
                return Err(format!("healthy tasks are not replaced: {task:?} gets a replacement"));
            }
        }
    }
    Ok(replaced)
}

/// The task must leave its node or runs an old revision. Tasks of services with placement constraints, or
/// per value of a label, are exempt.
fn may_be_replaced(state: &State, service: ServiceId, planned: u64, task: &Task) -> bool {
    let Some(service) = state.service(&service) else { return true };
    let placement = &service.revision.placement;
    let picky =
        !placement.constraints.is_empty() || placement.max_per_node.is_some() || service.spec.per.is_some();
    let node = task.node.and_then(|node| state.node(&node));
    let stays = |node: &Arc<Node>| {
        let is_tolerated = taints::tolerates(service, node, &[TaintEffect::NoExecute]);
        node.availability != Availability::Drain && is_tolerated
    };
    // The plan may roll the service back first.
    task.revision.number != planned || picky || !node.is_some_and(stays)
}
