//! The rollout of a service's current revision: which tasks it still has to replace, whether it is complete,
//! and what follows if its tasks fail.
//!
//! It is complete once no task is left to replace and every task that a node runs is ready; such a revision
//! is good. Failures after that are not the update's. An update whose tasks fail is rolled back to the newest
//! good revision, as the service's policy says. That makes a rollout of its own, which is never rolled back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use warren_types::{
    FailureAction, FailureOutcome, Health, Node, PauseCause, Revision, RolloutFailure, RolloutKind, Service,
    ServiceMode, Task, TaskExit, TaskId, TaskState, Timestamp,
};

use crate::settling::settling_time;
use crate::state::{NodeEligibility, RolloutStep, State, is_equivalent, is_final};

/// What is to be recorded of a rollout now, and when to look again if nothing changes.
#[derive(Debug, Default)]
pub(super) struct NextStep {
    pub step: Option<RolloutStep>,
    pub recheck_after: Option<Duration>,
}

/// The next step of the rollout of the service's current revision.
pub(super) fn next_step(state: &State, service: &Service, now: Timestamp) -> NextStep {
    if is_over(service) {
        return NextStep::default();
    }
    let step = |step| NextStep { step: Some(step), recheck_after: None };
    if let Some(failure) = failure(state, service, now) {
        return step(RolloutStep::Failed(failure));
    }
    let unsettled = unsettled_for(state, service, now);
    if unsettled == Some(Duration::ZERO) {
        return step(RolloutStep::Completed);
    }
    let updated = count_updated(state, service, now);
    match updated.filter(|updated| *updated > service.rollout.updated) {
        Some(updated) => step(RolloutStep::Updated(updated)),
        None => NextStep { step: None, recheck_after: unsettled },
    }
}

/// The rollout of the current revision needs no step any more.
pub(super) fn is_over(service: &Service) -> bool {
    service.removing || is_complete(service) || service.rollout_failure().is_some()
}

/// The rollout of the current revision is complete.
pub(crate) fn is_complete(service: &Service) -> bool {
    service.rollout.good_revision == service.revision.number
}

/// Numbers of the revisions, oldest first, that live tasks have and that the current one makes outdated.
pub(crate) fn outdated_revisions<'a>(
    state: &'a State,
    service: &'a Service,
) -> impl Iterator<Item = u64> + use<'a> {
    // Most have no tasks, and comparing two specs costs more than looking that up.
    let used = service.history.iter().filter(|known| count_live_tasks(state, service, known.number) > 0);
    used.filter(|known| !is_equivalent(known, &service.revision)).map(|known| known.number)
}

/// How many live tasks have the revision.
pub(crate) fn count_live_tasks(state: &State, service: &Service, revision: u64) -> u32 {
    state.index().revision_users.get(&(service.id, revision)).map_or(0, |users| users.live)
}

/// How many tasks of the revision receive traffic.
pub(crate) fn count_ready_tasks(state: &State, service: &Service, revision: u64) -> usize {
    let tasks = tasks_of_revision(state, service, revision);
    tasks.filter(|task| task.observed.ready && task.lost_since().is_none()).count()
}

/// When the next slot may be replaced, if the delay between two replacements is not over.
pub(crate) fn delayed_until(service: &Service, now: Timestamp) -> Option<Timestamp> {
    let record = &service.rollout;
    let until = record.updated_at + service.rollout_policy().delay;
    (record.updated > 0 && until > now).then_some(until)
}

/// The slots in which a task of the current revision failed, or is or was unhealthy, each with the first such
/// task. One whose node was removed is no evidence about the revision.
pub(super) fn failed_slots<'a>(state: &'a State, service: &Service) -> BTreeMap<u32, &'a Task> {
    let failed = |task: &&Task| {
        let ended = matches!(task.observed.state, TaskState::Failed | TaskState::Rejected);
        let node_exists = task.node.is_some_and(|node| state.node(&node).is_some());
        task.revision.number == service.revision.number
            && !task.is_surplus()
            && (ended || task.observed.health == Health::Unhealthy)
            && node_exists
            && task.observed.since > service.rollout.resumed_at
    };
    let over = state.unsettled_tasks_of(&service.id);
    let mut slots = BTreeMap::new();
    for task in over.chain(state.unhealthy_tasks_of(&service.id)).map(AsRef::as_ref).filter(failed) {
        slots.entry(task.slot).or_insert(task);
    }
    slots
}

/// The failure that stops the rollout now.
fn failure(state: &State, service: &Service, now: Timestamp) -> Option<RolloutFailure> {
    // A service that was just created has nothing to go back to. Whoever created it sees its tasks fail.
    if service.history.is_empty() {
        return None;
    }
    let failed = failed_slots(state, service);
    let total = state.desired_tasks(service);
    let policy = service.rollout_policy();
    let count = u32::try_from(failed.len()).unwrap_or(u32::MAX);
    if !policy.failure_ratio.is_exceeded(count, total) || policy.on_failure == Some(FailureAction::Continue) {
        return None;
    }
    let task = failed.into_values().min_by_key(|task| task.id).filter(|_| total > 0)?;
    Some(RolloutFailure {
        revision: service.revision.number,
        task: task.id,
        slot: task.slot,
        reason: failure_reason(task),
        at: now,
        outcome: failure_outcome(state, service),
    })
}

/// `failed: exited with code 1`.
fn failure_reason(task: &Task) -> Arc<str> {
    let what = match task.observed.state {
        TaskState::Rejected => "was rejected",
        TaskState::Failed => "failed",
        _ => "is unhealthy",
    };
    let why = match (task.observed.reason(), task.observed.exit()) {
        ("", Some(TaskExit { out_of_memory: true, .. })) => "it ran out of memory".to_owned(),
        ("", Some(TaskExit { code, .. })) => format!("exited with code {code}"),
        (reason, _) => reason.to_owned(),
    };
    match why.strip_prefix(Health::Unhealthy.as_str()) {
        _ if why.is_empty() => what.into(),
        Some(rest) => format!("is {}{rest}", Health::Unhealthy.as_str()).into(),
        None => format!("{what}: {why}").into(),
    }
}

fn failure_outcome(state: &State, service: &Service) -> FailureOutcome {
    let chosen = service.rollout_policy().on_failure;
    let cause = match (chosen, service.rollout.kind) {
        (Some(FailureAction::Pause), _) => PauseCause::Policy,
        (_, RolloutKind::Rollback) => PauseCause::IsRollback,
        (_, RolloutKind::Update) => match good_revision(service) {
            None => PauseCause::NoGoodRevision,
            Some(_) if chosen.is_none() && may_have_changed_data(state, service) => {
                PauseCause::DataMayHaveChanged
            }
            Some(target) if state.check_restorable(service, target).is_err() => PauseCause::NotRestorable,
            Some(target) => return FailureOutcome::RolledBack { to: target.number },
        },
    };
    FailureOutcome::Paused(cause)
}

/// The earlier revision that a failed update goes back to.
pub(crate) fn good_revision(service: &Service) -> Option<&Arc<Revision>> {
    service.history.iter().find(|known| known.number == service.rollout.good_revision)
}

/// A task of the current revision ran with write access to a volume.
fn may_have_changed_data(state: &State, service: &Service) -> bool {
    let has_run = |task: &Task| {
        let ran = matches!(task.observed.state, TaskState::Running | TaskState::Complete | TaskState::Failed);
        ran || task.observed.exit().is_some()
    };
    let mut tasks = state.tasks_of(&service.id);
    service.revision.task.writes_to_volumes()
        && tasks.any(|task| task.revision.number == service.revision.number && has_run(task))
}

/// For how long the tasks that run must still run until the rollout is complete: zero if it is; `None` if a
/// task is still to be replaced or to become ready. Tasks without a node, and those of nodes that are down,
/// do not count.
fn unsettled_for(state: &State, service: &Service, now: Timestamp) -> Option<Duration> {
    let id = service.id;
    let is_paired = state.index().paired_slots.range((id, 0)..=(id, u32::MAX)).next().is_some();
    if is_paired || has_tasks_to_replace(state, service) {
        return None;
    }
    let (mut longest, mut is_served) = (Duration::ZERO, false);
    for (_, number) in state.index().slot_tasks.from(id, 0) {
        let Some(task) = state.task(&TaskId { service: id, number }) else { continue };
        if task.node.is_none() || task.lost_since().is_some() {
            continue;
        }
        longest = longest.max(settling_time(service, task, now)?);
        is_served = true;
    }
    let is_finished = |task: &Arc<Task>| is_final(task) && is_equivalent(&task.revision, &service.revision);
    let has_result = is_served || state.unsettled_tasks_of(&id).any(is_finished);
    has_result.then_some(longest)
}

/// Tasks of earlier revisions that the rollout replaces. Those of a global service stay while their nodes, or all
/// nodes with the value of the label that they are for, are down or paused.
fn has_tasks_to_replace(state: &State, service: &Service) -> bool {
    let accepts =
        |task: &Task, node: &Node| state.task_eligibility(service, task, node) == NodeEligibility::Eligible;
    let is_to_replace = |task: &Task| {
        let node = task.node.and_then(|node| state.node(&node));
        let other = || task.label_value().is_some() && state.nodes().any(|node| accepts(task, node));
        let is_accepted = node.is_none_or(|node| accepts(task, node)) || other();
        service.spec.mode != ServiceMode::Global || (task.lost_since().is_none() && is_accepted)
    };
    outdated_revisions(state, service)
        .any(|revision| tasks_of_revision(state, service, revision).any(is_to_replace))
}

/// How many slots are updated; `None` if the caller does not need it.
fn count_updated(state: &State, service: &Service, now: Timestamp) -> Option<u32> {
    if service.rollout_policy().delay.is_zero() {
        return None;
    }
    let equivalent = service.history.iter().chain([&service.revision]);
    let equivalent = equivalent.filter(|known| is_equivalent(known, &service.revision));
    let tasks = equivalent.flat_map(|known| tasks_of_revision(state, service, known.number));
    let updated = tasks.filter(|task| settling_time(service, task, now) == Some(Duration::ZERO)).count();
    Some(u32::try_from(updated).unwrap_or(u32::MAX))
}

fn tasks_of_revision<'a>(
    state: &'a State,
    service: &Service,
    revision: u64,
) -> impl Iterator<Item = &'a Task> + use<'a> {
    let id = service.id;
    let numbers = state.index().live_tasks_of_revision(id, revision);
    numbers.filter_map(move |number| state.task(&TaskId { service: id, number })).map(AsRef::as_ref)
}
