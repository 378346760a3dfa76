//! The progress of an update.

use warren_types::{Health, Service, ServiceMode, Task, TaskState};

use crate::explain::explain_task;
use crate::reconcile::update::{count_live_tasks, first_failed_task, outdated_revisions};
use crate::state::State;

/// How far a service is on its way to its current revision.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rollout {
    /// Desired tasks that an update need not replace.
    pub updated: u32,
    /// The number of desired tasks.
    pub total: u32,
    /// Why it stops until a user changes the service, with what to do.
    pub stop_reason: Option<String>,
    /// What it waits for.
    pub waiting_reason: Option<String>,
}

/// The progress of the update to the service's revision. `service` may be an earlier version, or deleted from
/// the state: then its update is superseded.
pub fn rollout(state: &State, service: &Service) -> Rollout {
    let behind: u32 =
        outdated_revisions(state, service).map(|revision| count_live_tasks(state, service, revision)).sum();
    let total = state.desired_tasks(service);
    let superseded = superseded_reason(state, service);
    let updated = total.saturating_sub(behind.saturating_add(count_later_tasks(state, service)));
    if behind == 0 || service.removing || superseded.is_some() {
        return Rollout { updated, total, stop_reason: superseded, waiting_reason: None };
    }
    let stopped = first_failed_task(state, service).map(|task| stop_reason(state, service, task));
    let waiting = if stopped.is_none() { Some(waiting_reason(state, service, behind)) } else { None };
    Rollout { updated, total, stop_reason: stopped, waiting_reason: waiting }
}

/// Why the service's revision is not the target of its tasks any more.
fn superseded_reason(state: &State, service: &Service) -> Option<String> {
    let (name, number) = (&service.spec.name, service.revision.number);
    match state.service(&service.id).map(|now| now.revision.number) {
        _ if service.removing => None,
        None => Some(format!("{name} was removed meanwhile")),
        Some(now) if now > number => {
            Some(format!("{name} was changed again meanwhile: it is at revision {now}, not {number}"))
        }
        Some(_) => None,
    }
}

/// How many live tasks have a later revision than the service's.
fn count_later_tasks(state: &State, service: &Service) -> u32 {
    let after = service.revision.number.saturating_add(1);
    let users = state.index().revision_users.range((service.id, after)..=(service.id, u64::MAX));
    users.map(|(_, users)| users.live).sum()
}

fn stop_reason(state: &State, service: &Service, task: &Task) -> String {
    let (name, slot) = (&service.spec.name, task.slot);
    let why = explain_task(state, None, task, state.clock());
    let what = match task.observed.state {
        TaskState::Rejected => format!("was rejected: {why}"),
        TaskState::Failed => format!("failed: {why}"),
        _ if why.starts_with(Health::Unhealthy.as_str()) => format!("is {why}"),
        _ => format!("is unhealthy: {why}"),
    };
    format!(
        "{name}.{slot} {what}; the update stopped: fix it with `warren service update {name}`, or go back \
         with `warren service rollback {name}`"
    )
}

fn waiting_reason(state: &State, service: &Service, behind: u32) -> String {
    let (id, name) = (service.id, &service.spec.name);
    let pairs = state.index().paired_slots.range((id, 0)..=(id, u32::MAX));
    let newer = pairs.filter_map(|(_, slot)| state.live_tasks(&id, *slot).nth(1));
    let next = newer.into_iter().find(|task| task.revision.number == service.revision.number);
    match next {
        Some(task) => match (task.slot, explain_task(state, None, task, state.clock())) {
            (slot, _) if task.observed.ready => format!("{name}.{slot} is running and takes over"),
            (slot, why) if why.is_empty() => format!("{name}.{slot} is running but not ready"),
            (slot, why) if task.observed.state == TaskState::Running => {
                format!("{name}.{slot} is running but not ready: {why}")
            }
            (slot, why) => format!("the new task of {name}.{slot}: {why}"),
        },
        None if service.spec.mode == ServiceMode::Global => {
            format!("{behind} tasks of earlier revisions may be on nodes that are paused or down")
        }
        None => format!("{behind} tasks of earlier revisions are still to be replaced"),
    }
}
