//! Which writes are on their way to the disk, and which messages wait for them.

use std::collections::VecDeque;

use crate::Message;

/// One step of the raft crate (a "Ready") whose end waits for the disk.
#[derive(Debug)]
pub(crate) struct Write {
    /// The step's number.
    pub number: u64,
    /// Whether a [`crate::Persist`] was asked for; if not, it only waits for those before it.
    pub asked: bool,
    /// Whether it changes the term or the vote.
    pub votes: bool,
    /// The index of the snapshot it installs.
    pub snapshot: Option<u64>,
    /// What may be sent once it is durable.
    pub messages: Vec<Message>,
}

/// The steps that wait, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    waiting: VecDeque<Write>,
    last_asked: u64,
}

impl Writes {
    /// Adds a step; or gives it back, if there is nothing to wait for.
    pub fn begin(&mut self, write: Write) -> Option<Write> {
        if write.asked {
            self.last_asked = write.number;
        } else if self.waiting.is_empty() {
            return Some(write);
        }
        self.waiting.push_back(write);
        None
    }

    /// Whether a change of term or vote is not durable yet. Until it is, a member must not act
    /// in the new term towards others: after a crash it could act differently in the same term.
    pub fn vote_waits(&self) -> bool {
        self.waiting.iter().any(|write| write.votes)
    }

    /// The write `number` and those before it are durable: the steps that waited, in order. None
    /// if that was reported before.
    ///
    /// # Panics
    /// If no such write was asked for.
    pub fn finish(&mut self, number: u64) -> Vec<Write> {
        assert!(number <= self.last_asked, "write {number} was reported before it was asked for");
        let still = self.waiting.iter().position(|write| write.asked && write.number > number);
        self.waiting.drain(..still.unwrap_or(self.waiting.len())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(number: u64, asked: bool) -> Write {
        Write { number, asked, votes: false, snapshot: None, messages: Vec::new() }
    }

    fn numbers(writes: Vec<Write>) -> Vec<u64> {
        writes.iter().map(|write| write.number).collect()
    }

    #[test]
    fn steps_finish_in_order_and_take_along_what_needs_no_write() {
        let mut writes = Writes::default();
        assert_eq!(writes.begin(write(1, false)).map(|write| write.number), Some(1));
        for (number, asked) in [(2, true), (3, false), (4, true), (5, false), (6, true)] {
            assert!(writes.begin(write(number, asked)).is_none());
        }
        assert_eq!(numbers(writes.finish(2)), [2, 3]);
        assert_eq!(numbers(writes.finish(2)), [0; 0]);
        assert_eq!(numbers(writes.finish(6)), [4, 5, 6]);
        assert_eq!(numbers(writes.finish(4)), [0; 0]);
    }

    #[test]
    #[should_panic(expected = "before it was asked for")]
    fn a_write_nobody_asked_for_cannot_be_done() {
        let mut writes = Writes::default();
        writes.begin(write(1, true));
        writes.finish(2);
    }
}
