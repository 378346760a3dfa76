//! Forgetting what is over: old records of a slot, and services that are gone.

use std::collections::BTreeMap;

use warren_types::{ServiceId, Task, TaskId};

use super::{Budget, Plan};
use crate::state::{Command, State};

/// What can be forgotten of a service.
///
/// Of each slot the newest records are kept, as many as the cluster's history says. A record goes at once
/// when its slot is not wanted any more, when it never had a node, or when its service is being removed;
/// the service goes with the last. A task that holds something on its node is never forgotten, also when
/// the node stays down.
pub fn reap(state: &State, id: &ServiceId) -> Plan {
    let (Some(service), Some(cluster)) = (state.service(id), state.cluster()) else { return Plan::default() };
    let replicas = if service.removing { 0 } else { service.spec.replicas() };
    let history = usize::try_from(cluster.history).unwrap_or(usize::MAX);
    let mut slots: BTreeMap<u32, Vec<TaskId>> = BTreeMap::new();
    let mut over: Vec<TaskId> = Vec::new();
    for task in state.unsettled_of(id).filter(|task| holds_nothing(task)) {
        if task.slot > replicas || task.node.is_none() {
            over.push(task.id);
        } else {
            slots.entry(task.slot).or_default().push(task.id);
        }
    }
    for records in slots.values() {
        over.extend(&records[..records.len().saturating_sub(history)]);
    }
    over.sort_unstable();

    let mut budget = Budget::new();
    let tasks = budget.collect(over.into_iter());
    let term = state.applied().term;
    let empty = usize::try_from(state.counts(id).tasks) == Ok(tasks.len());
    let mut commands = Vec::new();
    if !tasks.is_empty() {
        commands.push(Command::DeleteTasks { term, tasks });
    }
    if service.removing && empty {
        commands.push(Command::DeleteService { term, id: *id });
    }
    Plan { commands, recheck_after: budget.recheck_after() }
}

fn holds_nothing(task: &Task) -> bool {
    !task.is_live() && !task.holds_node()
}
