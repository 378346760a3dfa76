//! Which words of a worker are facts to replicate, and which are progress to show.

use warren_types::{Desired, Observed, Task, TaskReport, TaskState};

use crate::state::State;

/// True when `report` changes what must survive a failover: whether the task runs, is well, gets traffic, has ended or
/// is gone, and for a task that waits beside the one that it replaces, whether it is ready for that. The rest of the
/// way from ASSIGNED to RUNNING and the waits between attempts are not worth a write each.
pub fn must_replicate(task: &Task, report: &TaskReport) -> bool {
    let stored = &task.observed;
    let runs = |state: TaskState| state == TaskState::Running;
    // A restored cluster may want a task prepared that its worker has already tried to start.
    let waits = |state: TaskState| {
        task.desired == Desired::Ready && matches!(state, TaskState::Ready | TaskState::Starting)
    };
    stored.removed != report.removed
        || report.state.is_terminal()
        || stored.ready != report.ready
        || stored.health != report.health
        || runs(stored.state) != runs(report.state)
        || waits(stored.state) != waits(report.state)
        || (runs(report.state) && stored.attempt != report.attempt)
}

/// True when `report` says nothing that is not stored already.
pub fn is_old(stored: &Observed, report: &TaskReport) -> bool {
    let order = |attempt: u32, state: TaskState, removed: bool| (removed, attempt, state);
    let have = order(stored.attempt, stored.state, stored.removed);
    let told = order(report.attempt, report.state, report.removed);
    let words = stored.ready == report.ready
        && stored.health == report.health
        && stored.reason() == report.reason
        && stored.next_attempt() == report.next_attempt;
    told < have || (told == have && words)
}

/// Whether it is settled what the image of the task's revision is. While it is not, the first worker that knows is
/// waited for by all others.
pub fn is_pinned(state: &State, task: &Task) -> bool {
    let service = state.service(&task.id.service);
    service.is_some_and(|service| service.pins.contains_key(&task.revision.number))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use warren_types::{Health, Id, Placement, Revision, Seldom, ServiceId, TaskId, TaskSpec, Timestamp};

    fn task(attempt: u32, state: TaskState) -> Task {
        let ready = state == TaskState::Running;
        let revision = Revision {
            number: 1,
            created_at: Timestamp(0),
            task: TaskSpec::new("web:1".parse().unwrap()),
            ports: Vec::new(),
            placement: Placement::default(),
            forced: 0,
            contents: Vec::new(),
            labels: Default::default(),
        };
        Task {
            id: TaskId { service: ServiceId(Id(1)), number: 1 },
            slot: 1,
            revision: Arc::new(revision),
            created_at: Timestamp(0),
            node: None,
            address: None,
            desired: Desired::Running,
            observed: Observed { attempt, state, ready, ..Observed::new(Timestamp(0)) },
            special: Seldom::default(),
        }
    }

    fn report(attempt: u32, state: TaskState) -> TaskReport {
        TaskReport {
            task: TaskId { service: ServiceId(Id(1)), number: 1 },
            attempt,
            state,
            since: Timestamp(0),
            reason: String::new(),
            ready: state == TaskState::Running,
            exit: None,
            removed: false,
            next_attempt: None,
            image: None,
            health: Health::None,
        }
    }

    #[track_caller]
    fn check(have: (u32, TaskState), told: (u32, TaskState), replicate: bool, old: bool) {
        let (have, told) = (task(have.0, have.1), report(told.0, told.1));
        assert_eq!((must_replicate(&have, &told), is_old(&have.observed, &told)), (replicate, old));
    }

    #[test]
    fn progress_is_shown_and_facts_are_kept() {
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
    fn how_well_a_task_is_and_whether_it_gets_traffic_are_facts() {
        use Health::*;
        let stored = task(1, TaskState::Running);
        for (health, ready, replicate) in [
            (Health::None, true, false),
            (Health::None, false, true),
            (Starting, true, true),
            (Healthy, true, true),
            (Unhealthy, false, true),
        ] {
            let told = TaskReport { health, ready, ..report(1, TaskState::Running) };
            assert_eq!(must_replicate(&stored, &told), replicate, "{health:?} {ready}");
            assert_eq!(is_old(&stored.observed, &told), !replicate, "{health:?} {ready}");
        }
    }

    #[test]
    fn that_a_task_stands_by_is_a_fact_when_it_is_wanted_so() {
        let waits = Task { desired: Desired::Ready, ..task(0, TaskState::Preparing) };
        assert!(must_replicate(&waits, &report(0, TaskState::Ready)));
        assert!(must_replicate(&waits, &report(1, TaskState::Starting)));
        assert!(!must_replicate(&waits, &report(0, TaskState::Preparing)));
        let known = Task { desired: Desired::Ready, ..task(0, TaskState::Ready) };
        assert!(!must_replicate(&known, &report(0, TaskState::Ready)));
    }

    #[test]
    fn the_time_of_the_next_attempt_is_news() {
        let waits = task(1, TaskState::Starting);
        let next = TaskReport { next_attempt: Some(Timestamp(9)), ..report(1, TaskState::Starting) };
        assert!(!is_old(&waits.observed, &next) && !must_replicate(&waits, &next));
    }
}
