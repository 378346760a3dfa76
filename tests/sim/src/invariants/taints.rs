//! A task goes only to a node whose taints its service tolerates, and leaves one with a taint that has the effect
//! NoExecute and is not tolerated.

use warren_core::State;
use warren_types::{Node, Service, TaintEffect, Task};

/// Whether the service tolerates the taints of the node that have one of these effects.
pub fn tolerates(service: &Service, node: &Node, effects: &[TaintEffect]) -> bool {
    let mut taints = node.taints.iter().filter(|taint| effects.contains(&taint.effect));
    taints.all(|taint| service.revision.placement.tolerations.iter().any(|it| it.matches(taint)))
}

/// Whether new tasks of the service may go there.
pub fn admits(service: &Service, node: &Node) -> bool {
    tolerates(service, node, &[TaintEffect::NoSchedule, TaintEffect::NoExecute])
}

/// The task may have got its node.
pub fn check_placed(state: &State, before: Option<&Task>, task: &Task) -> Result<(), String> {
    let placed = task.node.filter(|_| before.is_none_or(|before| before.node.is_none()));
    let Some(node) = placed.and_then(|node| state.node(&node)) else { return Ok(()) };
    match state.service(&task.id.service) {
        Some(service) if !admits(service, node) => {
            Err(format!("no task is placed against a taint: {task:?} is on {node:?}"))
        }
        _ => Ok(()),
    }
}

/// Nothing has changed for a while.
pub fn check_settled(state: &State) -> Result<(), String> {
    for task in state.tasks().filter(|task| task.is_live()) {
        let service = state.service(&task.id.service);
        let node = task.node.and_then(|node| state.node(&node));
        let Some((service, node)) = service.zip(node) else { continue };
        if !tolerates(service, node, &[TaintEffect::NoExecute]) {
            return Err(format!(
                "tasks leave nodes whose taint they do not tolerate: {task:?} is on {node:?}"
            ));
        }
    }
    Ok(())
}
