//! States, desired states, placements and numbers only go forward.

use std::collections::BTreeMap;

use warren_core::State;
use warren_types::{NodeId, ServiceId, Task, TaskId};

/// A task changed.
pub fn task(old: &Task, new: &Task) -> Result<(), String> {
    let (was, is) = (&old.observed, &new.observed);
    let forward = (is.attempt, is.state) >= (was.attempt, was.state) && is.removed >= was.removed;
    let ended = was.state.is_terminal() && (is.attempt, is.state) != (was.attempt, was.state);
    let placed = old.node.is_none() || (old.node, old.address) == (new.node, new.address);
    if forward && !ended && placed && new.desired >= old.desired && new.slot == old.slot {
        return Ok(());
    }
    Err(format!("states are monotone: {old:?} became {new:?}"))
}

/// A task was created.
pub fn created(numbers: &mut BTreeMap<ServiceId, u64>, id: TaskId) -> Result<(), String> {
    let highest = numbers.entry(id.service).or_default();
    let before = std::mem::replace(highest, id.number.max(*highest));
    if id.number > before {
        return Ok(());
    }
    Err(format!("states are monotone: the number of task {id} was used before"))
}

/// A task was deleted.
pub fn forgotten(old: Option<&Task>, id: TaskId) -> Result<(), String> {
    match old {
        Some(old) if old.is_live() || old.holds_resources() => {
            Err(format!("states are monotone: task {id} was deleted as {old:?}"))
        }
        _ => Ok(()),
    }
}

/// A node changed.
pub fn node(before: &State, after: &State, id: NodeId) -> Result<(), String> {
    let (Some(old), Some(new)) = (before.node(&id), after.node(&id)) else { return Ok(()) };
    let keeps_subnets = new.number == old.number && new.subnets.starts_with(&old.subnets);
    if new.session >= old.session && new.assignment_index >= old.assignment_index && keeps_subnets {
        return Ok(());
    }
    Err(format!("states are monotone: {old:?} became {new:?}"))
}
