//! The registry of background tasks: runs periodic tasks and queues, and records their state.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::panic_guard::{BoxError, catch_panic, error_chain};
use crate::record::{BackgroundTaskRecord, BackgroundTaskStatus};
use crate::runner::{QueueRunner, RunOutcome, RunnerSettings};
use crate::{Clock, RandomSource, Shutdown, WorkQueue};

/// The same error in consecutive runs of a task is logged once in this time: a task may run each second.
const REPEATED_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Runs background tasks and records their state. Clones share the registry.
///
/// A name that is registered again (a task of a session, a queue of a leader) continues its counters.
#[derive(Clone)]
pub struct BackgroundTasks {
    inner: Arc<Inner>,
}

struct Inner {
    shutdown: Shutdown,
    clock: Arc<dyn Clock>,
    random: RandomSource,
    records: Mutex<BTreeMap<&'static str, Arc<BackgroundTaskRecord>>>,
}

impl BackgroundTasks {
    /// A registry whose tasks end with `shutdown`. `chance` is the jitter for retries of failing keys.
    pub fn new(shutdown: Shutdown, clock: Arc<dyn Clock>, chance: RandomSource) -> Self {
        Self {
            inner: Arc::new(Inner { shutdown, clock, random: chance, records: Mutex::new(BTreeMap::new()) }),
        }
    }

    /// Runs `work` now, then `interval` after the end of each run or when triggered, until stopped. An error or panic
    /// is recorded and logged (the same one again after a minute), and does not prevent the next run. A run in progress
    /// at the stop completes: `work` must have its own deadlines.
    pub fn spawn<F, Fut, E>(
        &self,
        name: &'static str,
        interval: Duration,
        mut work: F,
    ) -> BackgroundTaskHandle
    where
        F: FnMut() -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let handle =
            BackgroundTaskHandle { woken: Arc::default(), stop: self.inner.shutdown.token().child_token() };
        let BackgroundTaskHandle { woken, stop } = handle.clone();
        let record = self.record(name);
        let enlisted = record.register_active(Some(interval));
        self.inner.shutdown.spawn(name, async move {
            let _enlisted = enlisted;
            let mut logged = None;
            while !stop.is_cancelled() {
                // The run that starts now covers all triggers up to here.
                let _ = woken.notified().now_or_never();
                run_once(name, &record, &mut work, &mut logged).await;
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = woken.notified() => {}
                    () = tokio::time::sleep(interval) => {}
                }
            }
        });
        handle
    }

    /// Processes `queue` until the process stops: calls `work` with each due key.
    pub fn spawn_queue<K, F, Fut>(
        &self,
        name: &'static str,
        queue: WorkQueue<K>,
        settings: RunnerSettings,
        work: F,
    ) where
        K: Ord + Clone + fmt::Debug + Send + 'static,
        F: Fn(K) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = RunOutcome> + Send + 'static,
    {
        let record = self.record(name);
        let enlisted = record.register_active(None);
        let chance = Arc::clone(&self.inner.random);
        let runner = QueueRunner { name, queue, settings, record, random: chance, backoffs: BTreeMap::new() };
        let stop = self.inner.shutdown.token();
        self.inner.shutdown.spawn(name, async move {
            let _enlisted = enlisted;
            runner.run(stop, work).await;
        });
    }

    /// Every background task that was ever registered, by name.
    pub fn snapshot(&self) -> Vec<BackgroundTaskStatus> {
        let records = self.inner.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.values().map(|record| record.status()).collect()
    }

    fn record(&self, name: &'static str) -> Arc<BackgroundTaskRecord> {
        let mut records = self.inner.records.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(BackgroundTaskRecord::new(name, None, Arc::clone(&self.inner.clock)));
        Arc::clone(records.entry(name).or_insert_with(new))
    }
}

impl fmt::Debug for BackgroundTasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.snapshot()).finish()
    }
}

/// Runs `work`. `logged` is the error that was logged last, and when; `None` after a success.
async fn run_once<F, Fut, E>(
    name: &'static str,
    record: &Arc<BackgroundTaskRecord>,
    work: &mut F,
    logged: &mut Option<(String, Instant)>,
) where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<(), E>>,
    E: Into<BoxError>,
{
    let run = record.begin();
    let result = match catch_panic(work).await {
        Ok(result) => result.map_err(|error| error_chain(error.into().as_ref())),
        Err(panic) => Err(panic),
    };
    *logged = match (&result, logged.take()) {
        (Ok(()), _) => None,
        (Err(error), Some((known, at))) if known == *error && at.elapsed() < REPEATED_LOG_INTERVAL => {
            Some((known, at))
        }
        (Err(error), _) => {
            tracing::warn!(name, error, "background task failed, will run again");
            Some((error.clone(), Instant::now()))
        }
    };
    run.finish(result);
}

/// Triggers or stops a background task. Dropping it does neither.
#[derive(Clone, Debug)]
pub struct BackgroundTaskHandle {
    woken: Arc<Notify>,
    stop: CancellationToken,
}

impl BackgroundTaskHandle {
    /// Triggers a run; during a run, another one after it. Triggers coalesce.
    pub fn wake(&self) {
        self.woken.notify_one();
    }

    /// Stops the background task after the run in progress.
    pub fn stop(&self) {
        self.stop.cancel();
    }
}

#[cfg(test)]
mod tests;
