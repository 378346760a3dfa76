//! Which words of a worker are facts to replicate, and which are progress to show.

use warren_types::{Observed, TaskReport, TaskState};

/// True when `report` changes what must survive a failover: whether the task runs, gets traffic, has ended or is
/// gone. The way from ASSIGNED to RUNNING and the waits between attempts are not worth a write each.
pub fn must_replicate(stored: &Observed, report: &TaskReport) -> bool {
    let runs = |state: TaskState| state == TaskState::Running;
    stored.removed != report.removed
        || report.state.is_terminal()
        || stored.ready != report.ready
        || runs(stored.state) != runs(report.state)
        || (runs(report.state) && stored.attempt != report.attempt)
}

/// True when `report` says nothing that is not stored already.
pub fn is_old(stored: &Observed, report: &TaskReport) -> bool {
    let order = |attempt: u32, state: TaskState, removed: bool| (removed, attempt, state);
    let have = order(stored.attempt, stored.state, stored.removed);
    let told = order(report.attempt, report.state, report.removed);
    told < have || (told == have && stored.ready == report.ready && *stored.reason == report.reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_types::{Id, ServiceId, TaskId, Timestamp};

    fn stored(attempt: u32, state: TaskState) -> Observed {
        let ready = state == TaskState::Running;
        Observed { attempt, state, ready, ..Observed::new(Timestamp(0)) }
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
        }
    }

    #[track_caller]
    fn check(have: (u32, TaskState), told: (u32, TaskState), replicate: bool, old: bool) {
        let (have, told) = (stored(have.0, have.1), report(told.0, told.1));
        assert_eq!((must_replicate(&have, &told), is_old(&have, &told)), (replicate, old));
    }

    #[test]
    fn progress_is_shown_and_facts_are_kept() {
        use TaskState::*;
        check((0, Assigned), (0, Preparing), false, false);
        check((0, Assigned), (1, Starting), false, false);
        check((0, Assigned), (1, Running), true, false);
        check((1, Running), (2, Starting), true, false);
        check((2, Starting), (2, Running), true, false);
        check((1, Running), (1, Running), false, true);
        check((1, Running), (1, Failed), true, false);
        check((2, Running), (1, Failed), true, true);
    }
}
