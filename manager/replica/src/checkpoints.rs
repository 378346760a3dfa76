//! State digests at fixed indexes: every manager records the same indexes, each at its own time, so that the
//! states can be compared while writes continue.

use std::collections::VecDeque;

use warren_core::StateDigest;

/// Number of entries between two checkpoints.
const CHECKPOINT_INTERVAL: u64 = 1024;
/// Number of checkpoints kept; the maximum lag at which two managers can be compared.
const MAX_CHECKPOINTS: usize = 16;

/// The newest checkpoints, in order.
#[derive(Debug, Default)]
pub struct StateCheckpoints(VecDeque<StateDigest>);

impl StateCheckpoints {
    /// Whether a checkpoint is due at this index.
    pub fn is_due(index: u64) -> bool {
        index.is_multiple_of(CHECKPOINT_INTERVAL)
    }

    /// Adds the newest checkpoint.
    pub fn add(&mut self, digest: StateDigest) {
        if self.0.len() == MAX_CHECKPOINTS {
            self.0.pop_front();
        }
        self.0.push_back(digest);
    }

    /// Drops all checkpoints after a snapshot replaced the state.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// All checkpoints, in order.
    pub fn all(&self) -> Vec<StateDigest> {
        self.0.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latest_checkpoints_are_kept() {
        let mut checkpoints = StateCheckpoints::default();
        let digest = |index| StateDigest { index, value: index + 1 };
        for index in (0..=20 * CHECKPOINT_INTERVAL).filter(|index| StateCheckpoints::is_due(*index)) {
            checkpoints.add(digest(index));
        }
        let expected: Vec<_> = (5..=20).map(|number| digest(number * CHECKPOINT_INTERVAL)).collect();
        assert_eq!(checkpoints.all(), expected);
        checkpoints.clear();
        assert_eq!(checkpoints.all(), []);
    }
}
