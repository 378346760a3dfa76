//! Task progress reported by other managers for nodes with a session there. It is received while a watch is
//! open on this manager, and dropped afterwards.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warren_core::State;
use warren_types::{MemberId, NodeId, TaskId, TaskReport, TaskState};

/// Number of reports up to which nothing is pruned.
const MIN_PRUNE_SIZE: usize = 1024;

/// Sort key of reports on one task: later reports are greater.
pub(super) fn report_order(report: &TaskReport) -> (bool, u32, TaskState) {
    (report.removed, report.attempt, report.state)
}

/// The newest reports. Cheap to clone; all clones share one table.
#[derive(Debug, Clone, Default)]
pub struct RemoteProgress(Arc<Mutex<RemoteProgressTable>>);

#[derive(Debug, Default)]
struct RemoteProgressTable {
    reports: BTreeMap<TaskId, RemoteReport>,
    /// Number of reports after the last prune.
    size_after_prune: usize,
}

#[derive(Debug, Clone, PartialEq)]
struct RemoteReport {
    /// The reporting manager.
    from: MemberId,
    node: NodeId,
    report: TaskReport,
}

impl RemoteProgress {
    fn lock(&self) -> MutexGuard<'_, RemoteProgressTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a report, unless a newer one of the task is recorded; true if it changed the record.
    pub(super) fn record(&self, from: MemberId, node: NodeId, report: TaskReport) -> bool {
        let remote = RemoteReport { from, node, report };
        let reports = &mut self.lock().reports;
        let known = reports.get(&remote.report.task);
        // A node that moved to another manager starts a new sequence.
        let older = known.is_some_and(|known| {
            known.node == node && report_order(&known.report) > report_order(&remote.report)
        });
        if older || known == Some(&remote) {
            return false;
        }
        reports.insert(remote.report.task, remote);
        true
    }

    /// The newest report on a task of that node.
    pub fn progress(&self, node: NodeId, task: &TaskId) -> Option<TaskReport> {
        self.lock().reports.get(task).filter(|remote| remote.node == node).map(|remote| remote.report.clone())
    }

    /// Removes reports that are replicated by now, once there are enough of them.
    pub fn prune(&self, state: &State) {
        let mut kept = self.lock();
        if kept.reports.len() < MIN_PRUNE_SIZE.max(2 * kept.size_after_prune) {
            return;
        }
        kept.reports.retain(|id, remote| {
            let task = state.task(id).filter(|task| task.node == Some(remote.node));
            task.is_some_and(|task| {
                let observed = &task.observed;
                (observed.removed, observed.attempt, observed.state) < report_order(&remote.report)
            })
        });
        kept.size_after_prune = kept.reports.len();
    }

    /// Removes the reports of that manager.
    pub fn remove_manager(&self, from: MemberId) {
        self.lock().reports.retain(|_, remote| remote.from != from);
    }

    /// Removes all reports.
    pub fn clear(&self) {
        *self.lock() = RemoteProgressTable::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_types::fixtures::task_report;
    use warren_types::{Id, ServiceId};

    fn task(number: u64) -> TaskId {
        TaskId { service: ServiceId(Id(1)), number }
    }

    fn report(number: u64, attempt: u32, state: TaskState) -> TaskReport {
        task_report(task(number), attempt, state)
    }

    #[test]
    fn remote_report_only_advances_on_own_node() {
        let (elsewhere, node, other) = (RemoteProgress::default(), NodeId(Id(1)), NodeId(Id(2)));
        let shown = |node| elsewhere.progress(node, &task(1)).map(|report| report.state);
        assert!(elsewhere.record(2, node, report(1, 0, TaskState::Starting)));
        assert!(!elsewhere.record(2, node, report(1, 0, TaskState::Starting)), "nothing new");
        assert!(!elsewhere.record(3, node, report(1, 0, TaskState::Preparing)), "older");
        assert_eq!((shown(node), shown(other)), (Some(TaskState::Starting), None));
        elsewhere.remove_manager(3);
        assert_eq!(shown(node), Some(TaskState::Starting), "somebody else told it");
        elsewhere.remove_manager(2);
        assert_eq!(shown(node), None);
    }

    #[test]
    fn replicated_reports_are_pruned() {
        let (elsewhere, node) = (RemoteProgress::default(), NodeId(Id(1)));
        for number in 0..=MIN_PRUNE_SIZE as u64 {
            elsewhere.prune(&State::new());
            elsewhere.record(2, node, report(number, 0, TaskState::Preparing));
        }
        assert_eq!(elsewhere.lock().reports.len(), 1, "the state knows none of them");
        elsewhere.clear();
        assert!(elsewhere.lock().reports.is_empty());
    }
}
