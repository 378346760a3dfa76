//! A serving task gets no order to leave a slot that is still desired before its replacement serves. Tasks of
//! global services are exempt, because their node decides, and so are tasks of drained nodes. Where both
//! tasks write to volumes, the replacement is prepared but not started. For services with the order
//! `stop-first` see [`super::rollouts`].

use std::sync::Arc;

use super::rollouts;
use warren_core::{Command, ReconcilePlan, State};
use warren_types::{DesiredTaskState, Mount, MountSource, Task, TaskState};

/// `state` is the state the plan was computed from.
pub fn holds(state: &State, plan: &ReconcilePlan) -> Result<(), String> {
    for command in &plan.commands {
        let Command::SetDesiredTaskState { tasks, desired: DesiredTaskState::Remove, .. } = command else {
            continue;
        };
        // A task that is only to be prepared may serve when the order to run it was in the lost part of an
        // incarnation.
        let is_told_to = |task: &&Arc<Task>| serves(task) && task.desired == DesiredTaskState::Running;
        for task in tasks.iter().filter_map(|id| state.task(id)).filter(is_told_to) {
            let Some(service) = state.service(&task.id.service) else { continue };
            let replicas = service.spec.replicas().filter(|_| !service.removing);
            if replicas.is_none_or(|replicas| task.slot > replicas) || rollouts::may_stop_first(service) {
                continue;
            }
            let mut others = state.live_tasks(&service.id, task.slot).filter(|other| other.id != task.id);
            let is_next =
                |other: &Task| serves(other) || (is_prepared(other) && writes(other) && writes(task));
            if !others.any(|other| is_next(other) && !tasks.contains(&other.id)) {
                return Err(format!(
                    "the replacement starts first: {task:?} is removed, and no replacement serves"
                ));
            }
        }
    }
    Ok(())
}

/// It is prepared and waits for the order to run.
fn is_prepared(task: &Task) -> bool {
    let state = task.observed.state;
    task.desired == DesiredTaskState::Ready && state >= TaskState::Ready && !state.is_terminal()
}

/// Two tasks that write to volumes never run at the same time.
fn writes(task: &Task) -> bool {
    let is_written = |mount: &Mount| matches!(mount.source, MountSource::Volume { .. }) && !mount.read_only;
    task.revision.task.mounts.iter().any(is_written)
}

fn serves(task: &Task) -> bool {
    task.is_live() && task.lost_since().is_none() && task.observed.ready
}
