//! The keyed work queue: who may wake a key, and the side that the runner takes keys from.

mod schedule;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use self::schedule::Schedule;

/// The queue holds as many keys as it may. Nothing was changed; the caller's next full sweep over the
/// state must wake this key again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the work queue is full: it holds {capacity} keys; the key waits for the next full sweep")]
pub struct QueueFull {
    /// Keys the queue may hold, waiting and running together.
    pub capacity: usize,
}

/// The end of the queue that a runner works off ([`crate::Loops::spawn_queue`]). There is one of it.
pub struct Queue<K> {
    shared: Arc<Shared<K>>,
}

/// The end of the queue that wakes keys. Clones wake the same queue.
///
/// Every accepted wake is followed by a run of that key which starts after the wake. Equal keys collapse
/// into one run, the earlier moment wins, and a key never runs twice at once.
pub struct QueueHandle<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    schedule: Mutex<Schedule<K, Instant>>,
    changed: Notify,
}

impl<K> Shared<K> {
    fn schedule(&self) -> MutexGuard<'_, Schedule<K, Instant>> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Ord + Clone> Queue<K> {
    /// An empty queue for at most `capacity` distinct keys.
    pub fn new(capacity: usize) -> Self {
        let schedule = Mutex::new(Schedule::new(capacity));
        Self { shared: Arc::new(Shared { schedule, changed: Notify::new() }) }
    }

    /// A handle to wake keys with.
    pub fn handle(&self) -> QueueHandle<K> {
        QueueHandle { shared: Arc::clone(&self.shared) }
    }

    pub(crate) fn take_due(&self) -> Option<K> {
        self.shared.schedule().take_due(Instant::now())
    }

    pub(crate) fn finish(&self, key: &K, again: Option<Instant>) {
        self.shared.schedule().finish(key, again);
    }

    /// Waits until a key may be due: its moment came, or a wake changed what is next. May return early.
    pub(crate) async fn due(&self) {
        // A wake between these two lines leaves a permit behind, so that it is never missed.
        let next = self.shared.schedule().next_due();
        let changed = self.shared.changed.notified();
        match next {
            None => changed.await,
            Some(next) => tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(next) => {}
            },
        }
    }
}

impl<K: Ord + Clone> QueueHandle<K> {
    /// Asks for a run of `key` as soon as possible.
    pub fn wake(&self, key: K) -> Result<(), QueueFull> {
        self.wake_at(key, Instant::now())
    }

    /// Asks for a run of `key` at `due`, or earlier if the key is already to run earlier.
    pub fn wake_at(&self, key: K, due: Instant) -> Result<(), QueueFull> {
        self.shared.schedule().wake_at(key, due)?;
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Keys that wait or run now.
    pub fn len(&self) -> usize {
        self.shared.schedule().len()
    }

    /// Whether nothing waits and nothing runs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K> Clone for QueueHandle<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<K> fmt::Debug for Queue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Queue")
    }
}

impl<K> fmt::Debug for QueueHandle<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QueueHandle")
    }
}
