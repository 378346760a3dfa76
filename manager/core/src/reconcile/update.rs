//! Which tasks an update of a service still has to replace, and whether one of its own tasks failed.

use warren_types::{Health, Service, Task, TaskState};

use crate::state::{State, is_equivalent};

/// Numbers of the revisions, oldest first, that live tasks have and that the current one makes outdated.
pub(crate) fn outdated_revisions<'a>(
    state: &'a State,
    service: &'a Service,
) -> impl Iterator<Item = u64> + use<'a> {
    let outdated = service.history.iter().filter(|known| !is_equivalent(known, &service.revision));
    outdated.map(|known| known.number).filter(|number| count_live_tasks(state, service, *number) > 0)
}

/// How many live tasks have the revision.
pub(crate) fn count_live_tasks(state: &State, service: &Service, revision: u64) -> u32 {
    state.index().revision_users.get(&(service.id, revision)).map_or(0, |users| users.live)
}

/// The first task of the current revision that failed, or that is or was unhealthy.
pub(crate) fn first_failed_task<'a>(state: &'a State, service: &Service) -> Option<&'a Task> {
    let failed = |task: &&Task| {
        let ended = matches!(task.observed.state, TaskState::Failed | TaskState::Rejected);
        task.revision.number == service.revision.number
            && (ended || task.observed.health == Health::Unhealthy)
    };
    let over = state.unsettled_tasks_of(&service.id);
    over.chain(state.unhealthy_tasks_of(&service.id)).map(AsRef::as_ref).find(failed)
}
