//! Writes in progress, and the messages that wait for them.

use std::collections::VecDeque;

use crate::Message;

/// One `Ready` of the raft crate whose completion waits for the disk.
#[derive(Debug)]
pub(crate) struct PendingWrite {
    /// The number of the `Ready`.
    pub number: u64,
    /// Whether it has a [`crate::DurableWrite`] of its own; if not, it only waits for those before it.
    pub needs_persist: bool,
    /// Whether it changes the term or the vote.
    pub changes_vote: bool,
    /// The index of the snapshot it installs.
    pub snapshot: Option<u64>,
    /// Messages that may be sent once it is durable.
    pub messages: Vec<Message>,
}

/// The writes in progress, oldest first.
#[derive(Debug, Default)]
pub(crate) struct PendingWrites {
    queue: VecDeque<PendingWrite>,
    last_requested: u64,
}

impl PendingWrites {
    /// Adds a write, or returns it if there is nothing to wait for.
    pub fn push(&mut self, write: PendingWrite) -> Option<PendingWrite> {
        if write.needs_persist {
            self.last_requested = write.number;
        } else if self.queue.is_empty() {
            return Some(write);
        }
        self.queue.push_back(write);
        None
    }

    /// Whether a change of term or vote is not durable yet. Until it is, a member must not act towards others
    /// in the new term: after a crash it could act differently in the same term.
    pub fn has_unpersisted_vote(&self) -> bool {
        self.queue.iter().any(|write| write.changes_vote)
    }

    /// The write `number` and all before it are durable: returns those that waited, in order. Empty if that
    /// was reported before.
    ///
    /// # Panics
    /// If the write was never requested.
    pub fn complete(&mut self, number: u64) -> Vec<PendingWrite> {
        assert!(number <= self.last_requested, "write {number} was reported before it was requested");
        let still = self.queue.iter().position(|write| write.needs_persist && write.number > number);
        self.queue.drain(..still.unwrap_or(self.queue.len())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(number: u64, asked: bool) -> PendingWrite {
        PendingWrite {
            number,
            needs_persist: asked,
            changes_vote: false,
            snapshot: None,
            messages: Vec::new(),
        }
    }

    fn numbers(writes: Vec<PendingWrite>) -> Vec<u64> {
        writes.iter().map(|write| write.number).collect()
    }

    #[test]
    fn writes_complete_in_order() {
        let mut writes = PendingWrites::default();
        assert_eq!(writes.push(write(1, false)).map(|write| write.number), Some(1));
        for (number, asked) in [(2, true), (3, false), (4, true), (5, false), (6, true)] {
            assert!(writes.push(write(number, asked)).is_none());
        }
        assert_eq!(numbers(writes.complete(2)), [2, 3]);
        assert_eq!(numbers(writes.complete(2)), [0; 0]);
        assert_eq!(numbers(writes.complete(6)), [4, 5, 6]);
        assert_eq!(numbers(writes.complete(4)), [0; 0]);
    }

    #[test]
    #[should_panic(expected = "before it was requested")]
    fn completing_unrequested_write_panics() {
        let mut writes = PendingWrites::default();
        writes.push(write(1, true));
        writes.complete(2);
    }
}
