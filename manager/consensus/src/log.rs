//! The log in memory: what the raft crate reads its past from.
//!
//! It holds every entry since the last compaction. Entries are put in when a write of them is
//! asked for, not when it is done; the raft crate itself keeps count of what is durable.

use std::collections::VecDeque;

use raft::{GetEntriesContext, RaftState, StorageError, eraftpb};

use crate::{ConfState, Entry, HardState, Restored, SnapshotMeta, convert, members};

/// Bytes an entry takes in a message besides its data, at most.
const ENTRY_OVERHEAD: u64 = 32;

/// A log without gaps, and the snapshot behind it.
pub(crate) struct Log {
    hard_state: HardState,
    /// The members as of the latest snapshot, and each change of them that was handed out since,
    /// with the index it came with. Never empty.
    members: VecDeque<(u64, ConfState)>,
    snapshot: Option<SnapshotMeta>,
    /// Index and term of the entry before the first one: the term is still needed to tell
    /// whether another member's log matches.
    before: (u64, u64),
    /// In our words, and in the raft crate's only when it asks: it reads an entry once or twice, and a leader of a
    /// large cluster has tens of thousands of them, which would take twice the memory as the raft crate's.
    entries: VecDeque<Entry>,
}

impl Log {
    /// The log of data that was verified.
    pub fn new(restored: Restored) -> Self {
        let hard_state = restored.known_hard_state();
        let covered = restored.snapshot.as_ref().map_or((0, 0), |s| (s.index, s.term));
        let members = restored.members().clone();
        let mut entries = VecDeque::from(restored.entries);
        // When the entries reach back before the snapshot, nobody knows the term of the entry
        // before them; the first one is given up to take its place.
        let mut before = covered;
        if let Some(first) = entries.front().filter(|first| first.index <= covered.0) {
            before = (first.index, first.term);
            entries.pop_front();
        }
        let members = VecDeque::from([(covered.0, members)]);
        Self { hard_state, members, snapshot: restored.snapshot, before, entries }
    }

    /// The members as of the last entry handed out.
    pub fn members(&self) -> &ConfState {
        let (_, members) = self.members.back().expect("the members are always known");
        members
    }

    /// The last change of the members, or what the log began with.
    pub fn members_since(&self) -> u64 {
        self.members.back().map_or(0, |(index, _)| *index)
    }

    /// The entry at `index` was handed out and changed the members.
    pub fn set_members(&mut self, index: u64, members: ConfState) {
        self.members.push_back((index, members));
    }

    /// The latest snapshot's index, 0 for none.
    pub fn snapshot_index(&self) -> u64 {
        self.snapshot.as_ref().map_or(0, |snapshot| snapshot.index)
    }

    /// Appends entries; replaces what was at the first one's index and after.
    pub fn append(&mut self, entries: &[Entry]) {
        let Some(head) = entries.first() else { return };
        let keep = head.index.checked_sub(self.before.0 + 1);
        let keep = keep.expect("raft never replaces entries that were compacted") as usize;
        assert!(keep <= self.entries.len(), "raft never leaves a hole before entry {}", head.index);
        self.entries.truncate(keep);
        self.entries.extend(entries.iter().cloned());
    }

    /// Replaces everything by a snapshot from the leader.
    pub fn install(&mut self, snapshot: SnapshotMeta) {
        self.entries.clear();
        self.before = (snapshot.index, snapshot.term);
        self.members = VecDeque::from([(snapshot.index, snapshot.conf_state.clone())]);
        self.snapshot = Some(snapshot);
    }

    /// What a snapshot of the state up to `index` covers. `None` if the log does not know any
    /// more: a later snapshot is there.
    pub fn snapshot_meta(&self, index: u64) -> Option<SnapshotMeta> {
        let term = self.term_at(index).ok()?;
        let (_, members) = self.members.iter().rev().find(|(since, _)| *since <= index)?;
        Some(SnapshotMeta { index, term, conf_state: members.clone() })
    }

    /// Takes note of a snapshot of the member's own state.
    pub fn set_snapshot(&mut self, snapshot: SnapshotMeta) {
        let later = self.members.partition_point(|(since, _)| *since <= snapshot.index);
        self.members.drain(..later.saturating_sub(1));
        self.snapshot = Some(snapshot);
    }

    /// Forgets the entries up to and including `up_to`, if there are any.
    pub fn compact(&mut self, up_to: u64) {
        let Some(gone) = up_to.checked_sub(self.before.0).filter(|gone| *gone > 0) else { return };
        let term = self.term_at(up_to).expect("only entries in the log are compacted");
        self.entries.drain(..gone as usize);
        // What a burst of writes took is given back.
        if self.entries.capacity() / 4 > self.entries.len() {
            self.entries.shrink_to(2 * self.entries.len());
        }
        self.before = (up_to, term);
    }

    fn term_at(&self, index: u64) -> Result<u64, StorageError> {
        let Some(offset) = index.checked_sub(self.before.0) else {
            return Err(StorageError::Compacted);
        };
        if offset == 0 {
            return Ok(self.before.1);
        }
        let entry = self.entries.get(offset as usize - 1);
        entry.map(|entry| entry.term).ok_or(StorageError::Unavailable)
    }

    fn last(&self) -> u64 {
        self.before.0 + self.entries.len() as u64
    }
}

impl raft::Storage for Log {
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
        if low <= self.before.0 {
            return Err(StorageError::Compacted.into());
        }
        if high > self.last() + 1 {
            return Err(StorageError::Unavailable.into());
        }
        let range = (low - self.before.0 - 1) as usize..(high - self.before.0 - 1) as usize;
        let limit = max_size.into().unwrap_or(u64::MAX);
        let mut size = 0;
        let fits = |entry: &&Entry| {
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
        Ok(self.before.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    /// The raft crate refuses a snapshot that is older than the receiver's membership. So the
    /// receiver is said to be one of its learners: that gives it no say in anything, and when it
    /// comes to the entry that adds it, the members are again those that everyone has.
    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<eraftpb::Snapshot> {
        let snapshot = self.snapshot.as_ref().filter(|snapshot| snapshot.index >= request_index);
        let mut snapshot = snapshot.ok_or(StorageError::SnapshotTemporarilyUnavailable)?.clone();
        if !members::include(&snapshot.conf_state, to) {
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

    fn log() -> Log {
        let entry = |index| Entry {
            index,
            term: index / 2,
            kind: EntryKind::Command,
            data: Bytes::from(vec![b'x'; 100]),
        };
        Log::new(Restored { entries: (1..=10).map(entry).collect(), ..Restored::default() })
    }

    fn read(log: &Log, low: u64, high: u64, max: u64) -> raft::Result<Vec<u64>> {
        let entries = log.entries(low, high, max, GetEntriesContext::empty(false))?;
        Ok(entries.iter().map(|entry| entry.index).collect())
    }

    #[test]
    fn reads_are_bounded_but_never_empty() {
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
    fn a_snapshot_is_offered_if_it_reaches_far_enough() {
        let mut log = log();
        assert!(log.snapshot(0, 2).is_err(), "there is none");
        log.set_snapshot(log.snapshot_meta(6).unwrap());
        assert_eq!(log.snapshot(6, 2).unwrap().get_metadata().term, 3);
        assert!(log.snapshot(7, 2).is_err());
    }

    #[test]
    fn a_snapshot_is_for_everyone_who_needs_one() {
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
    fn a_snapshot_has_the_members_of_its_time() {
        let mut log = log();
        log.set_members(4, ConfState::of_voters([1, 2]));
        log.set_members(7, ConfState::of_voters([1, 2, 3]));
        let voters = |log: &Log, index| log.snapshot_meta(index).map(|meta| meta.conf_state.voters);
        for (index, expected) in [(3, vec![]), (4, vec![1, 2]), (6, vec![1, 2]), (7, vec![1, 2, 3])] {
            assert_eq!(voters(&log, index), Some(expected), "as of {index}");
        }
        assert_eq!(voters(&log, 11), None, "there is no such entry");
        for _ in 0..2 {
            log.set_snapshot(log.snapshot_meta(6).unwrap());
            assert_eq!(voters(&log, 6), Some(vec![1, 2]));
            assert_eq!(voters(&log, 3), None, "before the snapshot nobody knows");
            assert_eq!(log.members().voters, [1, 2, 3]);
        }
    }
}
