//! Commands on tasks, all of them planned.

use std::collections::BTreeSet;
use std::sync::Arc;

use warren_types::{Desired, Mode, NodeId, Observed, Seldom, ServiceId, Special, Task, TaskId};

use super::Entry;
use crate::state::index::Facets;
use crate::state::{Answer, Change, Kind, NewTask, Refusal, State, digest};

pub(super) fn create(
    state: &mut State,
    entry: &mut Entry,
    id: ServiceId,
    revision: u64,
    slots: &[NewTask],
) -> Result<Answer, Refusal> {
    let service = state.services.get(&id).ok_or_else(|| Refusal::not_found(Kind::Service, id))?;
    let name = &service.spec.name;
    if service.removing {
        return Err(Refusal::Removing { service: name.clone() });
    }
    if service.revision.number != revision {
        let found = service.revision.number;
        return Err(Refusal::StaleRevision { service: name.clone(), wanted: revision, found });
    }
    let service = service.clone();
    let mut next_task = service.next_task;
    // A slot is decided on once, so that what one item makes is not what another one asks for the second time.
    let mut seen = BTreeSet::new();
    for new in slots.iter().filter(|new| new.desired <= Desired::Running) {
        let NewTask { slot, not_before, desired, replaces, bound_to } = *new;
        if !seen.insert(slot)
            || !is_wanted(state, &service.spec.mode, slot, bound_to)
            || !has_room(state, id, slot, replaces)
        {
            continue;
        }
        let task = Task {
            id: TaskId { service: id, number: next_task },
            slot,
            revision: service.revision.clone(),
            created_at: entry.now,
            node: None,
            address: None,
            desired,
            observed: Observed::new(entry.now),
            special: Seldom::new(Special { not_before, bound_to, ..Special::default() }),
        };
        next_task = next_task.saturating_add(1);
        state.index.change_task(&task, None, Some(Facets::of(&task)));
        entry.changes.push(Change::Task(task.id));
        state.sum.add(digest::task(&task));
        state.tasks.insert(task.id, Arc::new(task));
    }
    if let Some(shared) = state.services.get_mut(&id).filter(|_| next_task != service.next_task) {
        state.sum.remove(digest::standing(shared));
        let service = Arc::make_mut(shared);
        service.next_task = next_task;
        state.sum.add(digest::standing(service));
    }
    Ok(Answer::Done)
}

/// The service has such a slot: one of its replicas, or the node that the task is for.
fn is_wanted(state: &State, mode: &Mode, slot: u32, bound_to: Option<NodeId>) -> bool {
    match (mode, bound_to) {
        (Mode::Replicated { replicas }, None) => (1..=*replicas).contains(&slot),
        (Mode::Global, Some(node)) => state.node(&node).is_some_and(|node| state.slot_of(node) == Some(slot)),
        (Mode::Replicated { .. }, Some(_)) | (Mode::Global, None) => false,
    }
}

/// Nobody occupies the slot, or only the task that shall be replaced.
fn has_room(state: &State, service: ServiceId, slot: u32, replaces: Option<u64>) -> bool {
    let mut there = state.index.occupants(service, slot).map(|task| task.number);
    there.next() == replaces && there.next().is_none()
}

pub(super) fn set_desired(
    state: &mut State,
    entry: &mut Entry,
    tasks: &[TaskId],
    desired: Desired,
) -> Answer {
    for id in tasks.iter().copied() {
        let Some(task) = state.tasks.get(&id).filter(|task| task.desired < desired) else { continue };
        let holder = task.node.filter(|_| task.holds_node());
        state.update_task(entry, id, |task| task.desired = desired);
        if let Some(node) = holder {
            state.touch_assignment(entry, node);
        }
    }
    Answer::Done
}

pub(super) fn delete(state: &mut State, entry: &mut Entry, tasks: &[TaskId]) -> Answer {
    let mut services = BTreeSet::new();
    for id in tasks.iter().copied() {
        let Some(task) = state.tasks.get(&id).filter(|task| !task.is_live() && !task.holds_node()) else {
            continue;
        };
        state.index.change_task(task, Some(Facets::of(task)), None);
        state.sum.remove(digest::task(task));
        state.tasks.remove(&id);
        services.insert(id.service);
        entry.changes.push(Change::Task(id));
    }
    services.into_iter().for_each(|service| state.prune_revisions(entry, service));
    Answer::Done
}
