//! The registry of everything periodic: it runs loops and queues, and shows what each of them does.

mod record;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub(crate) use self::record::Record;
pub use self::record::{Failure, LoopState, LoopStatus};
use crate::attempt::{BoxError, chain_of, contained};
use crate::runner::{Outcome, Runner, RunnerSettings};
use crate::{Chance, Clock, Queue, Shutdown};

/// Starts loops and knows them all. Clones are the same registry.
///
/// A name that is registered again (a loop of a session, a queue of a leader) continues its counters.
#[derive(Clone)]
pub struct Loops {
    inner: Arc<Inner>,
}

struct Inner {
    shutdown: Shutdown,
    clock: Arc<dyn Clock>,
    chance: Chance,
    records: Mutex<BTreeMap<&'static str, Arc<Record>>>,
}

impl Loops {
    /// A registry whose loops end with `shutdown`. `chance` spreads the retries of failing keys.
    pub fn new(shutdown: Shutdown, clock: Arc<dyn Clock>, chance: Chance) -> Self {
        Self { inner: Arc::new(Inner { shutdown, clock, chance, records: Mutex::new(BTreeMap::new()) }) }
    }

    /// Runs `work` now, then again `interval` after each run's end or when woken, until it is stopped. An
    /// error or panic is recorded and logged, and the next run takes place all the same. A run under way
    /// when the loop is stopped comes to its end: `work` must have deadlines of its own.
    pub fn spawn<F, Fut, E>(&self, name: &'static str, interval: Duration, mut work: F) -> LoopHandle
    where
        F: FnMut() -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let handle = LoopHandle { woken: Arc::default(), stop: self.inner.shutdown.token().child_token() };
        let LoopHandle { woken, stop } = handle.clone();
        let record = self.record(name);
        let enlisted = record.enlist(Some(interval));
        self.inner.shutdown.spawn(name, async move {
            let _enlisted = enlisted;
            while !stop.is_cancelled() {
                // Wakes up to here are all answered by the run that starts now.
                let _ = woken.notified().now_or_never();
                one_pass(name, &record, &mut work).await;
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = woken.notified() => {}
                    () = tokio::time::sleep(interval) => {}
                }
            }
        });
        handle
    }

    /// Works off `queue` until the process stops: `work` is called with each key that is due.
    pub fn spawn_queue<K, F, Fut>(
        &self,
        name: &'static str,
        queue: Queue<K>,
        settings: RunnerSettings,
        work: F,
    ) where
        K: Ord + Clone + fmt::Debug + Send + 'static,
        F: Fn(K) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Outcome> + Send + 'static,
    {
        let record = self.record(name);
        let enlisted = record.enlist(None);
        let chance = Arc::clone(&self.inner.chance);
        let runner = Runner { name, queue, settings, record, chance, failing: BTreeMap::new() };
        let stop = self.inner.shutdown.token();
        self.inner.shutdown.spawn(name, async move {
            let _enlisted = enlisted;
            runner.run(stop, work).await;
        });
    }

    /// Every loop that ever registered here, by name.
    pub fn snapshot(&self) -> Vec<LoopStatus> {
        let records = self.inner.records.lock().unwrap_or_else(PoisonError::into_inner);
        records.values().map(|record| record.status()).collect()
    }

    fn record(&self, name: &'static str) -> Arc<Record> {
        let mut records = self.inner.records.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Record::new(name, None, Arc::clone(&self.inner.clock)));
        Arc::clone(records.entry(name).or_insert_with(new))
    }
}

impl fmt::Debug for Loops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.snapshot()).finish()
    }
}

async fn one_pass<F, Fut, E>(name: &'static str, record: &Arc<Record>, work: &mut F)
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<(), E>>,
    E: Into<BoxError>,
{
    let run = record.begin();
    let result = match contained(work).await {
        Ok(result) => result.map_err(|error| chain_of(error.into().as_ref())),
        Err(panic) => Err(panic),
    };
    if let Err(error) = &result {
        tracing::warn!(name, error, "loop failed, will run again");
    }
    run.finish(result);
}

/// Wakes or stops one loop. Dropping it does neither.
#[derive(Clone, Debug)]
pub struct LoopHandle {
    woken: Arc<Notify>,
    stop: CancellationToken,
}

impl LoopHandle {
    /// Asks for a run as soon as possible; while one is under way, for another after it. Wakes collapse.
    pub fn wake(&self) {
        self.woken.notify_one();
    }

    /// Lets a run under way finish, then ends the loop.
    pub fn stop(&self) {
        self.stop.cancel();
    }
}

#[cfg(test)]
mod tests;
