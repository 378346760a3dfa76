//! A slot has at most one task that should run, and one that replaces it.

use warren_core::State;
use warren_types::Task;

pub fn holds(state: &State, task: &Task) -> Result<(), String> {
    let same = |other: &&std::sync::Arc<Task>| other.slot == task.slot && other.is_live();
    let live: Vec<_> = state.tasks_of(&task.id.service).filter(same).map(|task| task.id.number).collect();
    if live.len() <= 2 {
        return Ok(());
    }
    Err(format!("two tasks per slot: tasks {live:?} of slot {} of {}", task.slot, task.id.service))
}
