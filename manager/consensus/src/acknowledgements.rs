//! Which committed entry each member is known to have acknowledged.
//!
//! Only a leader learns that from the members themselves. It tells all of them with its messages, and they remember it
//! with the log. So whoever votes can tell a member whose data was restored from an older copy what it must have, which
//! that member itself has forgotten.
//!
//! Every position in here is one of a committed entry. Those that a member acknowledged therefore only grow, by term
//! and index, and a group that commits another entry in such a place has lost the one that was there.

use std::collections::BTreeMap;

use warren_types::raft::Acknowledged;

/// So many terms are remembered until it is known what became of their entries.
const UNRESOLVED_TERMS: usize = 16;

/// The place of an entry, in the order in which committed entries follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// The term of the leader that created it.
    pub term: u64,
    /// Its index.
    pub index: u64,
}

/// What is known of all members. See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Acknowledgements {
    members: BTreeMap<u64, Position>,
    /// By term, the highest index that is known to have been committed in it and was not compared with the own log yet.
    unresolved: BTreeMap<u64, u64>,
    /// Something changed since it was last given out to be written.
    changed: bool,
}

impl Acknowledgements {
    /// What was read from the disk.
    pub fn restored(acknowledged: &[Acknowledged]) -> Self {
        let mut all = Self::default();
        acknowledged.iter().for_each(|it| all.learn(*it));
        all.changed = false;
        all
    }

    /// A member acknowledged an entry. Older news change nothing.
    pub fn learn(&mut self, Acknowledged { member, index, term }: Acknowledged) {
        let position = Position { term, index };
        let known = self.members.entry(member).or_default();
        if *known < position {
            *known = position;
            self.changed = true;
            self.watch(position);
        }
    }

    /// The entry is committed, whoever acknowledged it: should another one take its place, that is a loss.
    pub fn watch(&mut self, Position { term, index }: Position) {
        let highest = self.unresolved.entry(term).or_default();
        *highest = index.max(*highest);
        while self.unresolved.len() > UNRESOLVED_TERMS {
            self.unresolved.pop_first();
        }
    }

    /// What `member` is known to have acknowledged.
    pub fn of(&self, member: u64) -> Option<Position> {
        self.members.get(&member).copied()
    }

    /// The latest entry that any of them is known to have acknowledged.
    pub fn newest(&self) -> Option<Position> {
        self.members.values().copied().max()
    }

    /// All of it, in the order of the members.
    pub fn all(&self) -> Vec<Acknowledged> {
        let acknowledged = |(member, position): (&u64, &Position)| Acknowledged {
            member: *member,
            index: position.index,
            term: position.term,
        };
        self.members.iter().map(acknowledged).collect()
    }

    /// Whether the disk does not have all of it yet.
    pub fn is_changed(&self) -> bool {
        self.changed
    }

    /// All of it, if the disk does not have it yet.
    pub fn take_changed(&mut self) -> Option<Vec<Acknowledged>> {
        std::mem::take(&mut self.changed).then(|| self.all())
    }

    /// Only these members are left.
    pub fn retain(&mut self, is_member: impl Fn(u64) -> bool) {
        let before = self.members.len();
        self.members.retain(|id, _| is_member(*id));
        self.changed |= self.members.len() != before;
    }

    /// The member left.
    pub fn forget(&mut self, member: u64) {
        self.changed |= self.members.remove(&member).is_some();
    }

    /// Compares what is known to have been committed with the own log, which is committed up to `committed`. `term_of`
    /// tells the term of an entry there, if it still knows. Answers the highest entry that another one replaced.
    pub fn find_lost(&mut self, committed: Position, term_of: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let mut lost = None;
        self.unresolved.retain(|term, index| {
            let is_reached = *index <= committed.index;
            let is_replaced = match is_reached {
                true => term_of(*index).is_some_and(|found| found != *term),
                // Terms never go down along a log, so the entry cannot follow any more.
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

    fn acknowledged(member: u64, term: u64, index: u64) -> Acknowledged {
        Acknowledged { member, index, term }
    }

    #[test]
    fn later_terms_win_over_higher_indexes() {
        let mut all = Acknowledgements::default();
        for (term, index, known) in
            [(2, 7, (2, 7)), (2, 5, (2, 7)), (2, 9, (2, 9)), (3, 8, (3, 8)), (2, 99, (3, 8))]
        {
            all.learn(acknowledged(1, term, index));
            let (term, index) = known;
            assert_eq!(all.of(1), Some(Position { term, index }));
        }
    }

    #[test]
    fn only_changes_are_written_and_members_that_left_are_forgotten() {
        let mut all = Acknowledgements::restored(&[acknowledged(1, 2, 7), acknowledged(2, 2, 6)]);
        assert_eq!(all.take_changed(), None);
        all.learn(acknowledged(2, 2, 6));
        assert_eq!(all.take_changed(), None);
        all.learn(acknowledged(2, 2, 7));
        assert_eq!(all.take_changed(), Some(vec![acknowledged(1, 2, 7), acknowledged(2, 2, 7)]));
        for changed in [Some(vec![acknowledged(1, 2, 7)]), None] {
            all.forget(2);
            assert_eq!(all.take_changed(), changed);
        }
    }

    #[test]
    fn a_replaced_entry_is_found_once_and_a_held_one_never() {
        // The log has entries of term 2 up to index 6, then of term 4.
        let term_of = |index| if index < 3 { None } else { Some(if index <= 6 { 2 } else { 4 }) };
        let cases = [
            ((2, 6), (4, 8), None),
            ((4, 8), (4, 8), None),
            // Not there yet.
            ((4, 9), (4, 8), None),
            ((2, 6), (2, 4), None),
            // Nobody knows any more.
            ((1, 2), (4, 8), None),
            ((3, 7), (4, 8), Some(7)),
            ((3, 90), (4, 8), Some(90)),
        ];
        for ((term, index), (last_term, committed), lost) in cases {
            let mut all = Acknowledgements::restored(&[acknowledged(2, term, index)]);
            let committed = Position { term: last_term, index: committed };
            assert_eq!(all.find_lost(committed, term_of), lost, "{term} {index}");
            assert_eq!(all.find_lost(committed, term_of), None, "{term} {index}, again");
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut all = Acknowledgements::default();
        (1..100).for_each(|term| all.learn(acknowledged(1, term, term)));
        assert_eq!((all.members.len(), all.unresolved.len()), (1, UNRESOLVED_TERMS));
    }
}
