//! Which entries were proposed here and wait to be committed.

use std::collections::BTreeMap;

use crate::{DropReason, Effect, Entry};

/// The proposals that were given a place in the log, by index and term of that place. A place can
/// be given twice, in different terms, when a leader lost its office and won it again.
#[derive(Debug, Default)]
pub(crate) struct Proposals(BTreeMap<(u64, u64), u64>);

impl Proposals {
    /// Proposal `id` is the entry at `index`, created in `term`.
    pub fn insert(&mut self, index: u64, term: u64, id: u64) {
        self.0.insert((index, term), id);
    }

    /// The entry is committed: finds its proposal, and drops those that wanted its place.
    pub fn commit(&mut self, entry: &Entry, effects: &mut Vec<Effect>) -> Option<u64> {
        let mut proposal = None;
        for ((index, term), id) in self.take_up_to(entry.index) {
            if (index, term) == (entry.index, entry.term) {
                proposal = Some(id);
            } else {
                effects.push(Effect::Dropped { proposal: id, reason: DropReason::Superseded });
            }
        }
        proposal
    }

    /// A snapshot replaces the log up to `index`: what became of those entries cannot be known.
    pub fn cover(&mut self, index: u64, effects: &mut Vec<Effect>) {
        for (_, proposal) in self.take_up_to(index) {
            effects.push(Effect::Dropped { proposal, reason: DropReason::Unknown });
        }
    }

    /// The entry at `index` removed the member from the group: it will not hear what becomes of
    /// the entries after it.
    pub fn give_up_after(&mut self, index: u64, effects: &mut Vec<Effect>) {
        let rest = self.0.split_off(&(index + 1, 0)).into_values();
        effects.extend(rest.map(|proposal| Effect::Dropped { proposal, reason: DropReason::Unknown }));
    }

    fn take_up_to(&mut self, index: u64) -> BTreeMap<(u64, u64), u64> {
        let rest = self.0.split_off(&(index + 1, 0));
        std::mem::replace(&mut self.0, rest)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::EntryKind;

    fn commit(proposals: &mut Proposals, index: u64, term: u64) -> (Option<u64>, Vec<Effect>) {
        let mut effects = Vec::new();
        let entry = Entry { index, term, kind: EntryKind::Command, data: Bytes::from_static(b"x") };
        (proposals.commit(&entry, &mut effects), effects)
    }

    fn dropped(proposal: u64, reason: DropReason) -> Effect {
        Effect::Dropped { proposal, reason }
    }

    #[test]
    fn a_proposal_is_answered_once() {
        let mut proposals = Proposals::default();
        proposals.insert(5, 2, 50);
        assert_eq!(commit(&mut proposals, 4, 2), (None, vec![]));
        assert_eq!(commit(&mut proposals, 5, 2), (Some(50), vec![]));
        assert_eq!(commit(&mut proposals, 5, 2), (None, vec![]));
    }

    #[test]
    fn of_two_proposals_for_one_place_the_term_decides() {
        for (term, applied, lost) in [(2, 20, 40), (4, 40, 20)] {
            let mut proposals = Proposals::default();
            proposals.insert(5, 2, 20);
            proposals.insert(5, 4, 40);
            let superseded = vec![dropped(lost, DropReason::Superseded)];
            assert_eq!(commit(&mut proposals, 5, term), (Some(applied), superseded));
        }
        let mut proposals = Proposals::default();
        proposals.insert(5, 2, 20);
        assert_eq!(commit(&mut proposals, 5, 3), (None, vec![dropped(20, DropReason::Superseded)]));
    }

    #[test]
    fn a_snapshot_answers_what_it_covers() {
        let mut proposals = Proposals::default();
        proposals.insert(5, 2, 50);
        proposals.insert(6, 2, 60);
        let mut effects = Vec::new();
        proposals.cover(5, &mut effects);
        assert_eq!(effects, [dropped(50, DropReason::Unknown)]);
        assert_eq!(commit(&mut proposals, 6, 2), (Some(60), vec![]));
    }
}
