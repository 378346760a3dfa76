//! A bounded history of changed keys: a watcher that lags behind it must list again.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use tokio::sync::watch;
use warren_replica::ChangeBatch;

use super::{Store, StoreInner};

/// The newest changes.
pub(super) struct ChangeHistory {
    entries: VecDeque<ChangeBatch>,
    /// All changes after this index are in `entries`.
    complete_after: u64,
    /// Number of changes in `entries`, and its maximum.
    change_count: usize,
    max_changes: usize,
}

impl ChangeHistory {
    /// An empty history whose changes start after `index`. About `max` changes are kept.
    pub fn starting_after(index: u64, max: usize) -> Self {
        Self { entries: VecDeque::new(), complete_after: index, change_count: 0, max_changes: max }
    }

    /// Appends the next changes.
    pub fn add(&mut self, batches: Vec<ChangeBatch>) {
        for batch in batches {
            self.change_count += batch.changes.len();
            self.entries.push_back(batch);
        }
        while self.change_count > self.max_changes
            && let Some(oldest) = self.entries.pop_front()
        {
            self.change_count -= oldest.changes.len();
            self.complete_after = oldest.index;
        }
    }

    /// Drops the history up to `index`: watchers that have not seen it get a gap.
    pub fn reset_after(&mut self, index: u64) {
        *self = Self::starting_after(index, self.max_changes);
    }
}

/// The watcher missed more changes than the history holds: it must list again. The watch continues after this
/// index, which the current state contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("watch fell behind; list again and resume after index {0}")]
pub struct HistoryGap(pub u64);

impl Store {
    /// Watches all changes after `index`.
    pub fn watch(&self, index: u64) -> ChangeWatch {
        ChangeWatch { latest: self.inner.latest.subscribe(), shared: self.inner.clone(), last_seen: index }
    }
}

/// A position in the change stream.
pub struct ChangeWatch {
    shared: Arc<StoreInner>,
    latest: watch::Receiver<u64>,
    last_seen: u64,
}

impl ChangeWatch {
    /// Waits for changes after those already returned. An empty list means that only the role changed. Cancel
    /// safe.
    ///
    /// # Errors
    /// [`HistoryGap`] if the history does not reach back far enough.
    pub async fn next(&mut self) -> Result<Vec<ChangeBatch>, HistoryGap> {
        if *self.latest.borrow() <= self.last_seen {
            self.latest.changed().await.expect("the watch itself holds the sender");
        }
        // Marked as seen only here, so that a role change before the call is reported as well.
        let newest = *self.latest.borrow_and_update();
        if newest > self.last_seen { self.take_after(newest) } else { Ok(Vec::new()) }
    }

    fn take_after(&mut self, newest: u64) -> Result<Vec<ChangeBatch>, HistoryGap> {
        let history = self.shared.history.lock().unwrap_or_else(PoisonError::into_inner);
        let last_seen = std::mem::replace(&mut self.last_seen, newest);
        if last_seen < history.complete_after {
            return Err(HistoryGap(newest));
        }
        let start = history.entries.partition_point(|batch| batch.index <= last_seen);
        let batches = history.entries.iter().skip(start).take_while(|batch| batch.index <= newest);
        Ok(batches.cloned().collect())
    }
}
