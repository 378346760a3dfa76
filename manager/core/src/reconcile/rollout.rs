//! How far an update is, for people.

use warren_types::{Health, Mode, Service, Task, TaskState};

use crate::reason;
use crate::state::{State, same_shape};

/// How far a service is on its way to its current revision.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rollout {
    /// Of the wanted tasks, those that need not be replaced because of an update.
    pub updated: u32,
    /// Wanted tasks.
    pub total: u32,
    /// Why it does not go on before somebody changes the service, in words that say what to do.
    pub stopped: Option<String>,
    /// What it waits for.
    pub waiting: Option<String>,
}

/// How far the update to the service's revision is. The service may be as it was before, or be gone from the state:
/// then its update does not go on.
pub fn rollout(state: &State, service: &Service) -> Rollout {
    let behind: u32 = outdated_revisions(state, service).map(|revision| live(state, service, revision)).sum();
    let total = state.wanted(service);
    let superseded = superseded(state, service);
    let updated = total.saturating_sub(behind.saturating_add(later(state, service)));
    if behind == 0 || service.removing || superseded.is_some() {
        return Rollout { updated, total, stopped: superseded, waiting: None };
    }
    let stopped = failure(state, service).map(|task| stopped(state, service, task));
    let waiting = if stopped.is_none() { Some(waiting(state, service, behind)) } else { None };
    Rollout { updated, total, stopped, waiting }
}

/// Why the service's revision is not what its tasks are on their way to.
fn superseded(state: &State, service: &Service) -> Option<String> {
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
fn later(state: &State, service: &Service) -> u32 {
    let after = service.revision.number.saturating_add(1);
    let users = state.index().revisions.range((service.id, after)..=(service.id, u64::MAX));
    users.map(|(_, users)| users.live).sum()
}

/// Numbers of the revisions, oldest first, that live tasks have and that the current one makes outdated.
pub(super) fn outdated_revisions<'a>(
    state: &'a State,
    service: &'a Service,
) -> impl Iterator<Item = u64> + use<'a> {
    let outdated = service.history.iter().filter(|known| !same_shape(known, &service.revision));
    outdated.map(|known| known.number).filter(|number| live(state, service, *number) > 0)
}

fn live(state: &State, service: &Service, revision: u64) -> u32 {
    state.index().revisions.get(&(service.id, revision)).map_or(0, |users| users.live)
}

/// The first task of the current revision that failed, or that is or was unhealthy.
pub(super) fn failure<'a>(state: &'a State, service: &Service) -> Option<&'a Task> {
    let failed = |task: &&Task| {
        let ended = matches!(task.observed.state, TaskState::Failed | TaskState::Rejected);
        task.revision.number == service.revision.number
            && (ended || task.observed.health == Health::Unhealthy)
    };
    let over = state.unsettled_of(&service.id);
    over.chain(state.unhealthy_of(&service.id)).map(AsRef::as_ref).find(failed)
}

fn stopped(state: &State, service: &Service, task: &Task) -> String {
    let (name, slot) = (&service.spec.name, task.slot);
    let why = reason(state, None, task, state.clock());
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

fn waiting(state: &State, service: &Service, behind: u32) -> String {
    let (id, name) = (service.id, &service.spec.name);
    let pairs = state.index().paired.range((id, 0)..=(id, u32::MAX));
    let newer = pairs.filter_map(|(_, slot)| state.live_tasks(&id, *slot).nth(1));
    let next = newer.into_iter().find(|task| task.revision.number == service.revision.number);
    match next {
        Some(task) => match (task.slot, reason(state, None, task, state.clock())) {
            (slot, _) if task.observed.ready => format!("{name}.{slot} runs, and takes over"),
            (slot, why) if why.is_empty() => format!("{name}.{slot} runs, and is not ready yet"),
            (slot, why) if task.observed.state == TaskState::Running => {
                format!("{name}.{slot} runs, and is not ready yet: {why}")
            }
            (slot, why) => format!("the new task of {name}.{slot} {why}"),
        },
        None if service.spec.mode == Mode::Global => {
            format!("{behind} tasks of earlier revisions may be on nodes that are paused or down")
        }
        None => format!("{behind} tasks of earlier revisions are still to be replaced"),
    }
}
