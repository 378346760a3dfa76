//! Reports that wait to be sent and acknowledged: the newest report of each task, until a manager has stored
//! it.
//!
//! `M` is a moment of a monotonic clock.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Sub;
use std::time::Duration;

use warren_types::{TaskId, TaskReport};

use crate::report_order::supersedes;

/// The most reports in one batch.
pub const MAX_BATCH_REPORTS: usize = 256;
/// The most batches that wait for their acknowledgement.
pub const MAX_BATCHES_IN_FLIGHT: usize = 8;
/// A batch that is not acknowledged after this time is sent again.
pub const ACK_TIMEOUT: Duration = Duration::from_secs(10);

/// The queue between the tasks, which report, and the session, which sends. At most one report per task is
/// kept.
#[derive(Debug)]
pub struct Outbox<M> {
    /// The newest report of each task of the node.
    latest: BTreeMap<TaskId, TaskReport>,
    /// Reports to send.
    unsent: BTreeSet<TaskId>,
    in_flight: BTreeMap<u64, InFlightBatch<M>>,
    last_number: u64,
}

#[derive(Debug)]
struct InFlightBatch<M> {
    sent_at: M,
    reports: Vec<TaskReport>,
}

/// One message of reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportBatch {
    /// Counts up; the acknowledgement repeats it.
    pub number: u64,
    /// At most one per task.
    pub reports: Vec<TaskReport>,
}

impl<M> Default for Outbox<M> {
    fn default() -> Self {
        Self { latest: BTreeMap::new(), unsent: BTreeSet::new(), in_flight: BTreeMap::new(), last_number: 0 }
    }
}

impl<M: Copy + Ord + Sub<Output = Duration>> Outbox<M> {
    /// Adds a report; false if it contains nothing new, or is older than an earlier one.
    pub fn push(&mut self, report: TaskReport) -> bool {
        if let Some(last) = self.latest.get(&report.task)
            && (*last == report || !supersedes(&report, last))
        {
            return false;
        }
        self.unsent.insert(report.task);
        self.latest.insert(report.task, report);
        true
    }

    /// The task no longer belongs to the node: no report of it is needed.
    pub fn remove(&mut self, task: &TaskId) {
        self.latest.remove(task);
        self.unsent.remove(task);
    }

    /// The task is desired again, in another incarnation of the cluster. Its removal was reported while it
    /// was not desired, and would count as its final report.
    pub fn forget_removal(&mut self, task: &TaskId) {
        if self.latest.get(task).is_some_and(|last| last.removed) {
            self.remove(task);
        }
    }

    /// A new session: all reports are sent again, since another manager may know less.
    pub fn resend_all(&mut self) {
        self.in_flight.clear();
        self.unsent = self.latest.keys().copied().collect();
    }

    /// The next batch at `now`; `None` while there is nothing to send or enough is in flight.
    pub fn next_batch(&mut self, now: M) -> Option<ReportBatch> {
        self.requeue_unacknowledged(now);
        if self.unsent.is_empty() || self.in_flight.len() >= MAX_BATCHES_IN_FLIGHT {
            return None;
        }
        let mut reports = Vec::with_capacity(self.unsent.len().min(MAX_BATCH_REPORTS));
        while reports.len() < MAX_BATCH_REPORTS
            && let Some(id) = self.unsent.pop_first()
        {
            reports.extend(self.latest.get(&id).cloned());
        }
        self.last_number += 1;
        let flight = InFlightBatch { sent_at: now, reports: reports.clone() };
        self.in_flight.insert(self.last_number, flight);
        Some(ReportBatch { number: self.last_number, reports })
    }

    /// When the oldest batch in flight was sent. It is sent again [`ACK_TIMEOUT`] later.
    pub fn oldest_in_flight(&self) -> Option<M> {
        self.in_flight.values().map(|flight| flight.sent_at).min()
    }

    /// The manager stored the batch with this number.
    pub fn acknowledge(&mut self, number: u64) {
        self.in_flight.remove(&number);
    }

    /// The last report of a task.
    pub fn latest_report(&self, task: &TaskId) -> Option<&TaskReport> {
        self.latest.get(task)
    }

    /// Queues reports that were not acknowledged in time again, unless there are newer ones by now.
    fn requeue_unacknowledged(&mut self, now: M) {
        let is_late = |flight: &InFlightBatch<M>| now - flight.sent_at >= ACK_TIMEOUT;
        let late: Vec<u64> =
            self.in_flight.iter().filter(|(_, flight)| is_late(flight)).map(|(number, _)| *number).collect();
        for number in late {
            let reports = self.in_flight.remove(&number).map(|flight| flight.reports).unwrap_or_default();
            let same = |report: &TaskReport| self.latest.get(&report.task) == Some(report);
            let again: Vec<TaskId> = reports.iter().filter(|r| same(r)).map(|r| r.task).collect();
            self.unsent.extend(again);
        }
    }
}

#[cfg(test)]
mod tests {
    use warren_types::fixtures;
    use warren_types::{Id, ServiceId, TaskState};

    use super::*;

    fn task_report(number: u64, state: TaskState, removed: bool) -> TaskReport {
        let id = TaskId { service: ServiceId(Id(1)), number };
        TaskReport { removed, ..fixtures::task_report(id, 1, state) }
    }

    #[test]
    fn removed_report_is_final_until_task_is_removed() {
        let mut outbox = Outbox::<Duration>::default();
        assert!(outbox.push(task_report(1, TaskState::Shutdown, true)));
        let later = task_report(1, TaskState::Preparing, false);
        assert!(!outbox.push(later.clone()), "it would be taken for an older report");
        outbox.remove(&later.task);
        assert!(outbox.push(later.clone()) && outbox.latest_report(&later.task) == Some(&later));
    }

    #[test]
    fn desired_again_task_forgets_only_removal() {
        let mut outbox = Outbox::<Duration>::default();
        outbox.push(task_report(1, TaskState::Shutdown, true));
        outbox.push(task_report(2, TaskState::Running, false));
        outbox.push(task_report(3, TaskState::Shutdown, true));
        for number in [1, 2] {
            outbox.forget_removal(&task_report(number, TaskState::Shutdown, true).task);
        }
        let left = [task_report(2, TaskState::Running, false), task_report(3, TaskState::Shutdown, true)];
        assert_eq!(outbox.next_batch(Duration::ZERO).unwrap().reports, left);
        let ended = task_report(1, TaskState::Shutdown, false);
        assert!(outbox.push(ended.clone()), "the current state is reported");
        assert_eq!(outbox.latest_report(&ended.task), Some(&ended));
    }

    #[test]
    fn unacknowledged_report_is_sent_again() {
        let mut outbox = Outbox::default();
        let (start, late) = (Duration::ZERO, ACK_TIMEOUT);
        outbox.push(task_report(1, TaskState::Starting, false));
        outbox.push(task_report(2, TaskState::Starting, false));
        let first = outbox.next_batch(start).unwrap();
        assert_eq!((first.number, first.reports.len(), outbox.oldest_in_flight()), (1, 2, Some(start)));
        outbox.push(task_report(2, TaskState::Running, false));
        let second = outbox.next_batch(start).unwrap();
        outbox.acknowledge(second.number);
        assert_eq!(outbox.next_batch(late - Duration::from_millis(1)), None);
        let again = outbox.next_batch(late).unwrap();
        assert_eq!(again.reports, [task_report(1, TaskState::Starting, false)]);
        outbox.acknowledge(again.number);
        assert_eq!((outbox.next_batch(late * 9), outbox.oldest_in_flight()), (None, None));
    }
}
