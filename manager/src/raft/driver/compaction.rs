//! Removing the entries that a snapshot covers, a few at a time.
//!
//! All of them in one write would keep everybody waiting who wants to write meanwhile. Nothing is lost when the manager
//! ends in between: the next snapshot's compaction begins where this one ended.

use warren_log::SnapshotMeta;

use super::keeper::Write;

/// Entries that one write removes at least: both engines do it within a millisecond or few.
const STEP: u64 = 200;
/// And of those beyond, one in so many: the more are left, the larger the step, so that writers who add more than
/// [`STEP`] with each write do not outrun it.
const SHARE: u64 = 200;

/// What is still to be removed.
#[derive(Debug)]
pub struct Compaction {
    snapshot: SnapshotMeta,
    up_to: u64,
}

impl Compaction {
    /// Records `snapshot` in the log, and removes the entries up to `up_to`; 0 for none.
    pub fn new(snapshot: SnapshotMeta, up_to: u64) -> Self {
        Self { snapshot, up_to }
    }

    /// The next write, for a log whose first entry is `first`; and what is left after it, if anything is.
    pub fn next(self, first: u64) -> (Write, Option<Self>) {
        let removed = first.saturating_sub(1);
        let left = self.up_to.saturating_sub(removed);
        let up_to = self.up_to.min(removed + STEP + left / SHARE);
        let write = Write::Compact { snapshot: self.snapshot.clone(), up_to };
        (write, (up_to < self.up_to).then_some(self))
    }
}

#[cfg(test)]
mod tests {
    use warren_log::ConfState;

    use super::*;

    /// Where the log begins after each write.
    fn steps(mut first: u64, up_to: u64) -> Vec<u64> {
        let snapshot = SnapshotMeta { index: 10_000, term: 1, conf_state: ConfState::of_voters(vec![1]) };
        let mut left = Some(Compaction::new(snapshot.clone(), up_to));
        let mut steps = Vec::new();
        while let Some(compaction) = left {
            let (write, rest) = compaction.next(first);
            let Write::Compact { snapshot: recorded, up_to } = write else { panic!("{write:?}") };
            assert_eq!(recorded, snapshot, "the snapshot is recorded before anything is removed");
            first = first.max(up_to + 1);
            steps.push(first);
            left = rest;
        }
        steps
    }

    #[test]
    fn the_log_is_cut_in_steps_and_to_the_end() {
        assert_eq!(steps(1, 500), [203, 404, 501]);
        assert_eq!(steps(1, 200), [201]);
        assert_eq!(steps(2_001, 2_002), [2_003]);
        let many = steps(1, 50_000);
        assert_eq!((many[0], many.last()), (451, Some(&50_001)), "a larger step while much is left");
        assert!(many.len() < 200, "{}", many.len());
        assert_eq!(steps(1, 0), [1], "nothing is removed, but the snapshot is recorded");
        assert_eq!(steps(501, 300), [501], "it is done already");
    }
}
