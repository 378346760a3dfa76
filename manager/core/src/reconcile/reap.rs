//! Forgetting what is over: old records of a slot, and services that are gone.

use std::collections::{BTreeMap, BTreeSet};

use warren_types::{Mode, ServiceId, Task, TaskId};

use super::{Budget, Plan};
use crate::state::{Command, State};

/// What can be forgotten of a service.
///
/// Of each slot the newest records are kept, as many as the cluster's history says. A record goes at once when its
/// slot is not there any more (of a global service: its node was removed), when it never had a node, or when its
/// service is being removed; the service goes with the last. A task that holds something on its node is never
/// forgotten, also when the node stays down.
pub fn reap(state: &State, id: &ServiceId) -> Plan {
    let (Some(service), Some(cluster)) = (state.service(id), state.cluster()) else { return Plan::default() };
    let slots: Option<BTreeSet<u32>> = match service.spec.mode {
        Mode::Replicated { .. } => None,
        Mode::Global => Some(state.nodes().filter_map(|node| state.slot_of(node)).collect()),
    };
    let is_slot = |slot: u32| match (&slots, service.spec.replicas()) {
        _ if service.removing => false,
        (Some(nodes), _) => nodes.contains(&slot),
        (None, replicas) => (1..=replicas.unwrap_or(0)).contains(&slot),
    };
    let history = usize::try_from(cluster.history).unwrap_or(usize::MAX);
    let mut ended: BTreeMap<u32, Vec<TaskId>> = BTreeMap::new();
    let mut over: Vec<TaskId> = Vec::new();
    for task in state.unsettled_of(id).filter(|task| holds_nothing(task)) {
        if !is_slot(task.slot) || task.node.is_none() {
            over.push(task.id);
        } else {
            ended.entry(task.slot).or_default().push(task.id);
        }
    }
    for records in ended.values() {
        over.extend(&records[..records.len().saturating_sub(history)]);
    }
    over.sort_unstable();

    let mut budget = Budget::default();
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
