//! A task is placed on a node only after the bootstrap services there serve, or while they are updated.

use warren_core::{Command, ReconcilePlan, State};
use warren_types::{Node, Service, Task};

use super::taints;

/// `state` is the state the plan was computed from.
pub fn holds(state: &State, plan: &ReconcilePlan) -> Result<(), String> {
    let bootstrap = || state.services().filter(|service| service.spec.bootstrap && !service.removing);
    for command in &plan.commands {
        let Command::AssignTasks { placements, .. } = command else { continue };
        for (task, node) in placements {
            let (Some(placed), Some(node)) = (state.service(&task.service), state.node(node)) else {
                continue;
            };
            let awaited =
                bootstrap().find(|service| !placed.spec.bootstrap && is_awaited(state, service, node));
            if let Some(awaited) = awaited {
                return Err(format!(
                    "bootstrap services start first: {task} goes to {node:?} before {awaited:?}"
                ));
            }
        }
    }
    Ok(())
}

/// It should have a task for the node, and has none that serves or is being updated.
fn is_awaited(state: &State, service: &Service, node: &Node) -> bool {
    let zone = node.labels.get("zone").map(String::as_str);
    let meets = |text: &str| zone.is_some_and(|zone| text.ends_with(zone));
    let mut constraints = service.revision.placement.constraints.iter();
    let is_eligible = taints::admits(service, node)
        && constraints.all(|constraint| meets(&constraint.to_string()))
        && (service.spec.per.is_none() || zone.is_some());
    let is_for_node = |task: &Task| match task.label_value() {
        Some(value) => zone == Some(&**value),
        None => task.node == Some(node.id),
    };
    let serves = |task: &Task| task.is_live() && task.observed.ready && task.lost_since().is_none();
    let is_outdated =
        |task: &Task| task.revision.number < service.revision.number && task.observed.attempt > 0;
    let mut tasks = state.tasks_of(&service.id).filter(|task| is_for_node(task));
    is_eligible && !tasks.any(|task| serves(task) || is_outdated(task))
}
