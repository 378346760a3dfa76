//! Keeps the newest word on each task until a manager has stored it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;
use warren_task::{Batch, CONFIRMED_WITHIN, Outbox};
use warren_types::{TaskId, TaskReport};

use crate::node::metrics::WorkerMetrics;

/// Between the actors, which report, and the session, which sends.
#[derive(Default)]
pub(crate) struct Reporter {
    outbox: Mutex<Outbox<Instant>>,
    changed: Notify,
    metrics: WorkerMetrics,
}

impl Reporter {
    /// Without a word yet. What the words tell is counted in `metrics`.
    pub fn new(metrics: WorkerMetrics) -> Self {
        Self { metrics, ..Self::default() }
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox<Instant>> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a report. One that says nothing new, or less than an earlier one, is dropped.
    pub fn tell(&self, report: TaskReport) {
        if self.outbox().tell(report.clone()) {
            self.metrics.saw(&report, Instant::now());
            self.changed.notify_one();
        }
    }

    /// The task is no longer the node's: nobody wants to hear of it.
    pub fn forget(&self, task: &TaskId) {
        self.outbox().forget(task);
        self.metrics.forget(task);
    }

    /// The task is wanted again: see [`Outbox::forget_removal`].
    pub fn forget_removal(&self, task: &TaskId) {
        self.outbox().forget_removal(task);
    }

    /// A new session: everything is said again, since another manager may know less.
    pub fn restart(&self) {
        self.outbox().restart();
        self.changed.notify_one();
    }

    /// The next message, as soon as there is something to say and few enough are on their way. Dropping the
    /// future loses nothing.
    pub async fn next_batch(&self) -> Batch {
        loop {
            let wait_until = {
                let mut outbox = self.outbox();
                match outbox.next_batch(Instant::now()) {
                    Some(batch) => return batch,
                    None => outbox.oldest_flight().map(|sent_at| sent_at + CONFIRMED_WITHIN),
                }
            };
            tokio::select! {
                () = self.changed.notified() => {}
                () = until(wait_until) => {}
            }
        }
    }

    /// The manager stored the message with this number.
    pub fn stored(&self, number: u64) {
        self.outbox().stored(number);
        self.changed.notify_one();
    }

    /// What was last reported of a task.
    pub fn newest(&self, task: &TaskId) -> Option<TaskReport> {
        self.outbox().newest(task).cloned()
    }
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use warren_task::{BATCH, MAX_IN_FLIGHT};
    use warren_types::{Health, TaskState, Timestamp};

    use super::*;
    use crate::samples::task_id;

    fn report(number: u64, state: TaskState) -> TaskReport {
        TaskReport {
            task: task_id(number),
            attempt: 1,
            state,
            since: Timestamp(0),
            reason: String::new(),
            ready: false,
            exit: None,
            removed: false,
            next_attempt: None,
            image: None,
            health: Health::None,
        }
    }

    fn states(batch: &Batch) -> Vec<(u64, TaskState)> {
        batch.reports.iter().map(|report| (report.task.number, report.state)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_newest_word_is_sent() {
        let reporter = Reporter::default();
        reporter.tell(report(1, TaskState::Preparing));
        reporter.tell(report(1, TaskState::Running));
        reporter.tell(report(1, TaskState::Starting));
        reporter.tell(report(2, TaskState::Accepted));
        let batch = reporter.next_batch().await;
        assert_eq!(states(&batch), [(1, TaskState::Running), (2, TaskState::Accepted)]);
        reporter.tell(report(1, TaskState::Running));
        assert!(reporter.next_batch().now_or_never().is_none(), "nothing new");
    }

    #[tokio::test(start_paused = true)]
    async fn unconfirmed_reports_are_sent_again_and_confirmed_ones_are_not() {
        let reporter = Reporter::default();
        reporter.tell(report(1, TaskState::Running));
        let first = reporter.next_batch().await;
        reporter.tell(report(2, TaskState::Running));
        let second = reporter.next_batch().await;
        reporter.stored(second.number);
        reporter.stored(second.number);
        let started = Instant::now();
        let again = reporter.next_batch().await;
        assert_eq!(again.reports, first.reports);
        assert!(again.number > second.number && started.elapsed() >= CONFIRMED_WITHIN);
        reporter.stored(again.number);
        let quiet = tokio::time::timeout(CONFIRMED_WITHIN * 5, reporter.next_batch()).await;
        assert!(quiet.is_err(), "all is stored");
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_session_hears_everything() {
        let reporter = Reporter::default();
        for number in 1..=3 {
            reporter.tell(report(number, TaskState::Running));
        }
        reporter.stored(reporter.next_batch().await.number);
        reporter.forget(&task_id(2));
        reporter.restart();
        reporter.restart();
        let batch = reporter.next_batch().await;
        assert_eq!(states(&batch), [(1, TaskState::Running), (3, TaskState::Running)]);
    }

    #[tokio::test(start_paused = true)]
    async fn batches_and_flights_are_bounded() {
        let reporter = Reporter::default();
        let mut numbers = Vec::new();
        for flight in 0..MAX_IN_FLIGHT as u64 {
            reporter.tell(report(flight + 1, TaskState::Running));
            numbers.push(reporter.next_batch().await.number);
        }
        reporter.tell(report(100, TaskState::Running));
        assert!(reporter.next_batch().now_or_never().is_none());
        reporter.stored(numbers[0]);
        assert_eq!(states(&reporter.next_batch().await), [(100, TaskState::Running)]);
        reporter.restart();
        for number in 1..=(BATCH as u64 + 1) {
            reporter.tell(report(number % 250 + 1, TaskState::Failed));
        }
        assert!(reporter.next_batch().await.reports.len() <= BATCH);
    }
}
