//! The next thing to do for a task.

use std::time::Duration;

use warren_types::spec::MountSource;
use warren_types::spec::{DEFAULT_STOP_GRACE, LONGEST_RESTART_DELAY};
use warren_types::{Desired, Exit, Health, ImageDigest, TaskAssignment, Timestamp};

use crate::action::{Action, Verb};
use crate::found::{Container, Found, Image, LONGEST_RETRY, Ports, Presence, Sight};
use crate::ledger::{Ledger, Phase, Verdict};
use crate::restart;
use crate::words;

/// A process that outlives SIGKILL (it hangs in the kernel) is killed again after this.
const KILL_AGAIN: Duration = Duration::from_secs(10);

/// The answer of [`step()`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Do this, tell [`Found`] how it went, and ask again.
    Do(Action),
    /// Nothing to do before this moment, unless something happens.
    WaitUntil(Timestamp),
    /// Nothing to do unless something happens.
    Settled,
}

/// What to do next for one task. `wanted` is `None` when nobody knows of the task any more: it is removed.
/// Asking again without a change gives the same answer.
pub fn step(wanted: Option<&TaskAssignment>, found: &Found, now: Timestamp) -> Step {
    if found.sight != Sight::Fresh {
        // Traffic for a process that fails its checks does not wait until containerd answers.
        let fails = found.health(wanted) == Health::Unhealthy && found.ports == Ports::Serving;
        let todo = fails.then_some(Action::HoldPorts).into_iter().chain([Action::Inspect]);
        return in_any_order(todo, found, now);
    }
    let grace = wanted.map_or(DEFAULT_STOP_GRACE, |task| task.spec.stop_grace);
    let ended = found.ledger.verdict().is_some();
    let stopping = Stopping { grace, extent: Extent::KeepRecord, alone_for: None };
    match wanted {
        Some(task) if task.desired <= Desired::Running && !ended => match Patience::of(task, found) {
            Patience::Endless => bring_up(task, found, now),
            Patience::For(time) => sooner(bring_up(task, found, now), now + time),
            Patience::Over(time) => {
                leave_off(task, found, Stopping { alone_for: Some(time), ..stopping }, now)
            }
        },
        Some(task) if task.desired <= Desired::Shutdown => take_down(found, stopping, now),
        _ => take_down(found, Stopping { extent: Extent::Everything, ..stopping }, now),
    }
}

/// For how long a task may still run while the node has no manager.
enum Patience {
    /// The node has one, or the task does not mind.
    Endless,
    For(Duration),
    /// Its time, which is over, or was when its process was asked to end.
    Over(Duration),
}

impl Patience {
    fn of(task: &TaskAssignment, found: &Found) -> Self {
        let Some(time) = task.spec.on_disconnect.stop_after() else { return Self::Endless };
        match found.alone_for {
            // Whoever is asked to end does not run on because a manager came a moment later.
            _ if found.stop.is_some() => Self::Over(time),
            Some(alone) if alone >= time => Self::Over(time),
            Some(alone) => Self::For(time - alone),
            None => Self::Endless,
        }
    }
}

/// Its node has had no manager for too long: its process is stopped for good, since another may take its place by now.
/// One that has none waits for what managers say.
fn leave_off(task: &TaskAssignment, found: &Found, stopping: Stopping, now: Timestamp) -> Step {
    match found.container {
        _ if found.stop.is_some() => take_down(found, stopping, now),
        Container::Running { .. } => take_down(found, stopping, now),
        Container::Stopped { exit, at } => after_exit(task, found, exit, at, now),
        Container::Absent | Container::Recorded | Container::Created => {
            let may_serve = !task.ports.is_empty() && matches!(found.ports, Ports::Serving | Ports::Unknown);
            let withdraw = may_serve.then_some(Action::HoldPorts);
            in_any_order(withdraw, found, now)
        }
    }
}

/// How a task is stopped.
#[derive(Clone, Copy)]
struct Stopping {
    /// Between the stop signal and SIGKILL.
    grace: Duration,
    extent: Extent,
    /// Its node stops it by itself, since it has had no manager for so long.
    alone_for: Option<Duration>,
}

/// How much of a stopped task goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// The record and the log stay for people to look at.
    KeepRecord,
    /// Nothing stays.
    Everything,
}

/// An action that failed is tried again after a delay that grows.
fn unless_it_just_failed(action: Action, found: &Found, now: Timestamp) -> Step {
    match found.troubles.get(&action.verb()) {
        Some(trouble) => match when(trouble.retry_at(), now, LONGEST_RETRY) {
            Due::Now => Step::Do(action),
            Due::At(moment) => Step::WaitUntil(moment),
        },
        None => Step::Do(action),
    }
}

/// The first of `actions` that did not just fail; one that fails does not hold up those behind it.
fn in_any_order(actions: impl IntoIterator<Item = Action>, found: &Found, now: Timestamp) -> Step {
    let mut answer = Step::Settled;
    for action in actions {
        answer = match unless_it_just_failed(action, found, now) {
            Step::Do(action) => return Step::Do(action),
            Step::WaitUntil(moment) => sooner(answer, moment),
            Step::Settled => answer,
        };
    }
    answer
}

enum Due {
    Now,
    At(Timestamp),
}

/// Whether `moment` has come. Where it lies further ahead than it ever can, the clock was set back: it is
/// due.
fn when(moment: Timestamp, now: Timestamp, longest: Duration) -> Due {
    if moment <= now || moment.since(now) > longest { Due::Now } else { Due::At(moment) }
}

fn bring_up(task: &TaskAssignment, found: &Found, now: Timestamp) -> Step {
    if let Some((verb, trouble)) = found.rejection() {
        let reason = format!("{verb}: {}", trouble.reason);
        return record(found.ledger.ended(now, Verdict::Rejected, reason), found, now);
    }
    match found.container {
        Container::Running { since } => keep_running(task, found, since, now),
        Container::Stopped { exit, at } => after_exit(task, found, exit, at, now),
        Container::Absent | Container::Recorded | Container::Created => next_attempt(task, found, now),
    }
}

fn record(ledger: Ledger, found: &Found, now: Timestamp) -> Step {
    unless_it_just_failed(Action::RecordLedger(ledger), found, now)
}

/// Makes again what an agent that died may have left undone around a process that runs.
fn keep_running(task: &TaskAssignment, found: &Found, since: Timestamp, now: Timestamp) -> Step {
    let recorded = matches!(found.ledger.phase, Phase::Started { .. });
    let keep = restart::kept_starts(&task.spec.restart);
    let share = share(task, found);
    // Nothing comes before this, where a process that fails its checks gets traffic.
    let withdraw =
        share.clone().filter(|action| *action == Action::HoldPorts && found.ports == Ports::Serving);
    let health = found.unrecorded_health(Some(task)).filter(|_| recorded);
    let todo = [
        withdraw,
        (found.network != Presence::Present).then_some(Action::EnsureNetwork),
        (found.files != Presence::Present).then_some(Action::EnsureFiles),
        share,
        (!recorded).then(|| Action::RecordLedger(found.ledger.started(since, keep))),
        health.map(|health| Action::RecordLedger(found.ledger.found_to_be(health))),
    ];
    in_any_order(todo.into_iter().flatten(), found, now)
}

/// What its share in published ports still needs: a process that has checks gets traffic only while they succeed.
fn share(task: &TaskAssignment, found: &Found) -> Option<Action> {
    let (wanted, action) = match found.health(Some(task)) {
        Health::None | Health::Healthy => (Ports::Serving, Action::Serve),
        Health::Starting | Health::Unhealthy => (Ports::Held, Action::HoldPorts),
    };
    (!task.ports.is_empty() && found.ports != wanted).then_some(action)
}

/// The exit is recorded before the process is cleared, since it is lost with it.
fn after_exit(task: &TaskAssignment, found: &Found, exit: Exit, at: Timestamp, now: Timestamp) -> Step {
    if found.ports == Ports::Serving {
        return unless_it_just_failed(Action::HoldPorts, found, now);
    }
    match found.ledger.phase {
        Phase::Open | Phase::Started { .. } => record(follow(task, found, Some(exit), at), found, now),
        Phase::Waiting { .. } | Phase::Ended { .. } => {
            unless_it_just_failed(Action::DeleteProcess, found, now)
        }
    }
}

fn follow(task: &TaskAssignment, found: &Found, exit: Option<Exit>, at: Timestamp) -> Ledger {
    restart::after_end(&task.spec.restart, &found.ledger, exit, at, task.spec.limits.memory)
}

fn next_attempt(task: &TaskAssignment, found: &Found, now: Timestamp) -> Step {
    if found.ports == Ports::Serving {
        return unless_it_just_failed(Action::HoldPorts, found, now);
    }
    match found.ledger.phase {
        // A process that was started and is not there any more is lost.
        Phase::Started { .. } => record(follow(task, found, None, now), found, now),
        Phase::Waiting { until, .. } => match when(until, now, LONGEST_RESTART_DELAY) {
            Due::Now => record(found.ledger.opened(), found, now),
            Due::At(moment) => Step::WaitUntil(moment),
        },
        Phase::Open | Phase::Ended { .. } => prepare_and_start(task, found, now),
    }
}

/// What the task's image is to be, as soon as that is settled for its whole revision: by managers, or by the
/// reference itself.
pub fn pin(task: &TaskAssignment) -> Option<ImageDigest> {
    let named = || task.spec.image.as_str().rsplit_once('@').and_then(|(_, digest)| digest.parse().ok());
    task.digest.clone().or_else(named)
}

fn has_volumes(task: &TaskAssignment) -> bool {
    task.spec.mounts.iter().any(|mount| matches!(mount.source, MountSource::Volume { .. }))
}

fn has_contents(task: &TaskAssignment) -> bool {
    !task.spec.secrets.is_empty() || !task.spec.configs.is_empty()
}

/// The image first, since it may take long; the rest while managers settle what the image is for all. Volumes are
/// filled from it, so they come after that, and secrets are on the node no longer than they must.
fn prepare_and_start(task: &TaskAssignment, found: &Found, now: Timestamp) -> Step {
    let pin = pin(task);
    // A record keeps what it was made from. One that no container could be made of may lack its image, and so may
    // volumes that could not be filled.
    let failed = |verb| found.troubles.contains_key(&verb);
    let needs_image =
        found.container == Container::Absent || failed(Verb::EnsureContainer) || failed(Verb::EnsureVolumes);
    let has_image = match &found.image {
        Image::Present(digest) => pin.as_ref().is_none_or(|pin| pin == digest),
        Image::Unknown | Image::Arriving { .. } => false,
    };
    let action = if needs_image && !has_image {
        Action::EnsureImage
    } else if found.network != Presence::Present {
        Action::EnsureNetwork
    } else if found.files != Presence::Present {
        Action::EnsureFiles
    } else if !task.ports.is_empty() && found.ports != Ports::Held {
        Action::HoldPorts
    } else if found.container == Container::Absent && pin.is_none() {
        return Step::Settled;
    } else if has_volumes(task) && found.volumes != Presence::Present {
        Action::EnsureVolumes
    } else if has_contents(task) && found.contents != Presence::Present {
        Action::EnsureContents
    } else if found.container != Container::Created {
        Action::EnsureContainer
    } else if task.desired == Desired::Running {
        Action::Start
    } else {
        return Step::Settled;
    };
    unless_it_just_failed(action, found, now)
}

fn take_down(found: &Found, stopping: Stopping, now: Timestamp) -> Step {
    let Stopping { grace, extent, .. } = stopping;
    let release = (found.ports != Ports::Released).then_some(Action::ReleasePorts);
    match found.container {
        // Traffic is withdrawn first, but a failure to withdraw it keeps nothing running.
        Container::Running { .. } => match in_any_order(release, found, now) {
            Step::Do(action) => Step::Do(action),
            Step::WaitUntil(moment) => sooner(stop_process(found, grace, now), moment),
            Step::Settled => stop_process(found, grace, now),
        },
        _ if found.ledger.verdict().is_none() => record(stopped(found, stopping, now), found, now),
        Container::Stopped { .. } | Container::Created => {
            unless_it_just_failed(Action::DeleteProcess, found, now)
        }
        Container::Recorded if extent == Extent::Everything => {
            unless_it_just_failed(Action::RemoveContainer, found, now)
        }
        Container::Recorded | Container::Absent => {
            let contents = (found.contents != Presence::Absent).then_some(Action::RemoveContents);
            let network = (found.network != Presence::Absent).then_some(Action::RemoveNetwork);
            let files = extent == Extent::Everything && found.files != Presence::Absent;
            let files = files.then_some(Action::RemoveFiles);
            in_any_order([release, contents, network, files].into_iter().flatten(), found, now)
        }
    }
}

fn sooner(step: Step, moment: Timestamp) -> Step {
    match step {
        Step::Do(action) => Step::Do(action),
        Step::WaitUntil(other) => Step::WaitUntil(moment.min(other)),
        Step::Settled => Step::WaitUntil(moment),
    }
}

fn stop_process(found: &Found, grace: Duration, now: Timestamp) -> Step {
    let (action, due) = match found.stop {
        None => (Action::SignalStop, Due::Now),
        Some(stop) => match stop.killed_at {
            None => (Action::Kill, when(stop.at + grace, now, grace)),
            Some(killed_at) => (Action::Kill, when(killed_at + KILL_AGAIN, now, KILL_AGAIN)),
        },
    };
    match due {
        Due::Now => unless_it_just_failed(action, found, now),
        Due::At(moment) => Step::WaitUntil(moment),
    }
}

/// The ledger of a task that was stopped on purpose, once no process of it runs.
fn stopped(found: &Found, stopping: Stopping, now: Timestamp) -> Ledger {
    let Stopping { grace, alone_for, .. } = stopping;
    let mut reason = match alone_for {
        None => "stopped as wanted".to_string(),
        Some(time) => {
            format!(
                "stopped by its node, which had no manager for {} (--on-disconnect)",
                words::lasting(time)
            )
        }
    };
    if found.stop.is_some_and(|stop| stop.killed_at.is_some()) {
        reason += &format!(": killed, since it still ran {} after the stop signal", words::lasting(grace));
    }
    let ledger = found.ledger.ended(now, Verdict::Shutdown, reason);
    match found.container {
        Container::Stopped { exit, .. } => Ledger { exit: Some(exit), ..ledger },
        _ => ledger,
    }
}

#[cfg(test)]
mod tests;
