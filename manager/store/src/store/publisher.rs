//! The driver's end of the store: the only writer.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use warren_consensus::PeerProgress;
use warren_core::State;
use warren_replica::{Publication, StateCheckpoints};

use super::{PublishedState, StoreInner};

/// Publishes what the driver applied. Dropping it ends all publications.
pub struct StatePublisher {
    shared: Arc<StoreInner>,
}

impl StatePublisher {
    pub(super) fn new(shared: Arc<StoreInner>) -> Self {
        Self { shared }
    }

    /// Records an iteration of the driver.
    pub fn record_turn(&self) {
        self.shared.last_turn.store(self.shared.now(), Ordering::Relaxed);
    }

    /// Records that a leader is known, possibly this manager.
    pub fn record_leader_seen(&self) {
        self.shared.last_leader_seen.store(self.shared.now(), Ordering::Relaxed);
    }

    /// Records the state digest if the state is at a checkpoint index. Must be called after each entry.
    pub fn record_checkpoint(&self, state: &State) {
        if StateCheckpoints::is_due(state.applied().index) {
            self.shared.checkpoints.lock().unwrap_or_else(PoisonError::into_inner).add(state.digest());
        }
    }

    /// Sets the leader's progress view of its peers.
    pub fn set_peers(&self, peers: Arc<[PeerProgress]>) {
        *self.shared.peers.lock().unwrap_or_else(PoisonError::into_inner) = peers;
    }

    /// Makes `published` visible to readers and notifies watchers. Returns the replaced state, so that the
    /// caller can drop it elsewhere: freeing a large state takes longer than applying an entry.
    pub fn publish(
        &self,
        published: PublishedState,
        publication: impl Into<Publication>,
    ) -> Arc<PublishedState> {
        let Publication { batches, events, results, is_replaced } = publication.into();
        let index = published.index;
        let clock = published.state.clock();
        let old = self.shared.published.swap(Arc::new(published));
        {
            let mut history = self.shared.history.lock().unwrap_or_else(PoisonError::into_inner);
            if is_replaced {
                history.reset_after(index);
            } else {
                history.add(batches);
            }
        }
        {
            let mut history = self.shared.events.lock().unwrap_or_else(PoisonError::into_inner);
            if is_replaced {
                history.reset_after(index, clock);
            } else {
                history.add(events, index);
            }
        }
        if is_replaced {
            self.shared.checkpoints.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        let answers = {
            let mut outcomes = self.shared.outcome_cache.lock().unwrap_or_else(PoisonError::into_inner);
            if is_replaced {
                outcomes.reset_after(index)
            } else if index > old.index {
                outcomes.add(index, results)
            } else {
                Vec::new()
            }
        };
        for (reply, answer) in answers {
            // The caller may have given up.
            let _ = reply.send(answer);
        }
        self.shared.latest.send_replace(index);
        old
    }
}

impl Drop for StatePublisher {
    fn drop(&mut self) {
        self.shared.outcome_cache.lock().unwrap_or_else(PoisonError::into_inner).end();
    }
}
