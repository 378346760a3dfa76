//! The keyed work queue: the sender side, and the receiver side of the runner.

pub(crate) mod schedule;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use self::schedule::KeySchedule;

/// The queue is full and unchanged; the next full resync of the caller must add this key again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the work queue is full: it holds {capacity} keys; the key is retried at the next full resync")]
pub struct WorkQueueFull {
    /// Maximum number of keys, waiting and running.
    pub capacity: usize,
}

/// The receiver side, which a runner processes ([`crate::BackgroundTasks::spawn_queue`]). There is one.
pub struct WorkQueue<K> {
    shared: Arc<Shared<K>>,
}

/// The sender side. Clones share the queue.
///
/// Each accepted key runs at least once after it was added. Equal keys coalesce into one run, the earlier time wins,
/// and a key never runs concurrently with itself.
pub struct WorkQueueHandle<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    schedule: Mutex<KeySchedule<K, Instant>>,
    changed: Notify,
}

impl<K> Shared<K> {
    fn schedule(&self) -> MutexGuard<'_, KeySchedule<K, Instant>> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Ord + Clone> WorkQueue<K> {
    /// An empty queue for at most `capacity` distinct keys.
    pub fn new(capacity: usize) -> Self {
        let schedule = Mutex::new(KeySchedule::new(capacity));
        Self { shared: Arc::new(Shared { schedule, changed: Notify::new() }) }
    }

    /// A sender.
    pub fn handle(&self) -> WorkQueueHandle<K> {
        WorkQueueHandle { shared: Arc::clone(&self.shared) }
    }

    pub(crate) fn take_due(&self) -> Option<K> {
        self.shared.schedule().take_due(Instant::now())
    }

    pub(crate) fn finish(&self, key: &K, again: Option<Instant>) {
        self.shared.schedule().finish(key, again);
    }

    pub(crate) fn finish_paused(&self, key: &K, until: Instant) {
        self.shared.schedule().finish_paused(key, until);
    }

    /// Waits until a key may be due. May return early.
    pub(crate) async fn wait_due(&self) {
        // A notification between these two lines stores a permit, so that it is never missed.
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

impl<K: Ord + Clone> WorkQueueHandle<K> {
    /// Schedules a run of `key` as soon as possible.
    pub fn wake(&self, key: K) -> Result<(), WorkQueueFull> {
        self.wake_at(key, Instant::now())
    }

    /// Schedules a run of `key` at `due`, or keeps an earlier one.
    pub fn wake_at(&self, key: K, due: Instant) -> Result<(), WorkQueueFull> {
        self.shared.schedule().wake_at(key, due)?;
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Number of waiting and running keys.
    pub fn len(&self) -> usize {
        self.shared.schedule().len()
    }

    /// Whether no key waits or runs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K> Clone for WorkQueueHandle<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<K> fmt::Debug for WorkQueue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Queue")
    }
}

impl<K> fmt::Debug for WorkQueueHandle<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QueueHandle")
    }
}
