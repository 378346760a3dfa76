//! The next action for a task.

use std::time::Duration;

use warren_types::spec::MountSource;
use warren_types::spec::{DEFAULT_STOP_GRACE, MAX_RESTART_DELAY, WITHDRAWAL_TIMEOUT};
use warren_types::{DesiredTaskState, Health, ImageDigest, TaskAssignment, TaskExit, Timestamp};

use crate::action::{Action, ActionKind, HookKind};
use crate::attempt_history::{AttemptHistory, AttemptPhase, TerminalState};
use crate::display;
use crate::observed_task::{
    ContainerState, Freshness, HookProgress, ImageState, MAX_RETRY_DELAY, ObservedTask, PortState,
    ResourceState,
};
use crate::restart;

/// The least time between the stop signal and SIGKILL, also if the hooks before the signal took all of the grace
/// period.
const GRACE_AFTER_HOOKS: Duration = Duration::from_secs(2);
/// A process that survives SIGKILL (it hangs in the kernel) is killed again after this.
const KILL_RETRY_DELAY: Duration = Duration::from_secs(10);

/// The result of [`step()`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextStep {
    /// Execute this, record the result in [`ObservedTask`], and call again.
    Do(Action),
    /// Nothing to do before this time, unless something happens.
    WaitUntil(Timestamp),
    /// Nothing to do unless something happens.
    Settled,
}

/// The next action for one task. `desired` is `None` when the task is not assigned any more: it is removed.
/// Without a change, a repeated call returns the same result.
pub fn step(desired: Option<&TaskAssignment>, found: &ObservedTask, now: Timestamp) -> NextStep {
    if found.freshness != Freshness::Fresh {
        // Traffic to a process that fails its health checks is withdrawn even if containerd does not answer.
        let fails = found.health(desired) == Health::Unhealthy && found.ports == PortState::Routed;
        let todo = fails.then_some(Action::ReservePorts).into_iter().chain([Action::Inspect]);
        return first_without_backoff(todo, found, now);
    }
    let grace = desired.map_or(DEFAULT_STOP_GRACE, |task| task.spec.stop_grace);
    let ended = found.history.terminal_state().is_some();
    let drain = desired.map_or(Duration::ZERO, |task| task.spec.drain_delay);
    let hooks = desired.is_some_and(|task| !task.spec.pre_stop.is_empty() && found.is_set_up(task));
    let stopping = StopPlan { drain, hooks, grace, extent: StopScope::KeepRecord, disconnected_for: None };
    let rest = match desired {
        Some(task) if task.desired <= DesiredTaskState::Running && !ended && found.eviction.is_some() => {
            end_evicted(task, found, now)
        }
        Some(task) if task.desired <= DesiredTaskState::Running && !ended => {
            match DisconnectLimit::of(task, found) {
                DisconnectLimit::Unlimited => start_task(task, found, now),
                DisconnectLimit::Remaining(time) => step_until(start_task(task, found, now), now + time),
                DisconnectLimit::Exceeded(time) => {
                    stop_disconnected(task, found, StopPlan { disconnected_for: Some(time), ..stopping }, now)
                }
            }
        }
        Some(task) if task.desired <= DesiredTaskState::Shutdown => stop_task(found, stopping, now),
        _ => stop_task(found, StopPlan { extent: StopScope::Everything, ..stopping }, now),
    };
    if found.eviction.is_some() { evict(found, rest, now) } else { rest }
}

/// How long a task may still run while the node is disconnected.
enum DisconnectLimit {
    /// The node is connected, or the task has no `stop_after`.
    Unlimited,
    Remaining(Duration),
    /// The limit is exceeded, or was when the stop signal was sent.
    Exceeded(Duration),
}

impl DisconnectLimit {
    fn of(task: &TaskAssignment, found: &ObservedTask) -> Self {
        let Some(time) = task.spec.on_disconnect.stop_after() else { return Self::Unlimited };
        match found.disconnected_for {
            // A task that is being stopped does not continue if a manager is back a moment later.
            _ if found.stop.is_some() => Self::Exceeded(time),
            Some(alone) if alone >= time => Self::Exceeded(time),
            Some(alone) => Self::Remaining(time - alone),
            None => Self::Unlimited,
        }
    }
}

/// Its node has been disconnected for too long: its process is stopped permanently, since the task may have
/// been replaced by now. A task without a process waits for the managers.
fn stop_disconnected(
    task: &TaskAssignment,
    found: &ObservedTask,
    stopping: StopPlan,
    now: Timestamp,
) -> NextStep {
    match found.container {
        _ if found.stop.is_some() => stop_task(found, stopping, now),
        ContainerState::Running { .. } => stop_task(found, stopping, now),
        ContainerState::Stopped { exit, at } => after_exit(task, found, exit, at, now),
        ContainerState::Absent | ContainerState::Recorded | ContainerState::Created => {
            let may_serve =
                !task.ports.is_empty() && matches!(found.ports, PortState::Routed | PortState::Unknown);
            let withdraw = may_serve.then_some(Action::ReservePorts);
            first_without_backoff(withdraw, found, now)
        }
    }
}

/// Its node ends it because of its writable layer: by SIGKILL, since it may go on to write, also if it is being
/// stopped. The layer is removed before the end is recorded, which a full disk may prevent until then. `rest` is what
/// follows.
fn evict(found: &ObservedTask, rest: NextStep, now: Timestamp) -> NextStep {
    let may_have_layer = match found.container {
        ContainerState::Running { .. } => {
            let killed_at = found.stop.and_then(|stop| stop.killed_at);
            let due =
                killed_at.map_or(Due::Now, |at| check_due(at + KILL_RETRY_DELAY, now, KILL_RETRY_DELAY));
            return when_due(due, Action::Kill, found, now);
        }
        ContainerState::Stopped { .. } | ContainerState::Recorded => true,
        ContainerState::Created | ContainerState::Absent => false,
    };
    let layer = (may_have_layer && found.layer != ResourceState::Absent).then_some(Action::RemoveLayer);
    match first_without_backoff(layer, found, now) {
        NextStep::Do(action) => NextStep::Do(action),
        NextStep::WaitUntil(moment) => step_until(rest, moment),
        NextStep::Settled => rest,
    }
}

/// Records the end of an evicted task that should run.
fn end_evicted(task: &TaskAssignment, found: &ObservedTask, now: Timestamp) -> NextStep {
    match found.container {
        ContainerState::Stopped { exit, at } => after_exit(task, found, exit, at, now),
        _ => record_history(history_after_exit(task, found, found.history.exit, now), found, now),
    }
}

/// How a task is stopped.
#[derive(Clone, Copy)]
struct StopPlan {
    /// Between the withdrawal of its endpoint and the stop signal, if the task may have clients.
    drain: Duration,
    /// Whether pre_stop hooks run before the stop signal.
    hooks: bool,
    /// From the start of the pre_stop hooks, or the stop signal, to SIGKILL.
    grace: Duration,
    extent: StopScope,
    /// Set if the node stops it because it has been disconnected for this long.
    disconnected_for: Option<Duration>,
}

/// What is deleted of a stopped task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StopScope {
    /// The record and the log stay for inspection.
    KeepRecord,
    /// Everything is deleted.
    Everything,
}

/// A failed action is retried after a delay that grows.
fn with_backoff(action: Action, found: &ObservedTask, now: Timestamp) -> NextStep {
    match found.failures.get(&action.kind()) {
        Some(failure) => match check_due(failure.retry_at(), now, MAX_RETRY_DELAY) {
            Due::Now => NextStep::Do(action),
            Due::At(moment) => NextStep::WaitUntil(moment),
        },
        None => NextStep::Do(action),
    }
}

/// The first of `actions` that is not in its retry delay; one that fails does not block those after it.
fn first_without_backoff(
    actions: impl IntoIterator<Item = Action>,
    found: &ObservedTask,
    now: Timestamp,
) -> NextStep {
    let mut answer = NextStep::Settled;
    for action in actions {
        answer = match with_backoff(action, found, now) {
            NextStep::Do(action) => return NextStep::Do(action),
            NextStep::WaitUntil(moment) => step_until(answer, moment),
            NextStep::Settled => answer,
        };
    }
    answer
}

enum Due {
    Now,
    At(Timestamp),
}

/// Whether `moment` is due. If it is further ahead than it ever can be, the clock was set back: it is due.
fn check_due(moment: Timestamp, now: Timestamp, longest: Duration) -> Due {
    if moment <= now || moment.saturating_since(now) > longest { Due::Now } else { Due::At(moment) }
}

fn start_task(task: &TaskAssignment, found: &ObservedTask, now: Timestamp) -> NextStep {
    if let Some((action, failure)) = found.rejection() {
        let reason = format!("{action}: {}", failure.reason);
        return record_history(found.history.with_end(now, TerminalState::Rejected, reason), found, now);
    }
    match found.container {
        ContainerState::Running { since } => keep_running(task, found, since, now),
        ContainerState::Stopped { exit, at } => after_exit(task, found, exit, at, now),
        ContainerState::Absent | ContainerState::Recorded | ContainerState::Created => {
            next_attempt(task, found, now)
        }
    }
}

fn record_history(history: AttemptHistory, found: &ObservedTask, now: Timestamp) -> NextStep {
    with_backoff(Action::RecordHistory(history), found, now)
}

/// Recreates what an agent that died may have left undone around a running process.
fn keep_running(task: &TaskAssignment, found: &ObservedTask, since: Timestamp, now: Timestamp) -> NextStep {
    let recorded = matches!(found.history.phase, AttemptPhase::Started { .. });
    let keep = restart::max_kept_starts(&task.spec.restart);
    let share = port_action(task, found);
    // This comes first if a process that fails its health checks receives traffic.
    let withdraw =
        share.clone().filter(|action| *action == Action::ReservePorts && found.ports == PortState::Routed);
    let health = found.unrecorded_health(Some(task)).filter(|_| recorded);
    let todo = [
        withdraw,
        (found.network != ResourceState::Present).then_some(Action::EnsureNetwork),
        (found.files != ResourceState::Present).then_some(Action::EnsureFiles),
        share,
        (!recorded).then(|| Action::RecordHistory(found.history.with_start(since, keep))),
        health.map(|health| Action::RecordHistory(found.history.with_health(health))),
        (recorded && !found.is_set_up(task)).then(|| post_start_action(found, now)).flatten(),
    ];
    first_without_backoff(todo.into_iter().flatten(), found, now)
}

/// The next action for the hooks of a started process. If one fails, the task ends.
fn post_start_action(found: &ObservedTask, now: Timestamp) -> Option<Action> {
    match &found.post_start {
        HookProgress::Pending => Some(Action::RunHooks(HookKind::PostStart)),
        HookProgress::Running { .. } => None,
        HookProgress::Ended { failure: None, .. } => {
            Some(Action::RecordHistory(found.history.with_hooks_done()))
        }
        HookProgress::Ended { failure: Some(failure), .. } => {
            let reason = format!("{} {failure}", HookKind::PostStart);
            Some(Action::RecordHistory(found.history.with_end(now, TerminalState::Failed, reason)))
        }
    }
}

/// The next action for its published ports: a process receives traffic once its post_start hooks have ended, and
/// with health checks only while they succeed.
fn port_action(task: &TaskAssignment, found: &ObservedTask) -> Option<Action> {
    let (desired, action) = match found.health(Some(task)) {
        Health::None | Health::Healthy if found.is_set_up(task) => (PortState::Routed, Action::RouteTraffic),
        _ => (PortState::Reserved, Action::ReservePorts),
    };
    (!task.ports.is_empty() && found.ports != desired).then_some(action)
}

/// The exit is recorded before the process is deleted, since it is lost with it.
fn after_exit(
    task: &TaskAssignment,
    found: &ObservedTask,
    exit: TaskExit,
    at: Timestamp,
    now: Timestamp,
) -> NextStep {
    if found.ports == PortState::Routed {
        return with_backoff(Action::ReservePorts, found, now);
    }
    match found.history.phase {
        AttemptPhase::Pending | AttemptPhase::Started { .. } => {
            record_history(history_after_exit(task, found, Some(exit), at), found, now)
        }
        AttemptPhase::Waiting { .. } | AttemptPhase::Ended { .. } => {
            with_backoff(Action::DeleteProcess, found, now)
        }
    }
}

fn history_after_exit(
    task: &TaskAssignment,
    found: &ObservedTask,
    exit: Option<TaskExit>,
    at: Timestamp,
) -> AttemptHistory {
    if let Some(reason) = &found.eviction {
        let history = found.history.with_end(at, TerminalState::Failed, reason.clone());
        return AttemptHistory { exit, ..history };
    }
    let next =
        restart::next_after_exit(&task.spec.restart, &found.history, exit, at, task.spec.limits.memory);
    let hint = display::exit_hint(&task.spec, exit, next.last_run(at));
    let (AttemptPhase::Ended { at, terminal_state, reason }, Some(hint)) = (next.phase.clone(), hint) else {
        return next;
    };
    next.with_end(at, terminal_state, format!("{reason}; {hint}"))
}

fn next_attempt(task: &TaskAssignment, found: &ObservedTask, now: Timestamp) -> NextStep {
    if found.ports == PortState::Routed {
        return with_backoff(Action::ReservePorts, found, now);
    }
    match found.history.phase {
        // A process that was started and does not exist any more is lost.
        AttemptPhase::Started { .. } => {
            record_history(history_after_exit(task, found, None, now), found, now)
        }
        AttemptPhase::Waiting { until, .. } => match check_due(until, now, MAX_RESTART_DELAY) {
            Due::Now => record_history(found.history.with_pending(), found, now),
            Due::At(moment) => NextStep::WaitUntil(moment),
        },
        AttemptPhase::Pending | AttemptPhase::Ended { .. } => prepare_and_start(task, found, now),
    }
}

/// The task's image digest, as soon as it is pinned for its whole revision: by managers, or by the reference
/// itself.
pub fn resolved_digest(task: &TaskAssignment) -> Option<ImageDigest> {
    task.digest.clone().or_else(|| task.spec.image.digest())
}

fn has_volumes(task: &TaskAssignment) -> bool {
    task.spec.mounts.iter().any(|mount| matches!(mount.source, MountSource::Volume { .. }))
}

/// The image first, since it may take long; the rest while managers pin the digest. Volumes are filled from
/// the image, so they come after that, and secrets are on the node no longer than needed. Only the start itself waits
/// for a bootstrap service.
fn prepare_and_start(task: &TaskAssignment, found: &ObservedTask, now: Timestamp) -> NextStep {
    let pin = resolved_digest(task);
    // A record keeps what it was created from. If the container could not be created, its image may be
    // missing, and so may that of volumes that could not be filled.
    let failed = |verb| found.failures.contains_key(&verb);
    let needs_image = found.container == ContainerState::Absent
        || failed(ActionKind::EnsureContainer)
        || failed(ActionKind::EnsureVolumes);
    let has_image = match &found.image {
        ImageState::Present(digest) => pin.as_ref().is_none_or(|pin| pin == digest),
        ImageState::Unknown | ImageState::Pulling { .. } => false,
    };
    let action = if needs_image && !has_image {
        Action::EnsureImage
    } else if found.network != ResourceState::Present {
        Action::EnsureNetwork
    } else if found.files != ResourceState::Present {
        Action::EnsureFiles
    } else if !task.ports.is_empty() && found.ports != PortState::Reserved {
        Action::ReservePorts
    } else if found.container == ContainerState::Absent && pin.is_none() {
        return NextStep::Settled;
    } else if has_volumes(task) && found.volumes != ResourceState::Present {
        Action::EnsureVolumes
    } else if task.spec.has_secret_objects() && found.secret_objects != ResourceState::Present {
        Action::EnsureSecretObjects
    } else if found.container != ContainerState::Created {
        Action::EnsureContainer
    } else if task.desired == DesiredTaskState::Running && found.awaited_service.is_none() {
        Action::Start
    } else {
        return NextStep::Settled;
    };
    with_backoff(action, found, now)
}

fn stop_task(found: &ObservedTask, stopping: StopPlan, now: Timestamp) -> NextStep {
    let extent = stopping.extent;
    let release = (found.ports != PortState::Released).then_some(Action::ReleasePorts);
    match found.container {
        // Traffic is withdrawn first, but a failure to withdraw it keeps nothing running.
        ContainerState::Running { .. } => match first_without_backoff(release, found, now) {
            NextStep::Do(action) => NextStep::Do(action),
            NextStep::WaitUntil(moment) => step_until(stop_process(found, stopping, now), moment),
            NextStep::Settled => stop_process(found, stopping, now),
        },
        _ if found.history.terminal_state().is_none() => {
            record_history(stopped_history(found, stopping, now), found, now)
        }
        ContainerState::Stopped { .. } | ContainerState::Created => {
            with_backoff(Action::DeleteProcess, found, now)
        }
        ContainerState::Recorded if extent == StopScope::Everything => {
            with_backoff(Action::RemoveContainer, found, now)
        }
        ContainerState::Recorded | ContainerState::Absent => {
            let has_layer =
                found.container == ContainerState::Recorded && found.layer != ResourceState::Absent;
            let layer = has_layer.then_some(Action::RemoveLayer);
            let secret_objects =
                (found.secret_objects != ResourceState::Absent).then_some(Action::RemoveSecretObjects);
            let network = (found.network != ResourceState::Absent).then_some(Action::RemoveNetwork);
            let files = extent == StopScope::Everything && found.files != ResourceState::Absent;
            let files = files.then_some(Action::RemoveFiles);
            let rest = [release, layer, secret_objects, network, files];
            first_without_backoff(rest.into_iter().flatten(), found, now)
        }
    }
}

fn step_until(step: NextStep, moment: Timestamp) -> NextStep {
    match step {
        NextStep::Do(action) => NextStep::Do(action),
        NextStep::WaitUntil(other) => NextStep::WaitUntil(moment.min(other)),
        NextStep::Settled => NextStep::WaitUntil(moment),
    }
}

fn stop_process(found: &ObservedTask, stopping: StopPlan, now: Timestamp) -> NextStep {
    let StopPlan { drain, hooks, grace, .. } = stopping;
    let hooks_since = match found.pre_stop {
        HookProgress::Running { since } => Some(since),
        HookProgress::Pending | HookProgress::Ended { .. } => None,
    };
    let (action, due) = match (found.stop, hooks_since) {
        (None, Some(since)) => (Action::SignalStop, check_due(since + grace, now, grace)),
        (None, None) => {
            let due = found.drain_start.map_or(Due::Now, |start| {
                let withdrawn = found.withdrawn_at.unwrap_or(start + WITHDRAWAL_TIMEOUT);
                check_due(withdrawn + drain, now, WITHDRAWAL_TIMEOUT + drain)
            });
            let runs_hooks = hooks && found.pre_stop == HookProgress::Pending;
            (if runs_hooks { Action::RunHooks(HookKind::PreStop) } else { Action::SignalStop }, due)
        }
        (Some(stop), _) => match stop.killed_at {
            None => {
                let by_hooks = found.pre_stop.since().unwrap_or(stop.at) + grace;
                let end = by_hooks.max(stop.at + grace.min(GRACE_AFTER_HOOKS)).min(stop.at + grace);
                (Action::Kill, check_due(end, now, grace))
            }
            Some(killed_at) => (Action::Kill, check_due(killed_at + KILL_RETRY_DELAY, now, KILL_RETRY_DELAY)),
        },
    };
    when_due(due, action, found, now)
}

fn when_due(due: Due, action: Action, found: &ObservedTask, now: Timestamp) -> NextStep {
    match due {
        Due::Now => with_backoff(action, found, now),
        Due::At(moment) => NextStep::WaitUntil(moment),
    }
}

/// The history of a stopped task, once no process of it runs.
fn stopped_history(found: &ObservedTask, stopping: StopPlan, now: Timestamp) -> AttemptHistory {
    let StopPlan { grace, disconnected_for: alone_for, .. } = stopping;
    let mut reason = match alone_for {
        None => "stopped by the manager".to_string(),
        Some(time) => {
            format!(
                "stopped by the node after {} without a manager (--on-disconnect)",
                display::format_duration(time)
            )
        }
    };
    let is_killed = found.stop.is_some_and(|stop| stop.killed_at.is_some());
    match &found.eviction {
        Some(eviction) if is_killed => reason += &format!("; killed: {eviction}"),
        None if is_killed => {
            reason += &format!(
                "; killed because it still ran {} after the stop signal",
                display::format_duration(grace)
            );
        }
        _ => {}
    }
    if let HookProgress::Ended { failure: Some(failure), .. } = &found.pre_stop {
        reason += &format!("; {} {failure}", HookKind::PreStop);
    }
    let history = found.history.with_end(now, TerminalState::Shutdown, reason);
    match found.container {
        ContainerState::Stopped { exit, .. } => AttemptHistory { exit: Some(exit), ..history },
        _ => history,
    }
}

#[cfg(test)]
mod tests;
