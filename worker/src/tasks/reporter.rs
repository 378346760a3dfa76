//! Keeps the newest report of each task until a manager has stored it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use warren_task::{ACK_TIMEOUT, Outbox, ReportBatch};
use warren_types::{TaskId, TaskReport};

use crate::node::metrics::WorkerMetrics;

/// Connects the actors, which report, with the session, which sends.
#[derive(Default)]
pub(crate) struct TaskReporter {
    outbox: Mutex<Outbox<Instant>>,
    changed: Notify,
    reported: watch::Sender<()>,
    metrics: WorkerMetrics,
}

impl TaskReporter {
    /// Without reports. Events in reports are counted in `metrics`.
    pub fn new(metrics: WorkerMetrics) -> Self {
        Self { metrics, ..Self::default() }
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox<Instant>> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts a report. One without changes, or older than an earlier one, is dropped.
    pub fn report(&self, report: TaskReport) {
        if self.outbox().push(report.clone()) {
            self.metrics.record_report(&report, Instant::now());
            self.changed.notify_one();
            self.reported.send_replace(());
        }
    }

    /// Changes with every report.
    pub fn reported(&self) -> watch::Receiver<()> {
        self.reported.subscribe()
    }

    /// Removes the reports of a task that was removed from the node.
    pub fn forget(&self, task: &TaskId) {
        self.outbox().remove(task);
        self.metrics.forget(task);
    }

    /// The task is desired again: see [`Outbox::forget_removal`].
    pub fn forget_removal(&self, task: &TaskId) {
        self.outbox().forget_removal(task);
    }

    /// A new session: every report is sent again, since another manager may have fewer.
    pub fn resend_all(&self) {
        self.outbox().resend_all();
        self.changed.notify_one();
    }

    /// The next batch, as soon as there are reports and few enough batches are in flight. Dropping the future
    /// loses nothing.
    pub async fn next_batch(&self) -> ReportBatch {
        loop {
            let wait_until = {
                let mut outbox = self.outbox();
                match outbox.next_batch(Instant::now()) {
                    Some(batch) => return batch,
                    None => outbox.oldest_in_flight().map(|sent_at| sent_at + ACK_TIMEOUT),
                }
            };
            tokio::select! {
                () = self.changed.notified() => {}
                () = wait_until_due(wait_until) => {}
            }
        }
    }

    /// The manager stored the batch with this number.
    pub fn acknowledge(&self, number: u64) {
        self.outbox().acknowledge(number);
        self.changed.notify_one();
    }

    /// The last report of a task.
    pub fn latest(&self, task: &TaskId) -> Option<TaskReport> {
        self.outbox().latest_report(task).cloned()
    }
}

async fn wait_until_due(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use warren_task::{MAX_BATCH_REPORTS, MAX_BATCHES_IN_FLIGHT};
    use warren_types::TaskState;
    use warren_types::fixtures::task_report;

    use super::*;
    use crate::fixtures::task_id;

    fn report(number: u64, state: TaskState) -> TaskReport {
        task_report(task_id(number), 1, state)
    }

    fn states(batch: &ReportBatch) -> Vec<(u64, TaskState)> {
        batch.reports.iter().map(|report| (report.task.number, report.state)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn only_latest_report_is_sent() {
        let reporter = TaskReporter::default();
        reporter.report(report(1, TaskState::Preparing));
        reporter.report(report(1, TaskState::Running));
        reporter.report(report(1, TaskState::Starting));
        reporter.report(report(2, TaskState::Accepted));
        let batch = reporter.next_batch().await;
        assert_eq!(states(&batch), [(1, TaskState::Running), (2, TaskState::Accepted)]);
        reporter.report(report(1, TaskState::Running));
        assert!(reporter.next_batch().now_or_never().is_none(), "nothing new");
    }

    #[tokio::test(start_paused = true)]
    async fn only_unacknowledged_reports_are_resent() {
        let reporter = TaskReporter::default();
        reporter.report(report(1, TaskState::Running));
        let first = reporter.next_batch().await;
        reporter.report(report(2, TaskState::Running));
        let second = reporter.next_batch().await;
        reporter.acknowledge(second.number);
        reporter.acknowledge(second.number);
        let started = Instant::now();
        let again = reporter.next_batch().await;
        assert_eq!(again.reports, first.reports);
        assert!(again.number > second.number && started.elapsed() >= ACK_TIMEOUT);
        reporter.acknowledge(again.number);
        let quiet = tokio::time::timeout(ACK_TIMEOUT * 5, reporter.next_batch()).await;
        assert!(quiet.is_err(), "all is stored");
    }

    #[tokio::test(start_paused = true)]
    async fn new_session_resends_everything() {
        let reporter = TaskReporter::default();
        for number in 1..=3 {
            reporter.report(report(number, TaskState::Running));
        }
        reporter.acknowledge(reporter.next_batch().await.number);
        reporter.forget(&task_id(2));
        reporter.resend_all();
        reporter.resend_all();
        let batch = reporter.next_batch().await;
        assert_eq!(states(&batch), [(1, TaskState::Running), (3, TaskState::Running)]);
    }

    #[tokio::test(start_paused = true)]
    async fn batches_and_unconfirmed_reports_are_bounded() {
        let reporter = TaskReporter::default();
        let mut numbers = Vec::new();
        for flight in 0..MAX_BATCHES_IN_FLIGHT as u64 {
            reporter.report(report(flight + 1, TaskState::Running));
            numbers.push(reporter.next_batch().await.number);
        }
        reporter.report(report(100, TaskState::Running));
        assert!(reporter.next_batch().now_or_never().is_none());
        reporter.acknowledge(numbers[0]);
        assert_eq!(states(&reporter.next_batch().await), [(100, TaskState::Running)]);
        reporter.resend_all();
        for number in 1..=(MAX_BATCH_REPORTS as u64 + 1) {
            reporter.report(report(number % 250 + 1, TaskState::Failed));
        }
        assert!(reporter.next_batch().await.reports.len() <= MAX_BATCH_REPORTS);
    }
}
