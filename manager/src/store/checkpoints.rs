//! What the state was after some entries: managers pass the same ones, each at its own time, so that their states can
//! be compared although they are written to without a pause.

use std::collections::VecDeque;

use warren_core::Digest;

/// A checkpoint is after each so many entries.
const EVERY: u64 = 1024;
/// So many of them are kept: a manager may be that far behind another one.
const KEPT: usize = 16;

/// The newest checkpoints, in order.
#[derive(Debug, Default)]
pub(super) struct Checkpoints(VecDeque<Digest>);

impl Checkpoints {
    /// Whether there is one after this entry.
    pub fn is_due(index: u64) -> bool {
        index.is_multiple_of(EVERY)
    }

    /// The newest one.
    pub fn add(&mut self, digest: Digest) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(digest);
    }

    /// The state was replaced by another manager's.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// In order.
    pub fn all(&self) -> Vec<Digest> {
        self.0.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept() {
        let mut checkpoints = Checkpoints::default();
        let digest = |index| Digest { index, value: index + 1 };
        for index in (0..=20 * EVERY).filter(|index| Checkpoints::is_due(*index)) {
            checkpoints.add(digest(index));
        }
        let wanted: Vec<_> = (5..=20).map(|number| digest(number * EVERY)).collect();
        assert_eq!(checkpoints.all(), wanted);
        checkpoints.clear();
        assert_eq!(checkpoints.all(), []);
    }
}
