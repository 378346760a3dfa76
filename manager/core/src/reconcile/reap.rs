//! Deletes old records of a slot, and removed services.

use std::collections::{BTreeMap, BTreeSet};

use warren_types::{LOG_RETENTION, Service, ServiceId, ServiceMode, Task, TaskId, Timestamp};

use super::backoff::STREAK_WINDOW;
use super::{Budget, MAX_ITEMS, ReconcilePlan};
use crate::state::{Command, State, is_final};

/// The most records of slots that a service does not have any more.
const MAX_SURPLUS_RECORDS: usize = 100;
/// The newest records of a slot that the back-off may need, whatever the task history limit is.
const BACKOFF_RECORDS: usize = 5;

/// What can be deleted of a service.
///
/// Of each slot the newest records are kept, as many as the cluster's task history limit: their nodes retain
/// the logs. Records of slots that the service does not have any more are kept only if the task ran, for
/// [`LOG_RETENTION`] and up to `MAX_SURPLUS_RECORDS`. A record is deleted immediately if it never had
/// a node, if the node of a global service was removed, or if the service is being removed; the service is
/// deleted with the last. A task that holds something on its node is never deleted, also if the node stays
/// down.
pub fn reap(state: &State, id: &ServiceId, now: Timestamp) -> ReconcilePlan {
    let (Some(service), Some(cluster)) = (state.service(id), state.cluster()) else {
        return ReconcilePlan::default();
    };
    let mut slots: BTreeMap<u32, Vec<&Task>> = BTreeMap::new();
    let mut over: Vec<TaskId> = Vec::new();
    let (nodes, values) = (node_slots(state, service), known_values(state, service));
    let is_surplus = |task: &Task| {
        let is_valueless =
            values.as_ref().zip(task.label_value()).is_some_and(|(all, it)| !all.contains(&**it));
        is_valueless || is_surplus(service, task)
    };
    for task in state.unsettled_tasks_of(id).filter(|task| holds_no_resources(task)) {
        let has_slot = nodes.as_ref().is_none_or(|nodes| nodes.contains(&task.slot));
        if service.removing || !has_slot || task.node.is_none() {
            over.push(task.id);
        } else {
            slots.entry(task.slot).or_default().push(task);
        }
        if over.len() > MAX_ITEMS {
            // The next plan has the rest; the slots seen so far have no fewer records than counted.
            break;
        }
    }
    let limit = usize::try_from(cluster.settings.task_history_limit).unwrap_or(usize::MAX);
    let mut surplus: Vec<&Task> = Vec::new();
    let mut recheck = None;
    for records in slots.into_values() {
        // Oldest first.
        for (newer, task) in records.into_iter().rev().enumerate() {
            let needed_until = ended_at(task) + STREAK_WINDOW;
            // After it the slot needs no further task.
            let is_last = newer == 0 && is_final(task);
            if is_surplus(task) && (newer >= limit || task.observed.attempt == 0) {
                over.push(task.id);
            } else if is_surplus(task) {
                surplus.push(task);
            } else if newer < limit || is_last {
                // Kept.
            } else if newer >= BACKOFF_RECORDS || needed_until <= now {
                over.push(task.id);
            } else {
                recheck = earliest(recheck, needed_until);
            }
        }
    }
    surplus.sort_unstable_by_key(|task| std::cmp::Reverse(task.id));
    for (newer, task) in surplus.into_iter().enumerate() {
        let kept_until = ended_at(task) + LOG_RETENTION;
        if newer >= MAX_SURPLUS_RECORDS || kept_until <= now {
            over.push(task.id);
        } else {
            recheck = earliest(recheck, kept_until);
        }
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
    let later = recheck.map(|at| at.saturating_since(now));
    ReconcilePlan { commands, recheck_after: budget.recheck_after().or(later), pause: None }
}

/// The slots of a global service: one per node.
fn node_slots(state: &State, service: &Service) -> Option<BTreeSet<u32>> {
    match service.spec.mode {
        ServiceMode::Replicated { .. } => None,
        ServiceMode::Global if service.spec.per.is_some() => None,
        ServiceMode::Global => Some(state.nodes().map(|node| node.number.into()).collect()),
    }
}

/// The values of the label that the service has tasks for, on any node.
fn known_values<'a>(state: &'a State, service: &Service) -> Option<BTreeSet<&'a str>> {
    let label = service.spec.per.as_ref()?;
    Some(state.nodes().filter_map(|node| label.value_of(&node.labels)).collect())
}

/// Its slot was removed, also if there is a new one with that number.
fn is_surplus(service: &Service, task: &Task) -> bool {
    task.is_surplus() || service.spec.replicas().is_some_and(|replicas| task.slot > replicas)
}

fn ended_at(task: &Task) -> Timestamp {
    task.observed.since
}

fn earliest(one: Option<Timestamp>, other: Timestamp) -> Option<Timestamp> {
    Some(one.map_or(other, |one| one.min(other)))
}

fn holds_no_resources(task: &Task) -> bool {
    !task.is_live() && !task.holds_resources()
}
