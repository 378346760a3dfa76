//! A task that serves is not told to leave a slot that is wanted before another one serves there. What is wanted of a
//! global service is its node's to say, and a node that is drained wants nothing. Where both write to volumes, the
//! other one is prepared instead.

use std::sync::Arc;

use warren_core::{Command, Plan, State};
use warren_types::{Desired, Mount, MountSource, Task, TaskState};

/// `state` is the one that was planned on.
pub fn holds(state: &State, plan: &Plan) -> Result<(), String> {
    for command in &plan.commands {
        let Command::SetDesired { tasks, desired: Desired::Remove, .. } = command else { continue };
        // Who is only to be prepared serves after the part of a life was lost in which it was told to run.
        let is_told_to = |task: &&Arc<Task>| serves(task) && task.desired == Desired::Running;
        for task in tasks.iter().filter_map(|id| state.task(id)).filter(is_told_to) {
            let Some(service) = state.service(&task.id.service) else { continue };
            let replicas = service.spec.replicas().filter(|_| !service.removing);
            if replicas.is_none_or(|replicas| task.slot > replicas) {
                continue;
            }
            let mut others = state.live_tasks(&service.id, task.slot).filter(|other| other.id != task.id);
            let is_next =
                |other: &Task| serves(other) || (is_prepared(other) && writes(other) && writes(task));
            if !others.any(|other| is_next(other) && !tasks.contains(&other.id)) {
                return Err(format!(
                    "the replacement comes first: {task:?} shall go, and nothing serves instead"
                ));
            }
        }
    }
    Ok(())
}

/// Waits to be told to run.
fn is_prepared(task: &Task) -> bool {
    let state = task.observed.state;
    task.desired == Desired::Ready && state >= TaskState::Ready && !state.is_terminal()
}

/// Two that write to volumes never run at the same time.
fn writes(task: &Task) -> bool {
    let is_written = |mount: &Mount| matches!(mount.source, MountSource::Volume { .. }) && !mount.read_only;
    task.revision.task.mounts.iter().any(is_written)
}

fn serves(task: &Task) -> bool {
    task.is_live() && task.lost_since().is_none() && task.observed.ready
}
