//! The checks of a task whose process runs, beside its actor: they go on while the actor works.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use warren_control::Clock;
use warren_health::{CheckResult, Prober, Target, Tracker};
use warren_task::Checked;
use warren_types::spec::HealthCheck;
use warren_types::{Health, TaskId, Timestamp};

use crate::node::metrics::WorkerMetrics;

/// How many results of a task are kept for managers.
const KEPT: usize = 5;

/// What checks are made with, and where their results go; shared by all tasks.
pub(crate) struct Checking {
    pub prober: Prober,
    pub results: Results,
    pub metrics: WorkerMetrics,
}

/// What is checked.
pub(super) struct Subject {
    pub task: TaskId,
    pub check: HealthCheck,
    pub target: Target,
    /// When its process was started.
    pub since: Timestamp,
    /// What was last found, if anything: it stays that until checks say otherwise.
    pub health: Health,
}

/// The checks of one process. They end when this is dropped.
pub(super) struct Checks {
    work: JoinHandle<()>,
    found: watch::Receiver<Option<Checked>>,
}

impl Drop for Checks {
    fn drop(&mut self) {
        self.work.abort();
    }
}

impl Checks {
    /// Checks the task again and again.
    pub fn start(subject: Subject, checking: Arc<Checking>, clock: Arc<dyn Clock>) -> Self {
        let (sender, found) = watch::channel(None);
        Self { work: tokio::spawn(run(subject, checking, clock, sender)), found }
    }

    /// What was found since the last call.
    pub fn news(&mut self) -> Option<Checked> {
        if !self.found.has_changed().unwrap_or_default() {
            return None;
        }
        self.found.borrow_and_update().clone()
    }

    /// Waits until something else is found than before.
    pub async fn changed(&mut self) {
        if self.found.changed().await.is_err() {
            // They broke off; the actor looks at them again with whatever comes next.
            std::future::pending().await
        }
        self.found.mark_changed();
    }
}

async fn run(
    subject: Subject,
    checking: Arc<Checking>,
    clock: Arc<dyn Clock>,
    found: watch::Sender<Option<Checked>>,
) {
    let Subject { task, check, target, since, health } = subject;
    let (started, before) = (Instant::now(), Timestamp(clock.unix_millis()).since(since));
    let age = || before + started.elapsed();
    let mut tracker = Tracker::adopted(&check, seed(&task), before, health);
    loop {
        let due = tracker.due().unwrap_or_default();
        tokio::time::sleep(due.saturating_sub(age())).await;
        let (at, begun) = (Timestamp(clock.unix_millis()), Instant::now());
        tracker.begin();
        let outcome = checking.prober.check(&check, &target).await;
        let verdict = tracker.end(&outcome, age());
        let took = begun.elapsed();
        tracing::debug!(%task, good = outcome.good, said = outcome.said, ?took, "checked");
        if outcome.asked {
            checking.metrics.checked(task, outcome.good);
        }
        checking.results.note(task, CheckResult { at, took, good: outcome.good, output: outcome.output() });
        let checked = Some(Checked { health: verdict.health, reason: verdict.reason });
        found.send_if_modified(|found| std::mem::replace(found, checked.clone()) != checked);
    }
}

/// Differs from task to task.
fn seed(task: &TaskId) -> u64 {
    let TaskId { service, number } = task;
    let folded = (service.0.0 >> 64) as u64 ^ service.0.0 as u64;
    folded.wrapping_add(*number)
}

/// The newest results of each task, until a manager was told.
#[derive(Debug, Default)]
pub(crate) struct Results {
    tasks: Mutex<BTreeMap<TaskId, Kept>>,
}

#[derive(Debug, Default)]
struct Kept {
    newest: VecDeque<CheckResult>,
    /// How many of the last ones no manager was told.
    untold: usize,
}

impl Results {
    fn tasks(&self) -> MutexGuard<'_, BTreeMap<TaskId, Kept>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, task: TaskId, result: CheckResult) {
        let mut tasks = self.tasks();
        let kept = tasks.entry(task).or_default();
        kept.newest.push_back(result);
        if kept.newest.len() > KEPT {
            kept.newest.pop_front();
        }
        kept.untold = (kept.untold + 1).min(KEPT);
    }

    /// What was not taken before, oldest first; at most [`KEPT`] of a task.
    pub fn take(&self) -> Vec<(TaskId, Vec<CheckResult>)> {
        let mut tasks = self.tasks();
        let untold = tasks.iter_mut().filter(|(_, kept)| kept.untold > 0);
        let take = |(task, kept): (&TaskId, &mut Kept)| {
            let told = kept.newest.len() - std::mem::take(&mut kept.untold);
            (*task, kept.newest.iter().skip(told).cloned().collect())
        };
        untold.map(take).collect()
    }

    /// A new session: its manager knows none of them.
    pub fn restart(&self) {
        for kept in self.tasks().values_mut() {
            kept.untold = kept.newest.len();
        }
    }

    /// The task is no longer the node's.
    pub fn forget(&self, task: &TaskId) {
        self.tasks().remove(task);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::samples::task_id;

    fn result(at: u64) -> CheckResult {
        CheckResult { at: Timestamp(at), took: Duration::ZERO, good: true, output: String::new() }
    }

    fn taken(results: &Results) -> Vec<(u64, Vec<u64>)> {
        let times = |results: Vec<CheckResult>| results.into_iter().map(|result| result.at.0).collect();
        results.take().into_iter().map(|(task, results)| (task.number, times(results))).collect()
    }

    #[test]
    fn results_are_told_once_to_each_manager() {
        let results = Results::default();
        assert_eq!(taken(&results), []);
        for at in 1..=7 {
            results.note(task_id(1), result(at));
        }
        results.note(task_id(2), result(8));
        assert_eq!(taken(&results), [(1, vec![3, 4, 5, 6, 7]), (2, vec![8])]);
        assert_eq!(taken(&results), []);
        results.note(task_id(1), result(9));
        assert_eq!(taken(&results), [(1, vec![9])]);
        results.forget(&task_id(2));
        results.restart();
        assert_eq!(taken(&results), [(1, vec![4, 5, 6, 7, 9])]);
    }

    #[test]
    fn tasks_have_seeds_of_their_own() {
        let seeds: std::collections::BTreeSet<u64> = (0..100).map(|number| seed(&task_id(number))).collect();
        assert_eq!(seeds.len(), 100);
    }
}
