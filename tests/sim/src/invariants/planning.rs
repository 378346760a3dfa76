//! Planning again, after a plan was carried out, gives an empty plan.

use warren_core::{Plan, State};
use warren_types::{Desired, Task, TaskState, Timestamp};

use crate::manager::{Key, ask};

pub fn again_is_empty(state: &State, key: Key, now: Timestamp, plan: &Plan) -> Result<(), String> {
    if plan.is_empty() || key == Key::Liveness {
        return Ok(());
    }
    // It runs already, as it was told in a part of the cluster's last life that is lost: each step shows the next one.
    let ahead = |task: &Task| task.desired == Desired::Ready && task.observed.state > TaskState::Ready;
    if state.tasks().any(|task| ahead(task) && !task.observed.state.is_terminal()) {
        return Ok(());
    }
    let mut after = state.clone();
    let applied = state.applied();
    for (index, command) in (applied.index + 1..).zip(&plan.commands) {
        after.apply(applied.term, index, command);
    }
    let again = ask(&after, key, now);
    if again.is_empty() {
        return Ok(());
    }
    Err(format!("planning again is empty: {key:?} planned {plan:?}, then {again:?}"))
}
