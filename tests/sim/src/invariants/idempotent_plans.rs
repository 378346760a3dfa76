//! Planning again after a plan was applied gives an empty plan.

use warren_core::{ReconcilePlan, State};
use warren_replica::ReconcileKey;
use warren_types::{DesiredTaskState, Task, TaskState, Timestamp};

pub fn again_is_empty(
    state: &State,
    key: ReconcileKey,
    now: Timestamp,
    plan: &ReconcilePlan,
) -> Result<(), String> {
    // A plan that was cut short says when the next one goes on.
    if plan.is_empty() || plan.pause.is_some() || key == ReconcileKey::Liveness {
        return Ok(());
    }
    // The task already runs as it was ordered in a lost part of the last incarnation: each plan shows the
    // next step.
    let ahead =
        |task: &Task| task.desired == DesiredTaskState::Ready && task.observed.state > TaskState::Ready;
    if state.tasks().any(|task| ahead(task) && !task.observed.state.is_terminal()) {
        return Ok(());
    }
    let mut after = state.clone();
    let applied = state.applied();
    for (index, command) in (applied.index + 1..).zip(&plan.commands) {
        after.apply(applied.term, index, command);
    }
    let again = key.plan(&after, now).unwrap_or_default();
    if again.is_empty() {
        return Ok(());
    }
    let tasks: Vec<_> = match key {
        ReconcileKey::Service(id) => state.tasks().filter(|task| task.id.service == id).collect(),
        _ => Vec::new(),
    };
    Err(format!("a second plan is empty: {key:?} planned {plan:?}, then {again:?}; its tasks: {tasks:#?}"))
}
