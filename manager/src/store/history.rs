//! What changed, as keys in a bounded history: a watcher that fell behind is told to list again.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};

use tokio::sync::watch;
use warren_core::Change;

use super::{Shared, Store};

/// The newest changes.
pub(super) struct History {
    entries: VecDeque<Batch>,
    /// Everything after this index is in `entries`.
    complete_after: u64,
    /// Changes in `entries`, and most of them that are kept.
    changes: usize,
    most: usize,
}

impl History {
    /// Nothing yet; what comes begins after `index`. About `most` changes are kept.
    pub fn after(index: u64, most: usize) -> Self {
        Self { entries: VecDeque::new(), complete_after: index, changes: 0, most }
    }

    /// Adds what came next.
    pub fn add(&mut self, batches: Vec<Batch>) {
        for batch in batches {
            self.changes += batch.changes.len();
            self.entries.push_back(batch);
        }
        while self.changes > self.most
            && let Some(oldest) = self.entries.pop_front()
        {
            self.changes -= oldest.changes.len();
            self.complete_after = oldest.index;
        }
    }

    /// What changed up to `index` is not known: whoever has not seen that has missed something.
    pub fn cut(&mut self, index: u64) {
        *self = Self::after(index, self.most);
    }
}

/// What one applied entry changed.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Raft index of the entry.
    pub index: u64,
    /// Keys of what it changed.
    pub changes: Arc<[Change]>,
}

/// The watcher missed more than the history holds: it must list again. The watch goes on after this index, which
/// the state that is read now contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many changes were missed; the watch goes on after index {0}")]
pub struct Missed(pub u64);

impl Store {
    /// Watches everything that is applied after `index`.
    pub fn watch(&self, index: u64) -> Watch {
        Watch { newest: self.shared.newest.subscribe(), shared: self.shared.clone(), seen: index }
    }
}

/// A place in the stream of changes.
pub struct Watch {
    shared: Arc<Shared>,
    newest: watch::Receiver<u64>,
    seen: u64,
}

impl Watch {
    /// Waits for entries after those already given out. An empty list means only that the role changed. Dropping
    /// the future loses nothing.
    ///
    /// # Errors
    /// [`Missed`] when the history no longer reaches back.
    pub async fn next(&mut self) -> Result<Vec<Batch>, Missed> {
        if *self.newest.borrow() <= self.seen {
            self.newest.changed().await.expect("the watch itself holds the sending end");
        }
        // Marked as seen only now, so that a change of role that came before the call is told as well.
        let newest = *self.newest.borrow_and_update();
        if newest > self.seen { self.take(newest) } else { Ok(Vec::new()) }
    }

    fn take(&mut self, newest: u64) -> Result<Vec<Batch>, Missed> {
        let history = self.shared.history.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = std::mem::replace(&mut self.seen, newest);
        if seen < history.complete_after {
            return Err(Missed(newest));
        }
        let start = history.entries.partition_point(|batch| batch.index <= seen);
        let news = history.entries.iter().skip(start).take_while(|batch| batch.index <= newest);
        Ok(news.cloned().collect())
    }
}
