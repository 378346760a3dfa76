//! Processes a queue: runs keys concurrently up to a limit, and repeats those that request it or fail.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::panic_guard::{BoxError, catch_panic, error_chain};
use crate::record::BackgroundTaskRecord;
use crate::{Backoff, RandomSource, WorkQueue};

/// Result of the run of a key.
#[derive(Debug)]
pub enum RunOutcome {
    /// Done until the key is added again.
    Done,
    /// Repeat after this delay, or when the key is added.
    RequeueAfter(Duration),
    /// Repeat after this delay, and not earlier, even if the key is added.
    PauseFor(Duration),
    /// Failed: repeat after a backoff, or when the key is added.
    Failed(BoxError),
}

impl<E: Into<BoxError>> From<Result<(), E>> for RunOutcome {
    fn from(result: Result<(), E>) -> Self {
        result.map_or_else(|error| RunOutcome::Failed(error.into()), |()| RunOutcome::Done)
    }
}

/// Limits of a runner.
#[derive(Clone, Copy, Debug)]
pub struct RunnerSettings {
    /// Maximum number of concurrent runs; at least one.
    pub concurrency: usize,
    /// Deadline of a run: a longer one is dropped and counts as failed.
    pub deadline: Duration,
    /// Delay after the first failure of a key; doubles with each further one.
    pub first_retry: Duration,
    /// Maximum delay between two runs of a failing key.
    pub max_retry: Duration,
}

impl Default for RunnerSettings {
    /// Limits for reconcilers: few concurrent runs, retries within seconds.
    fn default() -> Self {
        Self {
            concurrency: 4,
            deadline: Duration::from_secs(60),
            first_retry: Duration::from_millis(200),
            max_retry: Duration::from_secs(30),
        }
    }
}

pub(crate) struct QueueRunner<K> {
    pub(crate) name: &'static str,
    pub(crate) queue: WorkQueue<K>,
    pub(crate) settings: RunnerSettings,
    pub(crate) record: Arc<BackgroundTaskRecord>,
    pub(crate) random: RandomSource,
    /// Keys whose last run failed. Bounded by the queue, since each waits in it.
    pub(crate) backoffs: BTreeMap<K, Backoff>,
}

impl<K: Ord + Clone + fmt::Debug + Send + 'static> QueueRunner<K> {
    /// Runs due keys until `stop`, then waits for the runs in progress.
    pub(crate) async fn run<F, Fut>(mut self, stop: CancellationToken, work: F)
    where
        F: Fn(K) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = RunOutcome> + Send + 'static,
    {
        let work = Arc::new(work);
        let places = self.settings.concurrency.max(1);
        let mut runs = JoinSet::new();
        while !stop.is_cancelled() {
            while runs.len() < places
                && let Some(key) = self.queue.take_due()
            {
                runs.spawn(run_once(
                    key,
                    Arc::clone(&work),
                    self.settings.deadline,
                    Arc::clone(&self.record),
                ));
            }
            let has_place = runs.len() < places;
            tokio::select! {
                () = stop.cancelled() => {}
                Some(ended) = runs.join_next() => {
                    let (key, outcome) = ended.expect("a run contains its panics and is not aborted");
                    self.settle(key, outcome);
                }
                () = self.queue.wait_due(), if has_place => {}
            }
        }
        while runs.join_next().await.is_some() {}
    }

    fn settle(&mut self, key: K, outcome: RunOutcome) {
        let after = match outcome {
            RunOutcome::Done => None,
            RunOutcome::RequeueAfter(after) => Some(after),
            RunOutcome::PauseFor(pause) => {
                self.backoffs.remove(&key);
                self.queue.finish_paused(&key, Instant::now() + pause);
                return;
            }
            RunOutcome::Failed(error) => {
                let RunnerSettings { first_retry, max_retry: longest_retry, .. } = self.settings;
                let backoff =
                    self.backoffs.entry(key.clone()).or_insert(Backoff::new(first_retry, longest_retry));
                let delay = backoff.next_delay((self.random)());
                let (failures, error) = (backoff.failures(), error_chain(error.as_ref()));
                tracing::warn!(
                    queue = self.name,
                    ?key,
                    failures,
                    ?delay,
                    error,
                    "run failed, will be retried"
                );
                self.queue.finish(&key, Some(Instant::now() + delay));
                return;
            }
        };
        self.backoffs.remove(&key);
        self.queue.finish(&key, after.map(|after| Instant::now() + after));
    }
}

#[derive(Debug, thiserror::Error)]
enum KeyRunError {
    #[error("the run took longer than its deadline of {0:?} and was dropped")]
    TooLong(Duration),
    #[error("{0}")]
    Panicked(String),
}

async fn run_once<K, F, Fut>(
    key: K,
    work: Arc<F>,
    deadline: Duration,
    record: Arc<BackgroundTaskRecord>,
) -> (K, RunOutcome)
where
    K: Clone,
    F: Fn(K) -> Fut,
    Fut: Future<Output = RunOutcome>,
{
    let run = record.begin();
    let subject = key.clone();
    let outcome = match tokio::time::timeout(deadline, catch_panic(move || work(subject))).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => RunOutcome::Failed(KeyRunError::Panicked(panic).into()),
        Err(_) => RunOutcome::Failed(KeyRunError::TooLong(deadline).into()),
    };
    run.finish(match &outcome {
        RunOutcome::Failed(error) => Err(error_chain(error.as_ref())),
        RunOutcome::Done | RunOutcome::RequeueAfter(_) | RunOutcome::PauseFor(_) => Ok(()),
    });
    (key, outcome)
}

#[cfg(test)]
mod tests;
