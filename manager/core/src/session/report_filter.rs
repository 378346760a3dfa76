//! Which reports of a worker are replicated, and which are only progress to show.

use warren_types::{DesiredTaskState, NodeId, Task, TaskReport, TaskState, TaskStatus};

use crate::state::{ReportedImage, State, reported_image};

/// What a manager does with a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportUse {
    /// It is replicated, and confirmed after that.
    Store,
    /// It is progress, which stays in memory.
    Keep,
    /// It contains nothing new, or is about a task that is not on the node.
    Ignore,
}

/// What to do with a report of `node`.
pub fn report_use(state: &State, node: &NodeId, report: &TaskReport) -> ReportUse {
    let Some(task) = state.task(&report.task).filter(|task| task.node == Some(*node)) else {
        return ReportUse::Ignore;
    };
    let image = report.image.as_ref();
    let image = image.map_or(ReportedImage::Ignored, |image| reported_image(state, task, image));
    match is_duplicate(&task.observed, report) {
        _ if image != ReportedImage::Ignored => ReportUse::Store,
        true => ReportUse::Ignore,
        false if must_replicate(task, report) => ReportUse::Store,
        false => ReportUse::Keep,
    }
}

/// Whether `report` changes what must survive a failover: whether the task runs, is healthy, receives
/// traffic, is terminal or removed, and for a standby task, whether it is ready. The other states from
/// ASSIGNED to RUNNING and the waits between attempts are not worth a write each.
fn must_replicate(task: &Task, report: &TaskReport) -> bool {
    let stored = &task.observed;
    let runs = |state: TaskState| state == TaskState::Running;
    // In a restored cluster the desired state can be `Ready` for a task that its worker has already tried to
    // start.
    let waits = |state: TaskState| {
        task.desired == DesiredTaskState::Ready && matches!(state, TaskState::Ready | TaskState::Starting)
    };
    stored.removed != report.removed
        || report.state.is_terminal()
        || stored.ready != report.ready
        || stored.health != report.health
        || runs(stored.state) != runs(report.state)
        || waits(stored.state) != waits(report.state)
        || (runs(report.state) && stored.attempt != report.attempt)
}

/// Whether `report` contains only what is stored already.
fn is_duplicate(stored: &TaskStatus, report: &TaskReport) -> bool {
    let order = |attempt: u32, state: TaskState, removed: bool| (removed, attempt, state);
    let have = order(stored.attempt, stored.state, stored.removed);
    let sent = order(report.attempt, report.state, report.removed);
    let words = stored.ready == report.ready
        && stored.health == report.health
        && stored.reason() == report.reason
        && stored.next_attempt() == report.next_attempt;
    sent < have || (sent == have && words)
}

/// Whether the image digest of the task's revision is pinned. Until it is, no container of it is created.
pub(super) fn is_pinned(state: &State, task: &Task) -> bool {
    let service = state.service(&task.id.service);
    service.is_some_and(|service| service.pins.contains_key(&task.revision.number))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use warren_types::fixtures::task_report;

    use super::*;
    use warren_types::{
        BoxedDefault, Health, Id, Placement, Revision, ServiceId, TaskId, TaskSpec, Timestamp,
    };

    fn task(attempt: u32, state: TaskState) -> Task {
        let ready = state == TaskState::Running;
        let revision = Revision {
            number: 1,
            created_at: Timestamp(0),
            task: TaskSpec::new("web:1".parse().unwrap()),
            ports: Vec::new(),
            placement: Placement::default(),
            force_count: 0,
            secret_objects: Vec::new(),
            labels: Default::default(),
            user_namespace: Default::default(),
            default_no_new_privileges: false,
        };
        Task {
            id: TaskId { service: ServiceId(Id(1)), number: 1 },
            slot: 1,
            revision: Arc::new(revision),
            created_at: Timestamp(0),
            node: None,
            address: None,
            desired: DesiredTaskState::Running,
            observed: TaskStatus { attempt, state, ready, ..TaskStatus::new(Timestamp(0)) },
            rare: BoxedDefault::default(),
        }
    }

    fn report(attempt: u32, state: TaskState) -> TaskReport {
        let (id, ready) = (TaskId { service: ServiceId(Id(1)), number: 1 }, state == TaskState::Running);
        TaskReport { ready, ..task_report(id, attempt, state) }
    }

    #[track_caller]
    fn check(have: (u32, TaskState), sent: (u32, TaskState), replicate: bool, old: bool) {
        let (have, sent) = (task(have.0, have.1), report(sent.0, sent.1));
        assert_eq!((must_replicate(&have, &sent), is_duplicate(&have.observed, &sent)), (replicate, old));
    }

    #[test]
    fn progress_is_not_replicated() {
        use TaskState::*;
        check((0, Assigned), (0, Preparing), false, false);
        check((0, Assigned), (0, Ready), false, false);
        check((0, Assigned), (1, Starting), false, false);
        check((0, Assigned), (1, Running), true, false);
        check((1, Running), (2, Starting), true, false);
        check((2, Starting), (2, Running), true, false);
        check((1, Running), (1, Running), false, true);
        check((1, Running), (1, Failed), true, false);
        check((2, Running), (1, Failed), true, true);
    }

    #[test]
    fn health_and_readiness_are_replicated() {
        use Health::*;
        let stored = task(1, TaskState::Running);
        for (health, ready, replicate) in [
            (Health::None, true, false),
            (Health::None, false, true),
            (Starting, true, true),
            (Healthy, true, true),
            (Unhealthy, false, true),
        ] {
            let sent = TaskReport { health, ready, ..report(1, TaskState::Running) };
            assert_eq!(must_replicate(&stored, &sent), replicate, "{health:?} {ready}");
            assert_eq!(is_duplicate(&stored.observed, &sent), !replicate, "{health:?} {ready}");
        }
    }

    #[test]
    fn standby_readiness_is_replicated() {
        let waits = Task { desired: DesiredTaskState::Ready, ..task(0, TaskState::Preparing) };
        assert!(must_replicate(&waits, &report(0, TaskState::Ready)));
        assert!(must_replicate(&waits, &report(1, TaskState::Starting)));
        assert!(!must_replicate(&waits, &report(0, TaskState::Preparing)));
        let known = Task { desired: DesiredTaskState::Ready, ..task(0, TaskState::Ready) };
        assert!(!must_replicate(&known, &report(0, TaskState::Ready)));
    }

    #[test]
    fn next_attempt_change_is_not_duplicate() {
        let waits = task(1, TaskState::Starting);
        let next = TaskReport { next_attempt: Some(Timestamp(9)), ..report(1, TaskState::Starting) };
        assert!(!is_duplicate(&waits.observed, &next) && !must_replicate(&waits, &next));
    }
}
