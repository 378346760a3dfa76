//! The progress of an update, as users see it.

use std::time::Duration;

use warren_types::{
    FailureOutcome, PauseCause, RolloutFailure, RolloutKind, Service, ServiceMode, TaskId, TaskState,
    Timestamp,
};

use crate::explain::explain_task;
use crate::reconcile::update::{
    count_live_tasks, count_ready_tasks, delayed_until, good_revision, is_complete, outdated_revisions,
};
use crate::settling::settling_time;
use crate::state::{State, awaits_managers};

/// How far a service is on its way to its current revision.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rollout {
    /// Desired tasks that an update need not replace.
    pub updated: u32,
    /// The number of desired tasks.
    pub total: u32,
    /// What it does now.
    pub state: RolloutState,
    /// Why it stops until a user changes the service, with what to do.
    pub stop_reason: Option<String>,
    /// What it waits for.
    pub waiting_reason: Option<String>,
    /// The update that failed before, if the current revision is its rollback.
    pub rolled_back: Option<RolledBackUpdate>,
    /// The task whose failure stopped it, or led to the rollback.
    pub failed_task: Option<TaskId>,
}

/// An update that failed and was rolled back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RolledBackUpdate {
    /// Why, and to which revision.
    pub reason: String,
    /// The revision that failed.
    pub failed: u64,
    /// The revision whose tasks became the current ones again.
    pub restored: u64,
}

/// What a rollout does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RolloutState {
    /// Tasks are being replaced, or are not ready yet.
    #[default]
    Updating,
    /// All tasks that run are ready.
    Completed,
    /// Tasks failed. It continues when a user says so.
    Paused,
    /// As `Updating`, to an earlier revision.
    RollingBack,
    /// As `Completed`, of an earlier revision.
    RolledBack,
    /// As `Paused`, on the way to an earlier revision.
    RollbackPaused,
}

impl RolloutState {
    /// Human-readable: `rolled back`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Updating => "updating",
            Self::Completed => "completed",
            Self::Paused => "paused",
            Self::RollingBack => "rolling back",
            Self::RolledBack => "rolled back",
            Self::RollbackPaused => "rollback paused",
        }
    }
}

/// The progress of the update to the service's revision. `service` may be an earlier version, or deleted from
/// the state: then its update is superseded.
pub fn rollout(state: &State, service: &Service, now: Timestamp) -> Rollout {
    let behind: u32 =
        outdated_revisions(state, service).map(|revision| count_live_tasks(state, service, revision)).sum();
    let total = state.desired_tasks(service);
    let superseded = superseded_reason(state, service);
    let updated = total.saturating_sub(behind.saturating_add(count_later_tasks(state, service)));
    let failures = &service.rollout.failures;
    let progress = Rollout {
        updated,
        total,
        state: rollout_state(service, total),
        failed_task: failures.last().map(|failure| failure.task),
        rolled_back: failures.iter().find_map(|failure| rolled_back(service, failure)),
        ..Rollout::default()
    };
    if superseded.is_some() || service.removing {
        return Rollout { stop_reason: superseded, ..progress };
    }
    let image = &service.rollout.image_reason;
    match service.rollout_failure() {
        None if awaits_managers(service) && !image.is_empty() => {
            Rollout { waiting_reason: Some(image.to_string()), ..progress }
        }
        Some(failure) => Rollout { stop_reason: Some(stop_reason(state, service, failure)), ..progress },
        None if behind == 0 => progress,
        None => Rollout { waiting_reason: Some(waiting_reason(state, service, behind, now)), ..progress },
    }
}

/// A service without tasks has nothing to wait for.
pub(crate) fn rollout_state(service: &Service, total: u32) -> RolloutState {
    let is_done = is_complete(service) || total == 0;
    match (service.rollout.kind, service.rollout_failure()) {
        (RolloutKind::Update, Some(_)) => RolloutState::Paused,
        (RolloutKind::Rollback, Some(_)) => RolloutState::RollbackPaused,
        (RolloutKind::Update, None) if is_done => RolloutState::Completed,
        (RolloutKind::Rollback, None) if is_done => RolloutState::RolledBack,
        (RolloutKind::Update, None) => RolloutState::Updating,
        (RolloutKind::Rollback, None) => RolloutState::RollingBack,
    }
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

/// `web.1 failed: exited with code 1`.
pub(crate) fn failure_text(service: &Service, failure: &RolloutFailure) -> String {
    format!("{}.{} {}", service.spec.name, failure.slot, failure.reason)
}

fn rolled_back(service: &Service, failure: &RolloutFailure) -> Option<RolledBackUpdate> {
    let FailureOutcome::RolledBack { to } = failure.outcome else { return None };
    let (what, failed, now) = (failure_text(service, failure), failure.revision, service.revision.number);
    let reason = match is_complete(service) {
        true => format!(
            "{what}; revision {failed} was rolled back: the service runs revision {to} again, as {now}"
        ),
        false => format!("{what}; revision {failed} is being rolled back to revision {to}, as {now}"),
    };
    Some(RolledBackUpdate { reason, failed, restored: to })
}

fn stop_reason(state: &State, service: &Service, failure: &RolloutFailure) -> String {
    let name = &service.spec.name;
    let what = match service.rollout.kind {
        RolloutKind::Update => "update",
        RolloutKind::Rollback => "rollback",
    };
    let why = match failure.outcome {
        FailureOutcome::Paused(cause) => pause_reason(state, service, failure.revision, cause),
        FailureOutcome::RolledBack { .. } => String::new(),
    };
    format!(
        "{}; the {what} is paused{why}; {}; fix it with `warren service update {name}`, continue with `warren \
         service update {name} --resume`, or go back with `warren service rollback {name}`",
        failure_text(service, failure),
        running_revisions(state, service),
    )
}

fn pause_reason(state: &State, service: &Service, revision: u64, cause: PauseCause) -> String {
    let because = |why: String| format!(", and not rolled back, because {why}");
    match cause {
        PauseCause::Policy if service.rollout.kind == RolloutKind::Rollback => {
            ", as --rollback-on-failure says".to_owned()
        }
        PauseCause::Policy => ", as --update-on-failure says".to_owned(),
        PauseCause::DataMayHaveChanged => because(format!(
            "a task of revision {revision} ran and may have changed the data of its volumes \
             (--update-on-failure rollback would go back all the same)"
        )),
        PauseCause::NoGoodRevision => because("no earlier revision was ready".to_owned()),
        PauseCause::NotRestorable => {
            let refusal =
                good_revision(service).and_then(|earlier| state.check_restorable(service, earlier).err());
            because(refusal.map_or_else(
                || "the earlier revision could not be restored then".to_owned(),
                |refusal| format!("the earlier revision cannot be restored: {refusal}"),
            ))
        }
        PauseCause::IsRollback => "; it is not rolled back again".to_owned(),
    }
}

/// `now running: revision 1 (2 tasks), revision 2 (1 task)`.
fn running_revisions(state: &State, service: &Service) -> String {
    let known = service.history.iter().chain([&service.revision]).map(|known| known.number);
    let running = known.map(|number| (number, count_ready_tasks(state, service, number)));
    let running: Vec<String> = running
        .filter(|(_, tasks)| *tasks > 0)
        .map(|(number, tasks)| {
            format!("revision {number} ({tasks} task{})", if tasks == 1 { "" } else { "s" })
        })
        .collect();
    match running.is_empty() {
        true => "no task is ready now".to_owned(),
        false => format!("now running: {}", running.join(", ")),
    }
}

fn waiting_reason(state: &State, service: &Service, behind: u32, now: Timestamp) -> String {
    let (id, name) = (service.id, &service.spec.name);
    let pairs = state.index().paired_slots.range((id, 0)..=(id, u32::MAX));
    let newer = pairs.filter_map(|(_, slot)| state.live_tasks(&id, *slot).nth(1));
    let next = newer.into_iter().find(|task| task.revision.number == service.revision.number);
    let Some(task) = next else {
        return match delayed_until(service, now) {
            Some(until) => format!("the next task is replaced at {until} (--update-delay)"),
            None if service.spec.mode == ServiceMode::Global => {
                format!("{behind} tasks of earlier revisions may be on nodes that are paused or down")
            }
            None => format!("{behind} tasks of earlier revisions are still to be replaced"),
        };
    };
    let slot = task.slot;
    match settling_time(service, task, now) {
        Some(Duration::ZERO) => return format!("{name}.{slot} is running and takes over"),
        Some(left) => return format!("{name}.{slot} is running, settling for {} more", seconds(left)),
        None => {}
    }
    match explain_task(state, None, task, now) {
        why if why.is_empty() => format!("{name}.{slot} is running but not ready"),
        why if task.observed.state == TaskState::Running => {
            format!("{name}.{slot} is running but not ready: {why}")
        }
        why => format!("the new task of {name}.{slot}: {why}"),
    }
}

/// Whole seconds, rounded up.
fn seconds(time: Duration) -> String {
    format!("{}s", time.as_millis().div_ceil(1000))
}
