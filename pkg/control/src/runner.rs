//! Works off a queue: runs keys side by side up to a limit, and looks again at those that ask or fail.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::attempt::{BoxError, chain_of, contained};
use crate::loops::Record;
use crate::{Backoff, Chance, Queue};

/// How the run of one key ended.
#[derive(Debug)]
pub enum Outcome {
    /// Nothing more to do until the key is woken.
    Done,
    /// Look again after this long, or when the key is woken.
    RecheckAfter(Duration),
    /// It did not work: again after a back-off, or when the key is woken.
    Failed(BoxError),
}

impl<E: Into<BoxError>> From<Result<(), E>> for Outcome {
    fn from(result: Result<(), E>) -> Self {
        result.map_or_else(|error| Outcome::Failed(error.into()), |()| Outcome::Done)
    }
}

/// The bounds a runner keeps.
#[derive(Clone, Copy, Debug)]
pub struct RunnerSettings {
    /// How many keys run at once; at least one.
    pub concurrency: usize,
    /// A run that takes longer is dropped and counts as failed, so that it cannot hold its place forever.
    pub deadline: Duration,
    /// The wait after a key's first failure; it doubles with each further one.
    pub first_retry: Duration,
    /// The longest wait between two tries of a failing key.
    pub longest_retry: Duration,
}

impl Default for RunnerSettings {
    /// For keys whose run is a decision and a write: a few at once, retried within seconds.
    fn default() -> Self {
        Self {
            concurrency: 4,
            deadline: Duration::from_secs(60),
            first_retry: Duration::from_millis(200),
            longest_retry: Duration::from_secs(30),
        }
    }
}

pub(crate) struct Runner<K> {
    pub(crate) name: &'static str,
    pub(crate) queue: Queue<K>,
    pub(crate) settings: RunnerSettings,
    pub(crate) record: Arc<Record>,
    pub(crate) chance: Chance,
    /// Keys whose last run failed. Bounded by the queue, since each of them waits in it.
    pub(crate) failing: BTreeMap<K, Backoff>,
}

impl<K: Ord + Clone + fmt::Debug + Send + 'static> Runner<K> {
    /// Runs due keys until `stop`, then starts none and lets those that run come to their end.
    pub(crate) async fn run<F, Fut>(mut self, stop: CancellationToken, work: F)
    where
        F: Fn(K) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        let work = Arc::new(work);
        let places = self.settings.concurrency.max(1);
        let mut runs = JoinSet::new();
        while !stop.is_cancelled() {
            while runs.len() < places
                && let Some(key) = self.queue.take_due()
            {
                runs.spawn(one_run(key, Arc::clone(&work), self.settings.deadline, Arc::clone(&self.record)));
            }
            let has_place = runs.len() < places;
            tokio::select! {
                () = stop.cancelled() => {}
                Some(ended) = runs.join_next() => {
                    let (key, outcome) = ended.expect("a run contains its panics and is not aborted");
                    self.settle(key, outcome);
                }
                () = self.queue.due(), if has_place => {}
            }
        }
        while runs.join_next().await.is_some() {}
    }

    fn settle(&mut self, key: K, outcome: Outcome) {
        let after = match outcome {
            Outcome::Done => None,
            Outcome::RecheckAfter(after) => Some(after),
            Outcome::Failed(error) => {
                let RunnerSettings { first_retry, longest_retry, .. } = self.settings;
                let backoff =
                    self.failing.entry(key.clone()).or_insert(Backoff::new(first_retry, longest_retry));
                let delay = backoff.next_delay((self.chance)());
                let (failures, error) = (backoff.failures(), chain_of(error.as_ref()));
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
        self.failing.remove(&key);
        self.queue.finish(&key, after.map(|after| Instant::now() + after));
    }
}

#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("the run took longer than its deadline of {0:?} and was dropped")]
    TooLong(Duration),
    #[error("{0}")]
    Panicked(String),
}

async fn one_run<K, F, Fut>(key: K, work: Arc<F>, deadline: Duration, record: Arc<Record>) -> (K, Outcome)
where
    K: Clone,
    F: Fn(K) -> Fut,
    Fut: Future<Output = Outcome>,
{
    let run = record.begin();
    let subject = key.clone();
    let outcome = match tokio::time::timeout(deadline, contained(move || work(subject))).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => Outcome::Failed(RunError::Panicked(panic).into()),
        Err(_) => Outcome::Failed(RunError::TooLong(deadline).into()),
    };
    run.finish(match &outcome {
        Outcome::Failed(error) => Err(chain_of(error.as_ref())),
        Outcome::Done | Outcome::RecheckAfter(_) => Ok(()),
    });
    (key, outcome)
}

#[cfg(test)]
mod tests;
