//! Commands on tasks, all of them planned.

use std::collections::BTreeSet;
use std::sync::Arc;

use warren_types::{
    BoxedDefault, DesiredTaskState, NodeId, RareTaskFields, ServiceId, ServiceMode, Task, TaskId, TaskStatus,
};

use super::ApplyContext;
use crate::state::index::Facets;
use crate::state::label_values::ValueNumbers;
use crate::state::{CommandResponse, NewTask, ObjectKind, Refusal, State, StateChange, digest};

pub(super) fn create(
    state: &mut State,
    entry: &mut ApplyContext,
    id: ServiceId,
    revision: u64,
    slots: &[NewTask],
) -> Result<CommandResponse, Refusal> {
    let service = state.services.get(&id).ok_or_else(|| Refusal::not_found(ObjectKind::Service, id))?;
    let name = &service.spec.name;
    if service.removing {
        return Err(Refusal::ServiceRemoving { service: name.clone() });
    }
    let created = state.new_task_revision(service).clone();
    if created.number != revision {
        let found = created.number;
        return Err(Refusal::StaleRevision { service: name.clone(), wanted: revision, found });
    }
    let service = service.clone();
    let mut next_task = service.next_task_number;
    // Each slot is handled once, so that a task created by one item does not satisfy another one.
    let mut seen = BTreeSet::new();
    let mut values = service.spec.per.is_some().then(|| ValueNumbers::of(state, &id));
    for new in slots.iter().filter(|new| new.desired <= DesiredTaskState::Running) {
        let NewTask { slot, not_before, desired, replaces, bound_to, ref label_value } = *new;
        let is_desired = match (&mut values, label_value) {
            (None, None) => is_desired_slot(state, &service.spec.mode, slot, bound_to),
            (Some(values), Some(value)) => bound_to.is_none() && values.claim(value, slot),
            (None, Some(_)) | (Some(_), None) => false,
        };
        if !is_desired || !seen.insert(slot) || !is_slot_free(state, id, slot, replaces) {
            continue;
        }
        let task = Task {
            id: TaskId { service: id, number: next_task },
            slot,
            revision: created.clone(),
            created_at: entry.now,
            node: None,
            address: None,
            desired,
            observed: TaskStatus::new(entry.now),
            rare: BoxedDefault::new(RareTaskFields {
                not_before,
                bound_to,
                label_value: label_value.clone(),
                ..RareTaskFields::default()
            }),
        };
        next_task = next_task.saturating_add(1);
        state.index.change_task(&task, None, Some(Facets::of(&task)));
        entry.changes.push(StateChange::Task(task.id));
        state.digest_sum.add(digest::task(&task));
        state.tasks.insert(task.id, Arc::new(task));
    }
    if let Some(shared) = state.services.get_mut(&id).filter(|_| next_task != service.next_task_number) {
        state.digest_sum.remove(digest::service_status(shared));
        let service = Arc::make_mut(shared);
        service.next_task_number = next_task;
        state.digest_sum.add(digest::service_status(service));
    }
    Ok(CommandResponse::Done)
}

/// Whether the service has such a slot: one of its replicas, or the node that the task is for.
fn is_desired_slot(state: &State, mode: &ServiceMode, slot: u32, bound_to: Option<NodeId>) -> bool {
    match (mode, bound_to) {
        (ServiceMode::Replicated { replicas }, None) => (1..=*replicas).contains(&slot),
        (ServiceMode::Global, Some(node)) => {
            state.node(&node).is_some_and(|node| u32::from(node.number) == slot)
        }
        (ServiceMode::Replicated { .. }, Some(_)) | (ServiceMode::Global, None) => false,
    }
}

/// Whether the slot is vacant, or has only the task to replace.
fn is_slot_free(state: &State, service: ServiceId, slot: u32, replaces: Option<u64>) -> bool {
    let mut there = state.index.slot_tasks(service, slot).map(|task| task.number);
    there.next() == replaces && there.next().is_none()
}

pub(super) fn set_desired(
    state: &mut State,
    entry: &mut ApplyContext,
    tasks: &[TaskId],
    desired: DesiredTaskState,
) -> CommandResponse {
    for id in tasks.iter().copied() {
        let Some(task) = state.tasks.get(&id).filter(|task| task.desired < desired) else { continue };
        let holder = task.node.filter(|_| task.holds_resources());
        let surplus = desired == DesiredTaskState::Remove && state.is_surplus_slot(&id.service, task.slot);
        state.update_task(entry, id, |task| {
            task.desired = desired;
            if surplus {
                task.rare.update(|special| special.surplus = true);
            }
        });
        if let Some(node) = holder {
            state.bump_assignment(entry, node);
        }
    }
    CommandResponse::Done
}

pub(super) fn delete(state: &mut State, entry: &mut ApplyContext, tasks: &[TaskId]) -> CommandResponse {
    let mut services = BTreeSet::new();
    for id in tasks.iter().copied() {
        let Some(task) = state.tasks.get(&id).filter(|task| !task.is_live() && !task.holds_resources())
        else {
            continue;
        };
        let log_node = task.log_node();
        state.index.change_task(task, Some(Facets::of(task)), None);
        state.digest_sum.remove(digest::task(task));
        state.tasks.remove(&id);
        services.insert(id.service);
        entry.changes.push(StateChange::Task(id));
        // The nodes of a service that is being removed were told with its removal.
        let retained = state.services.get(&id.service).is_some_and(|service| !service.removing);
        if let Some(node) = log_node.filter(|_| retained) {
            state.bump_assignment(entry, node);
        }
    }
    services.into_iter().for_each(|service| state.prune_revisions(entry, service));
    CommandResponse::Done
}

impl State {
    /// Whether the replicated service has fewer replicas than this slot.
    fn is_surplus_slot(&self, service: &ServiceId, slot: u32) -> bool {
        let service = self.services.get(service).filter(|service| !service.removing);
        service.and_then(|service| service.spec.replicas()).is_some_and(|replicas| slot > replicas)
    }

    /// Marks the ended tasks whose slots the service does not have any more. Those that still run are marked
    /// when they are removed.
    pub(super) fn mark_surplus_tasks(&mut self, entry: &mut ApplyContext, service: &ServiceId) {
        let ended = self.unsettled_tasks_of(service).filter(|task| !task.is_live() && !task.is_surplus());
        let surplus = ended.filter(|task| self.is_surplus_slot(service, task.slot));
        let surplus: Vec<TaskId> = surplus.map(|task| task.id).collect();
        for id in surplus {
            self.update_task(entry, id, |task| task.rare.update(|special| special.surplus = true));
        }
    }

    /// The nodes that retain logs of the service's ended tasks get a new assignment.
    pub(super) fn bump_log_nodes(&mut self, entry: &mut ApplyContext, service: &ServiceId) {
        let nodes: BTreeSet<NodeId> =
            self.unsettled_tasks_of(service).filter_map(|task| task.log_node()).collect();
        nodes.into_iter().for_each(|node| self.bump_assignment(entry, node));
    }
}
