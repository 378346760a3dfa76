//! Deletes old records of a slot, and removed services.

use std::collections::{BTreeMap, BTreeSet};

use warren_types::{ServiceId, ServiceMode, Task, TaskId};

use super::{Budget, ReconcilePlan};
use crate::state::{Command, State};

/// What can be deleted of a service.
///
/// Of each slot the newest records are kept, as many as the cluster's task history limit. A record is deleted
/// immediately if its slot does not exist any more (of a global service: its node was removed), if it never
/// had a node, or if its service is being removed; the service is deleted with the last. A task that holds
/// something on its node is never deleted, also if the node stays down.
pub fn reap(state: &State, id: &ServiceId) -> ReconcilePlan {
    let (Some(service), Some(cluster)) = (state.service(id), state.cluster()) else {
        return ReconcilePlan::default();
    };
    let slots: Option<BTreeSet<u32>> = match service.spec.mode {
        ServiceMode::Replicated { .. } => None,
        ServiceMode::Global => Some(state.nodes().filter_map(|node| state.slot_of(node)).collect()),
    };
    let is_slot = |slot: u32| match (&slots, service.spec.replicas()) {
        _ if service.removing => false,
        (Some(nodes), _) => nodes.contains(&slot),
        (None, replicas) => (1..=replicas.unwrap_or(0)).contains(&slot),
    };
    let history = usize::try_from(cluster.task_history_limit).unwrap_or(usize::MAX);
    let mut ended: BTreeMap<u32, Vec<TaskId>> = BTreeMap::new();
    let mut over: Vec<TaskId> = Vec::new();
    for task in state.unsettled_tasks_of(id).filter(|task| holds_no_resources(task)) {
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
    let empty = usize::try_from(state.task_counts(id).tasks) == Ok(tasks.len());
    let mut commands = Vec::new();
    if !tasks.is_empty() {
        commands.push(Command::DeleteTasks { term, tasks });
    }
    if service.removing && empty {
        commands.push(Command::DeleteService { term, id: *id });
    }
    ReconcilePlan { commands, recheck_after: budget.recheck_after() }
}

fn holds_no_resources(task: &Task) -> bool {
    !task.is_live() && !task.holds_resources()
}
