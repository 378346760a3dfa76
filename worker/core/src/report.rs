//! Reports of a task for managers and users.

use warren_types::spec::AWAITS_IMAGE_PIN;
use warren_types::{
    Bytes, DesiredTaskState, Health, ImageDigest, ImageResolver, TaskAssignment, TaskExit, TaskId,
    TaskReport, TaskState, Timestamp,
};

use crate::attempt_history::AttemptPhase;
use crate::display;
use crate::observed_task::{ContainerState, Freshness, ImageState, ObservedTask, PortState, ResourceState};
use crate::step::resolved_digest;

/// The current report of a task. `desired` is `None` when the task is not assigned any more.
pub fn build_report(task: TaskId, desired: Option<&TaskAssignment>, observed: &ObservedTask) -> TaskReport {
    let stopping = desired.is_none_or(|expected| expected.desired > DesiredTaskState::Running);
    let (state, since) = task_state(desired, observed, stopping);
    let published =
        desired.is_some_and(|required| required.ports.is_empty()) || observed.ports == PortState::Routed;
    let health = observed.health(desired);
    let well = matches!(health, Health::None | Health::Healthy);
    let runs = state == TaskState::Running && observed.container.is_running();
    let is_set_up = desired.is_some_and(|task| observed.is_set_up(task));
    let ready = runs && published && well && is_set_up && !stopping;
    TaskReport {
        task,
        attempt: observed.history.attempt,
        state,
        since,
        reason: task_reason(desired, observed, ready),
        ready,
        exit: last_exit(observed),
        removed: stopping
            && is_fully_removed(observed)
            && desired.is_none_or(|desired| desired.desired == DesiredTaskState::Remove),
        next_attempt: if stopping { None } else { next_attempt(observed) },
        image: if stopping { None } else { desired.and_then(|desired| unresolved_image(desired, observed)) },
        health,
    }
}

fn next_attempt(observed: &ObservedTask) -> Option<Timestamp> {
    match observed.history.phase {
        AttemptPhase::Waiting { until, .. } if !observed.container.is_running() => Some(until),
        _ => None,
    }
}

/// The image digest on this node, if workers resolve the image and none is pinned for the whole revision.
fn unresolved_image(desired: &TaskAssignment, observed: &ObservedTask) -> Option<ImageDigest> {
    let is_resolved_here = desired.spec.image_resolver() == ImageResolver::Worker;
    if !is_resolved_here || desired.digest.is_some() || observed.history.terminal_state().is_some() {
        return None;
    }
    match (&observed.image, observed.container) {
        (ImageState::Present(digest), _) => Some(digest.clone()),
        // Managers that were restored from a backup may have lost the pinned digest.
        (_, container) if container != ContainerState::Absent => observed.container_image.clone(),
        _ => None,
    }
}

/// Whether the report can be sent: not of a process that an earlier agent started, before this agent knows
/// whether it receives traffic, and not that it is healthy or unhealthy before the next agent would know. If
/// recording that fails, the report has the reason.
pub fn should_report(desired: Option<&TaskAssignment>, observed: &ObservedTask) -> bool {
    let publishes = desired
        .is_some_and(|expected| expected.desired <= DesiredTaskState::Running && !expected.ports.is_empty());
    let may_serve = publishes && observed.container.is_running() && observed.ports == PortState::Unknown;
    let is_known = !may_serve && observed.unrecorded_health(desired).is_none();
    is_known || !observed.failures.is_empty()
}

/// Nothing of the task is left on the node.
fn is_fully_removed(observed: &ObservedTask) -> bool {
    observed.freshness == Freshness::Fresh
        && observed.container == ContainerState::Absent
        && observed.network == ResourceState::Absent
        && observed.files == ResourceState::Absent
        && observed.secret_objects == ResourceState::Absent
        && observed.ports == PortState::Released
        && observed.history.terminal_state().is_some()
}

fn last_exit(observed: &ObservedTask) -> Option<TaskExit> {
    match observed.container {
        ContainerState::Stopped { exit, .. } => Some(exit),
        _ => observed.history.exit,
    }
}

fn task_state(
    desired: Option<&TaskAssignment>,
    observed: &ObservedTask,
    stopping: bool,
) -> (TaskState, Timestamp) {
    if let ContainerState::Running { since } = observed.container {
        return (TaskState::Running, since);
    }
    match observed.history.phase {
        AttemptPhase::Ended { at, terminal_state, .. } => (terminal_state.state(), at),
        // The exit of its process is not recorded yet; the next step does that.
        AttemptPhase::Started { at, .. } => (TaskState::Running, at),
        AttemptPhase::Waiting { since, .. } => (TaskState::Starting, since),
        AttemptPhase::Pending => (starting_state(desired, observed, stopping), observed.accepted_at),
    }
}

fn starting_state(desired: Option<&TaskAssignment>, observed: &ObservedTask, stopping: bool) -> TaskState {
    let later_attempt = observed.history.attempt > 1;
    match observed.container {
        _ if later_attempt => TaskState::Starting,
        ContainerState::Stopped { .. } | ContainerState::Running { .. } => TaskState::Running,
        ContainerState::Created if stopping => TaskState::Ready,
        ContainerState::Created
            if desired.is_some_and(|expected| expected.desired == DesiredTaskState::Ready) =>
        {
            TaskState::Ready
        }
        ContainerState::Created => TaskState::Starting,
        ContainerState::Absent | ContainerState::Recorded if observed.freshness == Freshness::Unknown => {
            TaskState::Accepted
        }
        ContainerState::Absent | ContainerState::Recorded => TaskState::Preparing,
    }
}

/// Why the task does not run or receives no traffic; empty when it does.
fn task_reason(desired: Option<&TaskAssignment>, observed: &ObservedTask, ready: bool) -> String {
    if let (AttemptPhase::Ended { reason, .. }, false) =
        (&observed.history.phase, observed.container.is_running())
    {
        return with_failure(reason.clone(), observed);
    }
    let limit = desired.and_then(|expected| expected.spec.limits.memory);
    let text = match observed.container {
        ContainerState::Running { .. } if ready => String::new(),
        ContainerState::Running { .. } if observed.pre_stop.since().is_some() && observed.stop.is_none() => {
            "stopping: running its pre_stop hooks".to_owned()
        }
        ContainerState::Running { .. } if observed.stop.is_some() || observed.drain_start.is_some() => {
            stopping_reason(desired, observed)
        }
        ContainerState::Running { .. } if desired.is_some_and(|task| !observed.is_set_up(task)) => {
            "waiting for its post_start hooks".to_owned()
        }
        ContainerState::Running { .. } => unhealthy_reason(desired, observed),
        ContainerState::Stopped { exit, .. } => display::format_exit(Some(exit), limit),
        ContainerState::Absent | ContainerState::Recorded | ContainerState::Created => {
            waiting_reason(desired, observed, limit)
        }
    };
    with_failure(text, observed)
}

/// Why a running process is not ready, as far as its health checks tell.
fn unhealthy_reason(desired: Option<&TaskAssignment>, observed: &ObservedTask) -> String {
    match (&observed.observed_health, observed.health(desired)) {
        (_, Health::None | Health::Healthy) => String::new(),
        (Some(checked), _) => checked.reason.clone(),
        (None, Health::Starting) => "no health check has succeeded yet".to_string(),
        (None, Health::Unhealthy) => {
            "unhealthy: reported before the agent restarted; checking again".to_string()
        }
    }
}

fn stopping_reason(desired: Option<&TaskAssignment>, observed: &ObservedTask) -> String {
    let Some(stop) = observed.stop else { return draining_reason(desired, observed) };
    let grace = desired.map(|expected| expected.spec.stop_grace);
    match (stop.killed_at, grace) {
        (Some(at), _) => {
            format!("stopping: sent SIGKILL at {}, process still running", display::format_time_of_day(at))
        }
        (None, Some(grace)) => {
            format!(
                "stopping: grace period of {} since {}",
                display::format_duration(grace),
                display::format_time_of_day(stop.at)
            )
        }
        (None, None) => format!("stopping since {}", display::format_time_of_day(stop.at)),
    }
}

fn draining_reason(desired: Option<&TaskAssignment>, observed: &ObservedTask) -> String {
    let (Some(start), Some(task)) = (observed.drain_start, desired) else { return String::new() };
    let Some(withdrawn) = observed.withdrawn_at else {
        let since = display::format_time_of_day(start);
        return format!("stopping: waiting since {since} until the nodes send it no new clients");
    };
    let delay = display::format_duration(task.spec.drain_delay);
    format!("stopping: drain delay of {delay} since {}", display::format_time_of_day(withdrawn))
}

fn waiting_reason(desired: Option<&TaskAssignment>, observed: &ObservedTask, limit: Option<Bytes>) -> String {
    let attempt = observed.history.attempt;
    match observed.history.phase {
        AttemptPhase::Waiting { since, until } => {
            let ending = display::format_exit(observed.history.exit, limit);
            let next =
                format!("{ending}; attempt {attempt} starts at {}", display::format_time_of_day(until));
            let ran = observed.history.last_run(since);
            let hint = desired.and_then(|task| display::exit_hint(&task.spec, observed.history.exit, ran));
            hint.map_or(next.clone(), |hint| format!("{next}; {hint}"))
        }
        AttemptPhase::Pending
            if observed.awaited_service.is_some() && observed.container == ContainerState::Created =>
        {
            let service = observed.awaited_service.as_ref().map(ToString::to_string).unwrap_or_default();
            format!("waiting for bootstrap service \"{service}\" on this node")
        }
        AttemptPhase::Pending if attempt > 1 => {
            format!(
                "{}; attempt {attempt} is being started",
                display::format_exit(observed.history.exit, limit)
            )
        }
        AttemptPhase::Started { .. } => display::format_exit(None, limit),
        AttemptPhase::Pending if observed.container == ContainerState::Absent => {
            preparing_reason(desired, observed)
        }
        AttemptPhase::Pending | AttemptPhase::Ended { .. } => String::new(),
    }
}

/// What a task waits for before it starts.
fn preparing_reason(desired: Option<&TaskAssignment>, observed: &ObservedTask) -> String {
    let Some(expected) = desired.filter(|required| required.desired <= DesiredTaskState::Running) else {
        return String::new();
    };
    match &observed.image {
        ImageState::Pulling { progress: text } => text.clone(),
        ImageState::Present(_) if resolved_digest(expected).is_none() => AWAITS_IMAGE_PIN.to_string(),
        ImageState::Present(_) | ImageState::Unknown => String::new(),
    }
}

/// Adds what failed. The number of tries is omitted: each try would be another report.
fn with_failure(text: String, observed: &ObservedTask) -> String {
    let Some((verb, failure)) = observed.failures.first_key_value() else { return text };
    let failure = &failure.reason;
    match text.as_str() {
        "" => format!("{verb}: {failure}"),
        // `pulling image: contacting the registry; connection refused`
        progress if progress.starts_with(&format!("{verb}: ")) => format!("{text}; {failure}"),
        _ => format!("{text}; {verb}: {failure}"),
    }
}

#[cfg(test)]
mod tests;
