//! What workers say of their tasks.

use std::sync::Arc;

use warren_types::{
    Desired, Health, ImageDigest, NodeId, Observed, Service, ServiceId, Task, TaskReport, TaskState,
    Timestamp,
};

use super::Entry;
use crate::state::{Answer, Kind, Refusal, State};

/// A reason is for people; a longer one is cut.
const MAX_REASON: usize = 1024;

pub(super) fn take(
    state: &mut State,
    entry: &mut Entry,
    id: NodeId,
    session: u64,
    reports: &[TaskReport],
) -> Result<Answer, Refusal> {
    let node = state.nodes.get(&id).ok_or_else(|| Refusal::not_found(Kind::Node, id))?;
    if node.session != session {
        let (node, current) = (node.name.clone(), node.session);
        return Err(Refusal::StaleSession { node, sent: session, current });
    }
    for report in reports {
        let task = state.tasks.get(&report.task).filter(|task| task.node == Some(id));
        if let (Some(image), Some(task)) = (&report.image, task) {
            let revision = task.revision.number;
            pin(state, entry, report.task.service, revision, image);
        }
        let task = state.tasks.get(&report.task).filter(|task| task.node == Some(id));
        let Some(observed) = task.and_then(|task| merge(task, report, entry.now)) else { continue };
        let removed = observed.removed;
        state.update_task(entry, report.task, |task| {
            task.observed = observed;
            if removed {
                task.special.change(|special| special.lost_since = None);
            }
        });
        if removed {
            state.touch_assignment(entry, id);
        }
    }
    Ok(Answer::Done)
}

/// The first worker that knows what the image of a revision is says so for all: from then on every task of the
/// revision runs that, and the nodes that have such tasks are told.
fn pin(state: &mut State, entry: &mut Entry, id: ServiceId, revision: u64, image: &ImageDigest) {
    let wanted = |service: &Arc<Service>| {
        let mut known = service.history.iter().chain([&service.revision]);
        known.any(|known| known.number == revision) && !service.pins.contains_key(&revision)
    };
    if !state.services.get(&id).is_some_and(wanted) {
        return;
    }
    state.update_standing(entry, id, |service| drop(service.pins.insert(revision, image.clone())));
    let nodes: Vec<NodeId> = state.index.spread.range(id, ..).map(|(node, _)| *node).collect();
    nodes.into_iter().for_each(|node| state.touch_assignment(entry, node));
}

/// What is known of the task after the report; `None` when that is nothing new.
///
/// Reports are ordered by (attempt, state) and late ones dropped. A terminal state is final: of a later
/// report only its `removed` counts, which is the last word of all.
fn merge(task: &Task, report: &TaskReport, now: Timestamp) -> Option<Observed> {
    let old = &task.observed;
    let order = (report.attempt, report.state).cmp(&(old.attempt, old.state));
    let counts = if old.state.is_terminal() { order.is_eq() } else { order.is_ge() };
    if old.removed || !(counts || report.removed) {
        return None;
    }
    let mut new = old.clone();
    if counts {
        new.attempt = report.attempt;
        new.state = report.state;
        let running = report.state == TaskState::Running;
        // What is stopped because of its checks keeps what they said: its slot is judged by that.
        if !was_unhealthy(old, task.desired) {
            new.trouble.change(|trouble| trouble.reason = reason(&trouble.reason, &report.reason));
            new.health = if running { report.health } else { Health::None };
        }
        let well = matches!(new.health, Health::None | Health::Healthy);
        new.ready = report.ready && running && well;
        new.trouble.change(|trouble| {
            trouble.exit = report.exit.or(trouble.exit);
            trouble.next_attempt = report.next_attempt.filter(|_| !report.state.is_terminal());
        });
    }
    if report.removed {
        new.removed = true;
        conclude(&mut new, task.desired);
    }
    if (new.attempt, new.state) != (old.attempt, old.state) {
        new.since = since(task, report, now);
    }
    (new != *old).then_some(new)
}

/// It was unhealthy when managers told it to stop.
fn was_unhealthy(observed: &Observed, desired: Desired) -> bool {
    observed.health == Health::Unhealthy && desired > Desired::Running
}

/// A task of which nothing is left has ended, also when its worker cannot tell how.
fn conclude(observed: &mut Observed, desired: Desired) {
    observed.ready = false;
    observed.trouble.change(|trouble| trouble.next_attempt = None);
    if !was_unhealthy(observed, desired) {
        observed.health = Health::None;
    }
    if observed.state.is_terminal() {
        return;
    }
    let wanted = desired <= Desired::Running;
    observed.state = if wanted { TaskState::Failed } else { TaskState::Shutdown };
    if wanted && observed.reason().is_empty() {
        let reason = "nothing of it is left on its node";
        observed.trouble.change(|trouble| trouble.reason = reason.into());
    }
}

/// When the worker says it happened, as far as that can be: not before what came before it, not in the
/// future. So a wrong clock on a worker cannot shorten the back-off of a slot that keeps failing.
fn since(task: &Task, report: &TaskReport, now: Timestamp) -> Timestamp {
    let earliest = task.created_at.max(task.observed.since).max(task.not_before().unwrap_or_default());
    report.since.clamp(earliest.min(now), now)
}

/// Equal reasons share one text, and most are empty.
fn reason(old: &Arc<str>, new: &str) -> Arc<str> {
    let end = (0..=new.len().min(MAX_REASON)).rev().find(|end| new.is_char_boundary(*end)).unwrap_or(0);
    match &new[..end] {
        "" => Arc::default(),
        same if same == &**old => old.clone(),
        other => other.into(),
    }
}
