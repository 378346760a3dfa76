//! Removes log entries covered by a snapshot in small steps.
//!
//! Removing all of them in one write would block other writes. An interruption is harmless: the compaction
//! after the next snapshot continues where this one ended.

use warren_log::SnapshotMeta;

use super::log_write::LogWrite;

/// Minimum entries per step: both engines remove them within a few milliseconds.
const MIN_STEP_ENTRIES: u64 = 200;
/// Plus this fraction of the remaining entries: larger steps keep up with writers that append more than
/// [`MIN_STEP_ENTRIES`] per write.
const STEP_DIVISOR: u64 = 200;

/// The remaining compaction.
#[derive(Debug)]
pub struct Compaction {
    snapshot: SnapshotMeta,
    up_to: u64,
}

impl Compaction {
    /// Records `snapshot` in the log and removes the entries up to `up_to`; 0: none.
    pub fn new(snapshot: SnapshotMeta, up_to: u64) -> Self {
        Self { snapshot, up_to }
    }

    /// The next write, for a log whose first entry is `first`, and the remaining compaction, if any.
    pub fn next_write(self, first: u64) -> (LogWrite, Option<Self>) {
        let removed = first.saturating_sub(1);
        let left = self.up_to.saturating_sub(removed);
        let up_to = self.up_to.min(removed + MIN_STEP_ENTRIES + left / STEP_DIVISOR);
        let write = LogWrite::Compact { snapshot: self.snapshot.clone(), up_to };
        (write, (up_to < self.up_to).then_some(self))
    }
}

#[cfg(test)]
mod tests {
    use warren_log::ConfState;

    use super::*;

    /// The first index of the log after each write.
    fn compact_steps(mut first: u64, up_to: u64) -> Vec<u64> {
        let snapshot = SnapshotMeta { index: 10_000, term: 1, conf_state: ConfState::of_voters(vec![1]) };
        let mut left = Some(Compaction::new(snapshot.clone(), up_to));
        let mut steps = Vec::new();
        while let Some(compaction) = left {
            let (write, rest) = compaction.next_write(first);
            let LogWrite::Compact { snapshot: recorded, up_to } = write else { panic!("{write:?}") };
            assert_eq!(recorded, snapshot, "the snapshot is recorded before anything is removed");
            first = first.max(up_to + 1);
            steps.push(first);
            left = rest;
        }
        steps
    }

    #[test]
    fn log_is_compacted_in_steps() {
        assert_eq!(compact_steps(1, 500), [203, 404, 501]);
        assert_eq!(compact_steps(1, 200), [201]);
        assert_eq!(compact_steps(2_001, 2_002), [2_003]);
        let many = compact_steps(1, 50_000);
        assert_eq!((many[0], many.last()), (451, Some(&50_001)), "a larger step while much is left");
        assert!(many.len() < 200, "{}", many.len());
        assert_eq!(compact_steps(1, 0), [1], "nothing is removed, but the snapshot is recorded");
        assert_eq!(compact_steps(501, 300), [501], "it is done already");
    }
}
