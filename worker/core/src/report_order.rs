//! Which of two reports of a task is later.

use warren_types::{TaskReport, TaskState};

/// Whether `new` may replace `old`: by (attempt, state), and nothing follows `removed`. A report of the same
/// attempt and state replaces too, since reason and readiness change within a state.
pub fn supersedes(new: &TaskReport, old: &TaskReport) -> bool {
    rank(new) >= rank(old)
}

fn rank(report: &TaskReport) -> (bool, u32, TaskState) {
    (report.removed, report.attempt, report.state)
}

#[cfg(test)]
mod tests {
    use warren_types::fixtures;
    use warren_types::{Id, ServiceId, TaskId};

    use super::*;

    fn task_report(attempt: u32, state: TaskState, removed: bool) -> TaskReport {
        let task = TaskId { service: ServiceId(Id(1)), number: 1 };
        TaskReport { removed, ..fixtures::task_report(task, attempt, state) }
    }

    #[test]
    fn report_order_is_attempt_then_state() {
        let rising = [
            task_report(1, TaskState::Preparing, false),
            task_report(1, TaskState::Running, false),
            task_report(2, TaskState::Starting, false),
            task_report(2, TaskState::Running, false),
            task_report(2, TaskState::Failed, false),
            task_report(1, TaskState::Shutdown, true),
        ];
        for (i, earlier) in rising.iter().enumerate() {
            for (k, later) in rising.iter().enumerate() {
                assert_eq!(supersedes(later, earlier), k >= i, "{earlier:?} then {later:?}");
            }
        }
    }
}
