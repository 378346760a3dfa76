//! Replicated services: each slot from 1 to `replicas` has exactly one live task.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;
use warren_types::{Desired, ServiceId, Task, TaskId, Timestamp};

use super::{Budget, Plan, backoff};
use crate::state::{Command, NewTask, State};

/// What is to be done about the tasks of a service.
///
/// - A slot without a live task gets one, later if its tasks keep failing.
/// - Surplus slots lose their tasks, the highest first; a service that is being removed loses all.
/// - A task on a node that is down is replaced, and stopped should the node come back.
/// - A task that ended by itself is replaced, and what it holds on its node is cleaned up.
pub fn reconcile_replicated(state: &State, id: &ServiceId, now: Timestamp) -> Plan {
    let Some(service) = state.service(id) else { return Plan::default() };
    let replicas = if service.removing { 0 } else { service.spec.replicas() };
    let mut budget = Budget::new();
    let surplus = budget.collect(surplus(state, *id, replicas));
    let over: Vec<&Task> = budget.collect(over(state, *id, replicas));
    let vacated: BTreeSet<u32> =
        over.iter().filter(|task| task.is_live() && task.slot <= replicas).map(|task| task.slot).collect();
    let missing = budget.collect(vacated.into_iter().chain(gaps(state, *id, replicas)));

    let term = state.applied().term;
    let tasks: Vec<TaskId> = surplus.into_iter().chain(over.iter().map(|task| task.id)).collect();
    let mut commands = Vec::new();
    if !tasks.is_empty() {
        commands.push(Command::SetDesired { term, tasks, desired: Desired::Remove, at: now });
    }
    if !missing.is_empty() {
        let revision = service.revision.number;
        let slots = new_tasks(state, *id, missing, now);
        commands.push(Command::CreateTasks { term, service: *id, revision, slots, at: now });
    }
    Plan { commands, recheck_after: budget.recheck_after() }
}

/// Live tasks of slots beyond `replicas`, highest slot first.
fn surplus(state: &State, service: ServiceId, replicas: u32) -> impl Iterator<Item = TaskId> {
    let slots = (service, replicas.saturating_add(1))..=(service, u32::MAX);
    state.index().live.range(slots).rev().map(move |(_, number)| TaskId { service, number: *number })
}

/// Tasks that must leave their node: lost with it, or not to run any more. Surplus ones are counted as such.
fn over(state: &State, service: ServiceId, replicas: u32) -> impl Iterator<Item = &Task> {
    state.unsettled_of(&service).map(AsRef::as_ref).filter(move |task| {
        let surplus = task.is_live() && task.slot > replicas;
        task.holds_node() && task.desired < Desired::Remove && !surplus
    })
}

/// Slots from 1 to `replicas` that no task occupies. When as many are occupied as the highest one says, all
/// below it are, so a service that is settled or only grows is not scanned.
fn gaps(state: &State, service: ServiceId, replicas: u32) -> impl Iterator<Item = u32> {
    let live = &state.index().live;
    let slots = |first| live.range((service, first)..=(service, u32::MAX)).map(|((_, slot), _)| *slot);
    let highest = slots(1).next_back().unwrap_or(0);
    let first = if state.counts(&service).live == highest { highest.saturating_add(1) } else { 1 };
    let mut occupied = slots(first).peekable();
    (first..=replicas).filter(move |slot| occupied.next_if_eq(slot).is_none())
}

/// The slots with the time before which each may not be placed.
fn new_tasks(state: &State, service: ServiceId, missing: Vec<u32>, now: Timestamp) -> Vec<NewTask> {
    let wanted: BTreeSet<u32> = missing.iter().copied().collect();
    let mut ended: BTreeMap<u32, SmallVec<[&Task; 8]>> = BTreeMap::new();
    for task in state.unsettled_of(&service).filter(|task| wanted.contains(&task.slot)) {
        ended.entry(task.slot).or_default().push(task);
    }
    let not_before = |slot| backoff::not_before(ended.get(&slot)?.iter().copied(), now);
    missing.into_iter().map(|slot| NewTask { slot, not_before: not_before(slot) }).collect()
}
