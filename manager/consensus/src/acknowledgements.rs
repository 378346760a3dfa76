//! Which committed entry each member is known to have acknowledged.
//!
//! Only a leader learns that from the members themselves. It sends it to all of them with its messages, and
//! they store it with the log. So every voter can tell a member whose data was restored from an older copy
//! what it must have, which that member itself has lost.
//!
//! Every position in here is that of a committed entry. The positions that a member acknowledged therefore
//! only grow, by term and index, and a group that commits another entry at such an index has lost the
//! original one.

use std::collections::BTreeMap;

use warren_types::raft::AcknowledgedEntry;

/// The most terms that are stored until the outcome of their entries is known.
const MAX_UNRESOLVED_TERMS: usize = 16;

/// The position of an entry, in the order of committed entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LogPosition {
    /// The term of the leader that created it.
    pub term: u64,
    /// Its index.
    pub index: u64,
}

/// What is known of all members. See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Acknowledgements {
    members: BTreeMap<u64, LogPosition>,
    /// By term, the highest index known to have been committed in it and not compared with the local log yet.
    unresolved: BTreeMap<u64, u64>,
    /// It changed since it was last included in a write.
    changed: bool,
}

impl Acknowledgements {
    /// What was read from the disk.
    pub fn from_stored(acknowledged: &[AcknowledgedEntry]) -> Self {
        let mut all = Self::default();
        acknowledged.iter().for_each(|it| all.record(*it));
        all.changed = false;
        all
    }

    /// A member acknowledged an entry. Older reports change nothing.
    pub fn record(&mut self, AcknowledgedEntry { member, index, term }: AcknowledgedEntry) {
        let position = LogPosition { term, index };
        let known = self.members.entry(member).or_default();
        if *known < position {
            *known = position;
            self.changed = true;
            self.record_committed(position);
        }
    }

    /// The entry is committed, no matter which members acknowledged it: if another one replaces it, that is a
    /// loss.
    pub fn record_committed(&mut self, LogPosition { term, index }: LogPosition) {
        let highest = self.unresolved.entry(term).or_default();
        *highest = index.max(*highest);
        while self.unresolved.len() > MAX_UNRESOLVED_TERMS {
            self.unresolved.pop_first();
        }
    }

    /// The newest entry that `member` is known to have acknowledged.
    pub fn get(&self, member: u64) -> Option<LogPosition> {
        self.members.get(&member).copied()
    }

    /// The newest entry that any of them is known to have acknowledged.
    pub fn newest(&self) -> Option<LogPosition> {
        self.members.values().copied().max()
    }

    /// All acknowledgements, ordered by member.
    pub fn to_vec(&self) -> Vec<AcknowledgedEntry> {
        let acknowledged = |(member, position): (&u64, &LogPosition)| AcknowledgedEntry {
            member: *member,
            index: position.index,
            term: position.term,
        };
        self.members.iter().map(acknowledged).collect()
    }

    /// Whether it has changes that are not on the disk.
    pub fn is_changed(&self) -> bool {
        self.changed
    }

    /// All acknowledgements, if some are not on the disk yet.
    pub fn take_changed(&mut self) -> Option<Vec<AcknowledgedEntry>> {
        std::mem::take(&mut self.changed).then(|| self.to_vec())
    }

    /// Keeps only these members.
    pub fn retain(&mut self, is_member: impl Fn(u64) -> bool) {
        let before = self.members.len();
        self.members.retain(|id, _| is_member(*id));
        self.changed |= self.members.len() != before;
    }

    /// Removes a member that left.
    pub fn remove(&mut self, member: u64) {
        self.changed |= self.members.remove(&member).is_some();
    }

    /// Compares what is known to have been committed with the local log, which is committed up to
    /// `committed`. `term_of` returns the term of an entry, if the log still has it. Returns the highest
    /// entry that was replaced.
    pub fn find_lost(&mut self, committed: LogPosition, term_of: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let mut lost = None;
        self.unresolved.retain(|term, index| {
            let is_reached = *index <= committed.index;
            let is_replaced = match is_reached {
                true => term_of(*index).is_some_and(|found| found != *term),
                // Terms never decrease along a log, so the entry cannot follow any more.
                false => committed.term > *term,
            };
            if is_replaced {
                lost = lost.max(Some(*index));
            }
            !is_reached && !is_replaced
        });
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acknowledged(member: u64, term: u64, index: u64) -> AcknowledgedEntry {
        AcknowledgedEntry { member, index, term }
    }

    #[test]
    fn later_term_beats_higher_index() {
        let mut all = Acknowledgements::default();
        for (term, index, known) in
            [(2, 7, (2, 7)), (2, 5, (2, 7)), (2, 9, (2, 9)), (3, 8, (3, 8)), (2, 99, (3, 8))]
        {
            all.record(acknowledged(1, term, index));
            let (term, index) = known;
            assert_eq!(all.get(1), Some(LogPosition { term, index }));
        }
    }

    #[test]
    fn only_changes_are_written() {
        let mut all = Acknowledgements::from_stored(&[acknowledged(1, 2, 7), acknowledged(2, 2, 6)]);
        assert_eq!(all.take_changed(), None);
        all.record(acknowledged(2, 2, 6));
        assert_eq!(all.take_changed(), None);
        all.record(acknowledged(2, 2, 7));
        assert_eq!(all.take_changed(), Some(vec![acknowledged(1, 2, 7), acknowledged(2, 2, 7)]));
        for changed in [Some(vec![acknowledged(1, 2, 7)]), None] {
            all.remove(2);
            assert_eq!(all.take_changed(), changed);
        }
    }

    #[test]
    fn lost_entry_is_found_once() {
        // The log has entries of term 2 up to index 6, then of term 4.
        let term_of = |index| if index < 3 { None } else { Some(if index <= 6 { 2 } else { 4 }) };
        let cases = [
            ((2, 6), (4, 8), None),
            ((4, 8), (4, 8), None),
            // Not committed yet.
            ((4, 9), (4, 8), None),
            ((2, 6), (2, 4), None),
            // Compacted away.
            ((1, 2), (4, 8), None),
            ((3, 7), (4, 8), Some(7)),
            ((3, 90), (4, 8), Some(90)),
        ];
        for ((term, index), (last_term, committed), lost) in cases {
            let mut all = Acknowledgements::from_stored(&[acknowledged(2, term, index)]);
            let committed = LogPosition { term: last_term, index: committed };
            assert_eq!(all.find_lost(committed, term_of), lost, "{term} {index}");
            assert_eq!(all.find_lost(committed, term_of), None, "{term} {index}, again");
        }
    }

    #[test]
    fn unresolved_terms_are_bounded() {
        let mut all = Acknowledgements::default();
        (1..100).for_each(|term| all.record(acknowledged(1, term, term)));
        assert_eq!((all.members.len(), all.unresolved.len()), (1, MAX_UNRESOLVED_TERMS));
    }
}
