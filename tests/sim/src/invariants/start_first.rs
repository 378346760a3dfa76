//! A task that serves is not told to leave a slot that is wanted before another one serves there. What is wanted of a
//! global service is its node's to say, and a node that is drained wants nothing.

use warren_core::{Command, Plan, State};
use warren_types::{Desired, Task};

/// `state` is the one that was planned on.
pub fn holds(state: &State, plan: &Plan) -> Result<(), String> {
    for command in &plan.commands {
        let Command::SetDesired { tasks, desired: Desired::Remove, .. } = command else { continue };
        for task in tasks.iter().filter_map(|id| state.task(id)).filter(|task| serves(task)) {
            let Some(service) = state.service(&task.id.service) else { continue };
            let replicas = service.spec.replicas().filter(|_| !service.removing);
            if replicas.is_none_or(|replicas| task.slot > replicas) {
                continue;
            }
            let mut others = state.live_tasks(&service.id, task.slot).filter(|other| other.id != task.id);
            if !others.any(|other| serves(other) && !tasks.contains(&other.id)) {
                return Err(format!(
                    "the replacement comes first: {task:?} shall go, and nothing serves instead"
                ));
            }
        }
    }
    Ok(())
}

fn serves(task: &Task) -> bool {
    task.is_live() && task.lost_since.is_none() && task.observed.ready
}
