//! What managers and people are told of a task.

use warren_types::{
    Bytes, Desired, Exit, Health, ImageDigest, TaskAssignment, TaskId, TaskReport, TaskState, Timestamp,
};

use crate::found::{Container, Found, Image, Ports, Presence, Sight};
use crate::ledger::Phase;
use crate::step::pin;
use crate::words;

/// The task as it stands. `wanted` is `None` when nobody knows of the task any more.
pub fn report(task: TaskId, wanted: Option<&TaskAssignment>, found: &Found) -> TaskReport {
    let going = wanted.is_none_or(|wanted| wanted.desired > Desired::Running);
    let (state, since) = state(wanted, found, going);
    let published = wanted.is_some_and(|wanted| wanted.ports.is_empty()) || found.ports == Ports::Serving;
    let health = found.health(wanted);
    let well = matches!(health, Health::None | Health::Healthy);
    let runs = state == TaskState::Running && found.container.is_running();
    let ready = runs && published && well && !going;
    TaskReport {
        task,
        attempt: found.ledger.attempt,
        state,
        since,
        reason: reason(wanted, found, ready),
        ready,
        exit: last_exit(found),
        removed: going && is_gone(found) && wanted.is_none_or(|wanted| wanted.desired == Desired::Remove),
        next_attempt: if going { None } else { next_attempt(found) },
        image: if going { None } else { wanted.and_then(|wanted| unsettled_image(wanted, found)) },
        health,
    }
}

fn next_attempt(found: &Found) -> Option<Timestamp> {
    match found.ledger.phase {
        Phase::Waiting { until, .. } if !found.container.is_running() => Some(until),
        _ => None,
    }
}

/// What the image is here, as long as managers have not settled what it is for the whole revision.
fn unsettled_image(wanted: &TaskAssignment, found: &Found) -> Option<ImageDigest> {
    if wanted.digest.is_some() || found.ledger.verdict().is_some() {
        return None;
    }
    match (&found.image, found.container) {
        (Image::Present(digest), _) => Some(digest.clone()),
        // Managers that begin anew from a backup may not know any more what they had settled.
        (_, container) if container != Container::Absent => found.made_from.clone(),
        _ => None,
    }
}

/// Whether a report says anything: not about a process that an earlier agent started, before this one has found
/// out whether it gets its traffic, and not that it is healthy or unhealthy before the next agent would know. Where
/// that fails, the report says why.
pub fn is_worth_telling(wanted: Option<&TaskAssignment>, found: &Found) -> bool {
    let publishes =
        wanted.is_some_and(|wanted| wanted.desired <= Desired::Running && !wanted.ports.is_empty());
    let may_serve = publishes && found.container.is_running() && found.ports == Ports::Unknown;
    let is_known = !may_serve && found.unrecorded_health(wanted).is_none();
    is_known || !found.troubles.is_empty()
}

/// Nothing of the task is left on the node.
fn is_gone(found: &Found) -> bool {
    found.sight == Sight::Fresh
        && found.container == Container::Absent
        && found.network == Presence::Absent
        && found.files == Presence::Absent
        && found.contents == Presence::Absent
        && found.ports == Ports::Released
        && found.ledger.verdict().is_some()
}

fn last_exit(found: &Found) -> Option<Exit> {
    match found.container {
        Container::Stopped { exit, .. } => Some(exit),
        _ => found.ledger.exit,
    }
}

fn state(wanted: Option<&TaskAssignment>, found: &Found, going: bool) -> (TaskState, Timestamp) {
    if let Container::Running { since } = found.container {
        return (TaskState::Running, since);
    }
    match found.ledger.phase {
        Phase::Ended { at, verdict, .. } => (verdict.state(), at),
        // The end of its process is not recorded yet; the next step does that.
        Phase::Started { at, .. } => (TaskState::Running, at),
        Phase::Waiting { since, .. } => (TaskState::Starting, since),
        Phase::Open => (opening(wanted, found, going), found.accepted_at),
    }
}

fn opening(wanted: Option<&TaskAssignment>, found: &Found, going: bool) -> TaskState {
    let later_attempt = found.ledger.attempt > 1;
    match found.container {
        _ if later_attempt => TaskState::Starting,
        Container::Stopped { .. } | Container::Running { .. } => TaskState::Running,
        Container::Created if going => TaskState::Ready,
        Container::Created if wanted.is_some_and(|wanted| wanted.desired == Desired::Ready) => {
            TaskState::Ready
        }
        Container::Created => TaskState::Starting,
        Container::Absent | Container::Recorded if found.sight == Sight::Never => TaskState::Accepted,
        Container::Absent | Container::Recorded => TaskState::Preparing,
    }
}

/// Why the task does not run or gets no traffic; empty when it does.
fn reason(wanted: Option<&TaskAssignment>, found: &Found, ready: bool) -> String {
    if let (Phase::Ended { reason, .. }, false) = (&found.ledger.phase, found.container.is_running()) {
        return with_trouble(reason.clone(), found);
    }
    let limit = wanted.and_then(|wanted| wanted.spec.limits.memory);
    let said = match found.container {
        Container::Running { .. } if ready => String::new(),
        Container::Running { .. } if found.stop.is_some() => stopping(wanted, found),
        Container::Running { .. } => unwell(wanted, found),
        Container::Stopped { exit, .. } => words::ending(Some(exit), limit),
        Container::Absent | Container::Recorded | Container::Created => waiting(wanted, found, limit),
    };
    with_trouble(said, found)
}

/// Why a process that runs is not ready, as far as its checks say.
fn unwell(wanted: Option<&TaskAssignment>, found: &Found) -> String {
    match (&found.checked, found.health(wanted)) {
        (_, Health::None | Health::Healthy) => String::new(),
        (Some(checked), _) => checked.reason.clone(),
        (None, Health::Starting) => "no check has succeeded yet".to_string(),
        (None, Health::Unhealthy) => {
            "unhealthy, as an earlier agent of the node found; it is asked again".to_string()
        }
    }
}

fn stopping(wanted: Option<&TaskAssignment>, found: &Found) -> String {
    let Some(stop) = found.stop else { return String::new() };
    let grace = wanted.map(|wanted| wanted.spec.stop_grace);
    match (stop.killed_at, grace) {
        (Some(at), _) => format!("killed at {}, but it has not ended yet", words::time_of_day(at)),
        (None, Some(grace)) => {
            format!("stopping: has {} from {}", words::lasting(grace), words::time_of_day(stop.at))
        }
        (None, None) => format!("stopping since {}", words::time_of_day(stop.at)),
    }
}

fn waiting(wanted: Option<&TaskAssignment>, found: &Found, limit: Option<Bytes>) -> String {
    let attempt = found.ledger.attempt;
    match found.ledger.phase {
        Phase::Waiting { until, .. } => {
            let ending = words::ending(found.ledger.exit, limit);
            format!("{ending}; attempt {attempt} starts at {}", words::time_of_day(until))
        }
        Phase::Open if attempt > 1 => {
            format!("{}; attempt {attempt} is being started", words::ending(found.ledger.exit, limit))
        }
        Phase::Started { .. } => words::ending(None, limit),
        Phase::Open if found.container == Container::Absent => preparing(wanted, found),
        Phase::Open | Phase::Ended { .. } => String::new(),
    }
}

/// What a task that is on its way up waits for.
fn preparing(wanted: Option<&TaskAssignment>, found: &Found) -> String {
    let Some(wanted) = wanted.filter(|wanted| wanted.desired <= Desired::Running) else {
        return String::new();
    };
    match &found.image {
        Image::Arriving { said } => said.clone(),
        Image::Present(_) if pin(wanted).is_none() => {
            "has its image; waits until managers have noted which one the revision runs".to_string()
        }
        Image::Present(_) | Image::Unknown => String::new(),
    }
}

/// Adds what failed. How often is not told: each try would be another report.
fn with_trouble(said: String, found: &Found) -> String {
    let Some((verb, trouble)) = found.troubles.first_key_value() else { return said };
    let joint = if said.is_empty() { "" } else { "; " };
    format!("{said}{joint}{verb}: {}", trouble.reason)
}

#[cfg(test)]
mod tests;
