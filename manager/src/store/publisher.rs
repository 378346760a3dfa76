//! The driver's end of the store: the only writer.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use warren_consensus::Peer;
use warren_core::{Applied, State};

use super::checkpoints::Checkpoints;
use super::outcomes::Verdict;
use super::{Batch, Published, Shared};

/// What was applied since the last publication.
#[derive(Default)]
pub struct News {
    /// What changed.
    pub batches: Vec<Batch>,
    /// What came of the commands; only needed when other managers may lead.
    pub verdicts: Vec<(Applied, Verdict)>,
    /// The state was replaced by a snapshot; the rest came after it.
    pub replaced: bool,
}

impl From<Vec<Batch>> for News {
    fn from(batches: Vec<Batch>) -> Self {
        Self { batches, ..Self::default() }
    }
}

/// Publishes what the driver applied. When it is dropped, nothing comes any more.
pub struct Publisher {
    shared: Arc<Shared>,
}

impl Publisher {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Notes that the driver goes round, whether there is anything to publish or not.
    pub fn went_round(&self) {
        self.shared.last_round.store(self.shared.now(), Ordering::Relaxed);
    }

    /// Notes that somebody leads, be it this manager.
    pub fn heard_leader(&self) {
        self.shared.leader_heard.store(self.shared.now(), Ordering::Relaxed);
    }

    /// Notes what the state is after an entry, if managers compare it there. To be told after each one.
    pub fn passed(&self, state: &State) {
        if Checkpoints::is_due(state.applied().index) {
            self.shared.checkpoints.lock().unwrap_or_else(PoisonError::into_inner).add(state.digest());
        }
    }

    /// What is known of the others from now on.
    pub fn know(&self, peers: Arc<[Peer]>) {
        *self.shared.peers.lock().unwrap_or_else(PoisonError::into_inner) = peers;
    }

    /// Makes `published` what readers see, and tells watchers what changed. Answers the state that was replaced, so
    /// that the caller can have it dropped elsewhere: freeing a large state takes longer than applying an entry.
    pub fn publish(&self, published: Published, news: impl Into<News>) -> Arc<Published> {
        let News { batches, verdicts, replaced } = news.into();
        let index = published.index;
        let old = self.shared.published.swap(Arc::new(published));
        {
            let mut history = self.shared.history.lock().unwrap_or_else(PoisonError::into_inner);
            if replaced {
                history.cut(index);
            } else {
                history.add(batches);
            }
        }
        if replaced {
            self.shared.checkpoints.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        {
            let mut outcomes = self.shared.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
            if replaced {
                outcomes.cut(index);
            } else if index > old.index {
                outcomes.add(index, verdicts);
            }
        }
        self.shared.newest.send_replace(index);
        old
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.shared.outcomes.lock().unwrap_or_else(PoisonError::into_inner).end();
    }
}
