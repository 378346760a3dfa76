//! Keeps the newest word on each task until a manager has stored it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use warren_task::supersedes;
use warren_types::{TaskId, TaskReport};

use crate::node::metrics::WorkerMetrics;

/// How many reports go in one message.
const BATCH: usize = 256;
/// How many messages may wait for their confirmation.
const MAX_IN_FLIGHT: usize = 8;
/// A message that is not confirmed after this is sent again.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(10);

/// Between the actors, which report, and the session, which sends. At most one report per task is kept.
#[derive(Default)]
pub(crate) struct Reporter {
    state: Mutex<State>,
    changed: Notify,
    metrics: WorkerMetrics,
}

#[derive(Debug, Default)]
struct State {
    /// The newest report of each task that the node has.
    newest: BTreeMap<TaskId, TaskReport>,
    /// Those that are to be sent.
    unsent: BTreeSet<TaskId>,
    in_flight: BTreeMap<u64, Flight>,
    last_number: u64,
}

#[derive(Debug)]
struct Flight {
    sent_at: Instant,
    reports: Vec<TaskReport>,
}

/// One message of reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Batch {
    /// Counts up; the confirmation names it.
    pub number: u64,
    /// At most one per task.
    pub reports: Vec<TaskReport>,
}

impl Reporter {
    /// Without a word yet. What the words tell is counted in `metrics`.
    pub fn new(metrics: WorkerMetrics) -> Self {
        Self { metrics, ..Self::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a report. One that says nothing new, or less than an earlier one, is dropped.
    pub fn tell(&self, report: TaskReport) {
        let mut state = self.state();
        if let Some(last) = state.newest.get(&report.task)
            && (*last == report || !supersedes(&report, last))
        {
            return;
        }
        self.metrics.saw(&report, Instant::now());
        state.unsent.insert(report.task);
        state.newest.insert(report.task, report);
        drop(state);
        self.changed.notify_one();
    }

    /// The task is no longer the node's: nobody wants to hear of it.
    pub fn forget(&self, task: &TaskId) {
        let mut state = self.state();
        state.newest.remove(task);
        state.unsent.remove(task);
        drop(state);
        self.metrics.forget(task);
    }

    /// A new session: everything is said again, since another manager may know less.
    pub fn restart(&self) {
        let mut state = self.state();
        state.in_flight.clear();
        state.unsent = state.newest.keys().copied().collect();
        drop(state);
        self.changed.notify_one();
    }

    /// The next message, as soon as there is something to say and few enough are on their way. Dropping the
    /// future loses nothing.
    pub async fn next_batch(&self) -> Batch {
        loop {
            let wait_until = {
                let mut state = self.state();
                state.return_late(Instant::now());
                match state.take_batch() {
                    Some(batch) => return batch,
                    None => state.oldest_flight().map(|sent_at| sent_at + CONFIRMED_WITHIN),
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
        self.state().in_flight.remove(&number);
        self.changed.notify_one();
    }

    /// What was last reported of a task.
    pub fn newest(&self, task: &TaskId) -> Option<TaskReport> {
        self.state().newest.get(task).cloned()
    }
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

impl State {
    fn take_batch(&mut self) -> Option<Batch> {
        if self.unsent.is_empty() || self.in_flight.len() >= MAX_IN_FLIGHT {
            return None;
        }
        let ids: Vec<TaskId> = self.unsent.iter().take(BATCH).copied().collect();
        let mut reports = Vec::with_capacity(ids.len());
        for id in ids {
            self.unsent.remove(&id);
            reports.extend(self.newest.get(&id).cloned());
        }
        self.last_number += 1;
        let flight = Flight { sent_at: Instant::now(), reports: reports.clone() };
        self.in_flight.insert(self.last_number, flight);
        Some(Batch { number: self.last_number, reports })
    }

    fn oldest_flight(&self) -> Option<Instant> {
        self.in_flight.values().map(|flight| flight.sent_at).min()
    }

    /// What was not confirmed in time is to be sent again, unless there is a newer word by now.
    fn return_late(&mut self, now: Instant) {
        let is_late = |flight: &Flight| now.duration_since(flight.sent_at) >= CONFIRMED_WITHIN;
        let late: Vec<u64> =
            self.in_flight.iter().filter(|(_, flight)| is_late(flight)).map(|(number, _)| *number).collect();
        for number in late {
            let reports = self.in_flight.remove(&number).map(|flight| flight.reports).unwrap_or_default();
            let same = |report: &TaskReport| self.newest.get(&report.task) == Some(report);
            let again: Vec<TaskId> = reports.iter().filter(|r| same(r)).map(|r| r.task).collect();
            self.unsent.extend(again);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
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
