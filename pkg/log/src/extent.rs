//! The index range of a log, and the operations it permits. Pure; shared by all engines.

use crate::{Error, Result, SnapshotMeta, WriteBatch};

/// Index range of a log. An empty log has `last + 1 == first`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogExtent {
    /// Index of the latest snapshot, 0 for none.
    pub snapshot: u64,
    /// Index of the first stored entry, or of the next entry if empty.
    pub first: u64,
    /// Index of the last stored entry, or the one before `first` if empty.
    pub last: u64,
}

impl LogExtent {
    /// The extent of an empty log after a snapshot; 0 for none.
    pub fn empty(snapshot: u64) -> Self {
        Self { snapshot, first: snapshot + 1, last: snapshot }
    }

    /// The extent after `batch`.
    pub fn append(self, batch: &WriteBatch) -> Result<Self> {
        let mut after = self;
        if let Some(snapshot) = &batch.snapshot {
            self.check_not_behind(snapshot)?;
            after = Self::empty(snapshot.index);
        }
        let Some(head) = batch.entries.first() else { return Ok(after) };
        let lowest = after.first.max(after.snapshot + 1);
        if head.index < lowest {
            return Err(Error::Compacted { first: lowest, found: head.index });
        }
        if head.index > after.last + 1 {
            return Err(Error::Gap { expected: after.last + 1, found: head.index });
        }
        for (expected, entry) in (head.index..).zip(&batch.entries) {
            if entry.index != expected {
                return Err(Error::Gap { expected, found: entry.index });
            }
        }
        after.last = head.index + batch.entries.len() as u64 - 1;
        Ok(after)
    }

    /// The extent after recording a snapshot of the member's own state.
    pub fn set_snapshot(self, snapshot: &SnapshotMeta) -> Result<Self> {
        self.check_not_behind(snapshot)?;
        if snapshot.index > self.last {
            return Err(Error::SnapshotAhead { last: self.last, found: snapshot.index });
        }
        Ok(Self { snapshot: snapshot.index, ..self })
    }

    /// The extent after removing the entries up to and including `up_to`.
    pub fn compact(self, up_to: u64) -> Result<Self> {
        if up_to > self.snapshot {
            return Err(Error::NotCovered { covered: self.snapshot, up_to });
        }
        Ok(Self { first: self.first.max(up_to + 1), ..self })
    }

    fn check_not_behind(self, snapshot: &SnapshotMeta) -> Result<()> {
        if snapshot.index < self.snapshot {
            let recorded = self.snapshot;
            return Err(Error::SnapshotBehind { recorded, found: snapshot.index });
        }
        Ok(())
    }
}
