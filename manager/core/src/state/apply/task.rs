//! Commands on tasks, all of them planned.

use std::sync::Arc;

use warren_types::{Desired, Observed, ServiceId, Task, TaskId};

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
    let service = state.services.get_mut(&id).ok_or_else(|| Refusal::not_found(Kind::Service, id))?;
    let name = &service.spec.name;
    if service.removing {
        return Err(Refusal::Removing { service: name.clone() });
    }
    if service.revision.number != revision {
        let found = service.revision.number;
        return Err(Refusal::StaleRevision { service: name.clone(), wanted: revision, found });
    }
    state.sum.remove(digest::standing(service));
    for NewTask { slot, not_before } in slots.iter().copied() {
        let wanted = (1..=service.spec.replicas()).contains(&slot);
        if !wanted || state.index.live.contains_key(&(id, slot)) {
            continue;
        }
        let number = service.next_task;
        Arc::make_mut(service).next_task = number.saturating_add(1);
        let task = Task {
            id: TaskId { service: id, number },
            slot,
            revision: service.revision.clone(),
            created_at: entry.now,
            not_before,
            node: None,
            address: None,
            desired: Desired::Running,
            observed: Observed::new(entry.now),
            lost_since: None,
        };
        state.index.change_task(&task.revision, None, Some(Facets::of(&task)));
        entry.changes.push(Change::Task(task.id));
        state.sum.add(digest::task(&task));
        state.tasks.insert(task.id, Arc::new(task));
    }
    state.sum.add(digest::standing(service));
    Ok(Answer::Done)
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
    for id in tasks.iter().copied() {
        let Some(task) = state.tasks.get(&id).filter(|task| !task.is_live() && !task.holds_node()) else {
            continue;
        };
        state.index.change_task(&task.revision, Some(Facets::of(task)), None);
        state.sum.remove(digest::task(task));
        state.tasks.remove(&id);
        entry.changes.push(Change::Task(id));
    }
    Answer::Done
}
