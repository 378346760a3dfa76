//! Reports of workers.

use std::sync::Arc;

use warren_types::{DesiredTaskState, Health, NodeId, Task, TaskReport, TaskState, TaskStatus, Timestamp};

use super::image::{self, ReportedImage};
use super::{ApplyContext, address};
use crate::state::{CommandResponse, ObjectKind, Refusal, State};

/// The longest reason in bytes; a longer one is cut.
const MAX_REASON: usize = 1024;

pub(super) fn apply_reports(
    state: &mut State,
    entry: &mut ApplyContext,
    id: NodeId,
    session: u64,
    reports: &[TaskReport],
) -> Result<CommandResponse, Refusal> {
    let node = state.nodes.get(&id).ok_or_else(|| Refusal::not_found(ObjectKind::Node, id))?;
    if node.session != session {
        let (node, current) = (node.name.clone(), node.session);
        return Err(Refusal::StaleSession { node, sent: session, current });
    }
    for report in reports {
        let task = state.tasks.get(&report.task).filter(|task| task.node == Some(id));
        let mut rejection = None;
        if let (Some(image), Some(task)) = (&report.image, task) {
            match image::reported_image(state, task, image) {
                ReportedImage::Pins => {
                    let revision = task.revision.number;
                    image::pin(state, entry, report.task.service, revision, image);
                }
                ReportedImage::Rejects => rejection = Some(image::rejection(state, task, image, report)),
                ReportedImage::Ignored => {}
            }
        }
        let report = rejection.as_ref().unwrap_or(report);
        let task = state.tasks.get(&report.task).filter(|task| task.node == Some(id));
        let Some(observed) = task.and_then(|task| merge(task, report, entry.now)) else { continue };
        let (removed, address) = (observed.removed, task.and_then(|task| task.address));
        state.update_task(entry, report.task, |task| {
            task.observed = observed;
            if removed {
                task.rare.update(|special| special.lost_since = None);
            }
        });
        if removed {
            address.into_iter().for_each(|address| address::withdraw(state, entry, address.into()));
            state.bump_assignment(entry, id);
        }
    }
    Ok(CommandResponse::Done)
}

/// The status of the task after the report; `None` if the report contains nothing new.
///
/// Reports are ordered by (attempt, state) and late ones dropped. A terminal state is final: of a later
/// report only its `removed` counts, which is final.
fn merge(task: &Task, report: &TaskReport, now: Timestamp) -> Option<TaskStatus> {
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
        // A task that is stopped because it is unhealthy stays unhealthy: that is why its slot failed.
        if !was_unhealthy(old, task.desired) {
            new.details.update(|failure| failure.reason = share_reason(&failure.reason, &report.reason));
            new.health = if running { report.health } else { Health::None };
        }
        let well = matches!(new.health, Health::None | Health::Healthy);
        new.ready = report.ready && running && well;
        new.details.update(|failure| {
            failure.exit = report.exit.or(failure.exit);
            failure.next_attempt = report.next_attempt.filter(|_| !report.state.is_terminal());
        });
    }
    if report.removed {
        new.removed = true;
        mark_ended(&mut new, task.desired);
    }
    if (new.attempt, new.state) != (old.attempt, old.state) {
        new.since = clamp_since(task, report, now);
    }
    (new != *old).then_some(new)
}

/// It was unhealthy when managers stopped it.
fn was_unhealthy(observed: &TaskStatus, desired: DesiredTaskState) -> bool {
    observed.health == Health::Unhealthy && desired > DesiredTaskState::Running
}

/// A task of which nothing is left is terminal, also if its worker does not know how it ended.
fn mark_ended(observed: &mut TaskStatus, desired: DesiredTaskState) {
    observed.ready = false;
    observed.details.update(|failure| failure.next_attempt = None);
    if !was_unhealthy(observed, desired) {
        observed.health = Health::None;
    }
    if observed.state.is_terminal() {
        return;
    }
    let expected = desired <= DesiredTaskState::Running;
    observed.state = if expected { TaskState::Failed } else { TaskState::Shutdown };
    if expected && observed.reason().is_empty() {
        let reason = "removed from its node";
        observed.details.update(|failure| failure.reason = reason.into());
    }
}

/// The time in the report, clamped: not before the previous state, not in the future. So a wrong clock on a
/// worker cannot shorten the back-off of a slot that keeps failing.
fn clamp_since(task: &Task, report: &TaskReport, now: Timestamp) -> Timestamp {
    let earliest = task.created_at.max(task.observed.since).max(task.not_before().unwrap_or_default());
    report.since.clamp(earliest.min(now), now)
}

/// Equal reasons share one text, and most are empty.
fn share_reason(old: &Arc<str>, new: &str) -> Arc<str> {
    let end = (0..=new.len().min(MAX_REASON)).rev().find(|end| new.is_char_boundary(*end)).unwrap_or(0);
    match &new[..end] {
        "" => Arc::default(),
        same if same == &**old => old.clone(),
        other => other.into(),
    }
}
