//! The log in memory, from which the raft crate reads.
//!
//! It holds every entry since the last compaction. Entries are added when their write is requested, not when
//! it is done; the raft crate itself tracks what is durable.

use std::collections::VecDeque;

use raft::{GetEntriesContext, RaftState, StorageError, eraftpb};

use crate::{ConfState, HardState, PersistentState, RaftEntry, SnapshotMeta, convert, members};

/// The most bytes that an entry takes in a message in addition to its data.
const ENTRY_OVERHEAD: u64 = 32;

/// A log without gaps, and the snapshot before it.
pub(crate) struct RaftLog {
    hard_state: HardState,
    /// The members as of the latest snapshot, and after each delivered change since, with the index of the
    /// change. Never empty.
    members: VecDeque<(u64, ConfState)>,
    snapshot: Option<SnapshotMeta>,
    /// Index and term of the entry before the first one: the term is still needed to decide whether another
    /// member's log matches.
    truncated: (u64, u64),
    /// In this crate's types; converted to the raft crate's types on each read. An entry is read once or
    /// twice, and a leader of a large cluster has tens of thousands of them, which would take twice the
    /// memory as the raft crate's.
    entries: VecDeque<RaftEntry>,
}

impl RaftLog {
    /// The log of verified data.
    pub fn new(restored: PersistentState) -> Self {
        let hard_state = restored.effective_hard_state();
        let covered = restored.snapshot.as_ref().map_or((0, 0), |s| (s.index, s.term));
        let members = restored.members().clone();
        let mut entries = VecDeque::from(restored.entries);
        // When the entries reach back before the snapshot, the term of the entry before them is unknown; the
        // first one is dropped to take its place.
        let mut before = covered;
        if let Some(first) = entries.front().filter(|first| first.index <= covered.0) {
            before = (first.index, first.term);
            entries.pop_front();
        }
        let members = VecDeque::from([(covered.0, members)]);
        Self { hard_state, members, snapshot: restored.snapshot, truncated: before, entries }
    }

    /// The members as of the last delivered entry.
    pub fn members(&self) -> &ConfState {
        let (_, members) = self.members.back().expect("the members are always known");
        members
    }

    /// The index of the last membership change, or the one at which the log began.
    pub fn members_index(&self) -> u64 {
        self.members.back().map_or(0, |(index, _)| *index)
    }

    /// The delivered entry at `index` changed the members.
    pub fn set_members(&mut self, index: u64, members: ConfState) {
        self.members.push_back((index, members));
    }

    /// The latest snapshot's index, 0 for none.
    pub fn snapshot_index(&self) -> u64 {
        self.snapshot.as_ref().map_or(0, |snapshot| snapshot.index)
    }

    /// Appends entries; replaces those at the first one's index and after.
    pub fn append(&mut self, entries: &[RaftEntry]) {
        let Some(head) = entries.first() else { return };
        let keep = head.index.checked_sub(self.truncated.0 + 1);
        let keep = keep.expect("raft never replaces entries that were compacted") as usize;
        assert!(keep <= self.entries.len(), "raft never leaves a hole before entry {}", head.index);
        self.entries.truncate(keep);
        self.entries.extend(entries.iter().cloned());
    }

    /// Replaces everything by a snapshot from the leader.
    pub fn install(&mut self, snapshot: SnapshotMeta) {
        self.entries.clear();
        self.truncated = (snapshot.index, snapshot.term);
        self.members = VecDeque::from([(snapshot.index, snapshot.conf_state.clone())]);
        self.snapshot = Some(snapshot);
    }

    /// The metadata of a snapshot of the state up to `index`. `None` if the log does not know it any more
    /// because a later snapshot exists.
    pub fn snapshot_meta(&self, index: u64) -> Option<SnapshotMeta> {
        let term = self.term_at(index).ok()?;
        let (_, members) = self.members.iter().rev().find(|(since, _)| *since <= index)?;
        Some(SnapshotMeta { index, term, conf_state: members.clone() })
    }

    /// Records a snapshot of the member's own state.
    pub fn set_snapshot(&mut self, snapshot: SnapshotMeta) {
        let later = self.members.partition_point(|(since, _)| *since <= snapshot.index);
        self.members.drain(..later.saturating_sub(1));
        self.snapshot = Some(snapshot);
    }

    /// Removes the entries up to and including `up_to`, if there are any.
    pub fn compact(&mut self, up_to: u64) {
        let Some(gone) = up_to.checked_sub(self.truncated.0).filter(|gone| *gone > 0) else { return };
        let term = self.term_at(up_to).expect("only entries in the log are compacted");
        self.entries.drain(..gone as usize);
        // Frees the memory of a burst of writes.
        if self.entries.capacity() / 4 > self.entries.len() {
            self.entries.shrink_to(2 * self.entries.len());
        }
        self.truncated = (up_to, term);
    }

    fn term_at(&self, index: u64) -> Result<u64, StorageError> {
        let Some(offset) = index.checked_sub(self.truncated.0) else {
            return Err(StorageError::Compacted);
        };
        if offset == 0 {
            return Ok(self.truncated.1);
        }
        let entry = self.entries.get(offset as usize - 1);
        entry.map(|entry| entry.term).ok_or(StorageError::Unavailable)
    }

    fn last(&self) -> u64 {
        self.truncated.0 + self.entries.len() as u64
    }
}

impl raft::Storage for RaftLog {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let hard_state = convert::hard_state_to_raft(&self.hard_state);
        Ok(RaftState { hard_state, conf_state: convert::conf_state_to_raft(self.members()) })
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> raft::Result<Vec<eraftpb::Entry>> {
        if low <= self.truncated.0 {
            return Err(StorageError::Compacted.into());
        }
        if high > self.last() + 1 {
            return Err(StorageError::Unavailable.into());
        }
        let range = (low - self.truncated.0 - 1) as usize..(high - self.truncated.0 - 1) as usize;
        let limit = max_size.into().unwrap_or(u64::MAX);
        let mut size = 0;
        let fits = |entry: &&RaftEntry| {
            let first = size == 0;
            size += entry.data.len() as u64 + ENTRY_OVERHEAD;
            first || size <= limit
        };
        Ok(self.entries.range(range).take_while(fits).cloned().map(convert::entry_to_raft).collect())
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        Ok(self.term_at(index)?)
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.truncated.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    /// The raft crate rejects a snapshot that is older than the receiver's membership. So the receiver is
    /// listed as one of its learners: that gives it no vote, and when it reaches the entry that adds it, its
    /// members equal those of the group again.
    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<eraftpb::Snapshot> {
        let snapshot = self.snapshot.as_ref().filter(|snapshot| snapshot.index >= request_index);
        let mut snapshot = snapshot.ok_or(StorageError::SnapshotTemporarilyUnavailable)?.clone();
        if !members::contains_member(&snapshot.conf_state, to) {
            snapshot.conf_state.learners.push(to);
            snapshot.conf_state.learners.sort_unstable();
        }
        Ok(convert::snapshot_to_raft(&snapshot))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use raft::Storage;

    use super::*;
    use crate::EntryKind;

    fn log() -> RaftLog {
        let entry = |index| RaftEntry {
            index,
            term: index / 2,
            kind: EntryKind::Command,
            data: Bytes::from(vec![b'x'; 100]),
        };
        RaftLog::new(PersistentState { entries: (1..=10).map(entry).collect(), ..PersistentState::default() })
    }

    fn read(log: &RaftLog, low: u64, high: u64, max: u64) -> raft::Result<Vec<u64>> {
        let entries = log.entries(low, high, max, GetEntriesContext::empty(false))?;
        Ok(entries.iter().map(|entry| entry.index).collect())
    }

    #[test]
    fn read_returns_at_least_one_entry() {
        let log = log();
        assert_eq!(read(&log, 3, 11, u64::MAX).unwrap(), (3..=10).collect::<Vec<_>>());
        assert_eq!(read(&log, 3, 11, 300).unwrap(), [3, 4]);
        assert_eq!(read(&log, 3, 11, 0).unwrap(), [3]);
        assert_eq!(read(&log, 3, 3, 0).unwrap(), [0; 0]);
    }

    #[test]
    fn compaction_keeps_the_term_before_the_first_entry() {
        let mut log = log();
        for _ in 0..2 {
            log.compact(4);
            assert_eq!((log.first_index().unwrap(), log.last_index().unwrap()), (5, 10));
            assert_eq!(log.term(4).unwrap(), 2);
            assert!(log.term(3).is_err() && read(&log, 4, 6, 0).is_err());
        }
        log.compact(10);
        assert_eq!((log.first_index().unwrap(), log.last_index().unwrap()), (11, 10));
        assert_eq!(log.term(10).unwrap(), 5);
    }

    #[test]
    fn snapshot_below_request_is_unavailable() {
        let mut log = log();
        assert!(log.snapshot(0, 2).is_err(), "there is none");
        log.set_snapshot(log.snapshot_meta(6).unwrap());
        assert_eq!(log.snapshot(6, 2).unwrap().get_metadata().term, 3);
        assert!(log.snapshot(7, 2).is_err());
    }

    #[test]
    fn snapshot_lists_receiver_as_learner() {
        let mut log = log();
        log.set_members(2, ConfState { learners: vec![9], ..ConfState::of_voters([1, 2]) });
        log.set_snapshot(log.snapshot_meta(6).unwrap());
        let learners = |to| log.snapshot(0, to).unwrap().get_metadata().get_conf_state().learners.clone();
        for member in [1, 2, 9] {
            assert_eq!(learners(member), [9]);
        }
        assert_eq!(learners(5), [5, 9], "it was added later");
        assert_eq!(log.snapshot_meta(6).unwrap().conf_state.learners, [9]);
    }

    #[test]
    fn snapshot_has_members_at_its_index() {
        let mut log = log();
        log.set_members(4, ConfState::of_voters([1, 2]));
        log.set_members(7, ConfState::of_voters([1, 2, 3]));
        let voters = |log: &RaftLog, index| log.snapshot_meta(index).map(|meta| meta.conf_state.voters);
        for (index, expected) in [(3, vec![]), (4, vec![1, 2]), (6, vec![1, 2]), (7, vec![1, 2, 3])] {
            assert_eq!(voters(&log, index), Some(expected), "as of {index}");
        }
        assert_eq!(voters(&log, 11), None, "there is no such entry");
        for _ in 0..2 {
            log.set_snapshot(log.snapshot_meta(6).unwrap());
            assert_eq!(voters(&log, 6), Some(vec![1, 2]));
            assert_eq!(voters(&log, 3), None, "unknown before the snapshot");
            assert_eq!(log.members().voters, [1, 2, 3]);
        }
    }
}
