//! Health checks of a running task, next to its actor: they continue while the actor executes actions.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use warren_control::Clock;
use warren_health::{CheckResult, HealthTracker, ProbeTarget, Prober};
use warren_task::HealthObservation;
use warren_types::spec::HealthCheck;
use warren_types::{Health, TaskId, Timestamp};

use crate::node::metrics::WorkerMetrics;

/// Number of results per task that are kept for managers.
const MAX_RESULTS: usize = 5;

/// Shared context of all checks.
pub(crate) struct CheckContext {
    pub prober: Prober,
    pub results: CheckResults,
    pub metrics: WorkerMetrics,
}

/// The process to check.
pub(super) struct CheckSubject {
    pub task: TaskId,
    pub check: HealthCheck,
    pub target: ProbeTarget,
    /// Start time of its process.
    pub since: Timestamp,
    /// The last known health, which remains until a check changes it.
    pub health: Health,
}

/// The checks of one process. They end when this is dropped.
pub(super) struct HealthChecker {
    work: JoinHandle<()>,
    latest: watch::Receiver<Option<HealthObservation>>,
}

impl Drop for HealthChecker {
    fn drop(&mut self) {
        self.work.abort();
    }
}

impl HealthChecker {
    /// Checks the task periodically.
    pub fn start(subject: CheckSubject, checking: Arc<CheckContext>, clock: Arc<dyn Clock>) -> Self {
        let (sender, found) = watch::channel(None);
        Self { work: tokio::spawn(run(subject, checking, clock, sender)), latest: found }
    }

    /// The change since the last call, if any.
    pub fn take_change(&mut self) -> Option<HealthObservation> {
        if !self.latest.has_changed().unwrap_or_default() {
            return None;
        }
        self.latest.borrow_and_update().clone()
    }

    /// Waits for a change.
    pub async fn changed(&mut self) {
        if self.latest.changed().await.is_err() {
            // The checks were aborted; the actor restarts them with its next input.
            std::future::pending().await
        }
        self.latest.mark_changed();
    }
}

async fn run(
    subject: CheckSubject,
    checking: Arc<CheckContext>,
    clock: Arc<dyn Clock>,
    found: watch::Sender<Option<HealthObservation>>,
) {
    let CheckSubject { task, check, target, since, health } = subject;
    let (started, before) = (Instant::now(), Timestamp(clock.unix_millis()).saturating_since(since));
    let age = || before + started.elapsed();
    let mut tracker = HealthTracker::adopted(&check, seed(&task), before, health);
    loop {
        let due = tracker.due().unwrap_or_default();
        tokio::time::sleep(due.saturating_sub(age())).await;
        let (at, begun) = (Timestamp(clock.unix_millis()), Instant::now());
        tracker.begin();
        let outcome = checking.prober.check(&check, &target).await;
        let verdict = tracker.end(&outcome, age());
        let took = begun.elapsed();
        tracing::debug!(
            %task, succeeded = outcome.succeeded, summary = outcome.summary, ?took, "health check completed"
        );
        if outcome.is_conclusive {
            checking.metrics.record_check(task, outcome.succeeded);
        }
        checking.results.record(
            task,
            CheckResult { at, duration: took, succeeded: outcome.succeeded, output: outcome.output() },
        );
        let checked = Some(HealthObservation { health: verdict.health, reason: verdict.reason });
        found.send_if_modified(|found| std::mem::replace(found, checked.clone()) != checked);
    }
}

/// Differs per task.
fn seed(task: &TaskId) -> u64 {
    let TaskId { service, number } = task;
    let folded = (service.0.0 >> 64) as u64 ^ service.0.0 as u64;
    folded.wrapping_add(*number)
}

/// The newest results of each task that were not sent to a manager.
#[derive(Debug, Default)]
pub(crate) struct CheckResults {
    tasks: Mutex<BTreeMap<TaskId, TaskResults>>,
}

#[derive(Debug, Default)]
struct TaskResults {
    newest: VecDeque<CheckResult>,
    /// Number of unsent results at the end.
    unreported: usize,
}

impl CheckResults {
    fn tasks(&self) -> MutexGuard<'_, BTreeMap<TaskId, TaskResults>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, task: TaskId, result: CheckResult) {
        let mut tasks = self.tasks();
        let kept = tasks.entry(task).or_default();
        kept.newest.push_back(result);
        if kept.newest.len() > MAX_RESULTS {
            kept.newest.pop_front();
        }
        kept.unreported = (kept.unreported + 1).min(MAX_RESULTS);
    }

    /// Results that were not taken before, oldest first; at most [`MAX_RESULTS`] per task.
    pub fn take_unreported(&self) -> Vec<(TaskId, Vec<CheckResult>)> {
        let mut tasks = self.tasks();
        let untold = tasks.iter_mut().filter(|(_, kept)| kept.unreported > 0);
        let take = |(task, kept): (&TaskId, &mut TaskResults)| {
            let reported = kept.newest.len() - std::mem::take(&mut kept.unreported);
            (*task, kept.newest.iter().skip(reported).cloned().collect())
        };
        untold.map(take).collect()
    }

    /// A new session: its manager has none of them.
    pub fn reset_for_session(&self) {
        for kept in self.tasks().values_mut() {
            kept.unreported = kept.newest.len();
        }
    }

    /// Removes the results of a task that was removed from the node.
    pub fn forget(&self, task: &TaskId) {
        self.tasks().remove(task);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::fixtures::task_id;

    fn result(at: u64) -> CheckResult {
        CheckResult { at: Timestamp(at), duration: Duration::ZERO, succeeded: true, output: String::new() }
    }

    fn taken(results: &CheckResults) -> Vec<(u64, Vec<u64>)> {
        let times = |results: Vec<CheckResult>| results.into_iter().map(|result| result.at.0).collect();
        results.take_unreported().into_iter().map(|(task, results)| (task.number, times(results))).collect()
    }

    #[test]
    fn results_are_sent_once_per_session() {
        let results = CheckResults::default();
        assert_eq!(taken(&results), []);
        for at in 1..=7 {
            results.record(task_id(1), result(at));
        }
        results.record(task_id(2), result(8));
        assert_eq!(taken(&results), [(1, vec![3, 4, 5, 6, 7]), (2, vec![8])]);
        assert_eq!(taken(&results), []);
        results.record(task_id(1), result(9));
        assert_eq!(taken(&results), [(1, vec![9])]);
        results.forget(&task_id(2));
        results.reset_for_session();
        assert_eq!(taken(&results), [(1, vec![4, 5, 6, 7, 9])]);
    }

    #[test]
    fn seeds_differ_between_tasks() {
        let seeds: std::collections::BTreeSet<u64> = (0..100).map(|number| seed(&task_id(number))).collect();
        assert_eq!(seeds.len(), 100);
    }
}
