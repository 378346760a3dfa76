//! Local proposals that are in the log and not committed yet.

use std::collections::BTreeMap;

use crate::{DropReason, Effect, RaftEntry};

/// Proposals by index and term of their position in the log. The same index can occur with different terms,
/// when a leader lost the leadership and regained it.
#[derive(Debug, Default)]
pub(crate) struct PendingProposals(BTreeMap<(u64, u64), u64>);

impl PendingProposals {
    /// Proposal `id` is the entry at `index`, created in `term`.
    pub fn insert(&mut self, index: u64, term: u64, id: u64) {
        self.0.insert((index, term), id);
    }

    /// The entry is committed: returns its proposal, and drops the others with its index.
    pub fn commit(&mut self, entry: &RaftEntry, effects: &mut Vec<Effect>) -> Option<u64> {
        let mut proposal = None;
        for ((index, term), id) in self.take_up_to(entry.index) {
            if (index, term) == (entry.index, entry.term) {
                proposal = Some(id);
            } else {
                effects.push(Effect::ProposalDropped { proposal: id, reason: DropReason::Superseded });
            }
        }
        proposal
    }

    /// A snapshot replaces the log up to `index`: the outcome of those proposals is unknown.
    pub fn drop_covered(&mut self, index: u64, effects: &mut Vec<Effect>) {
        for (_, proposal) in self.take_up_to(index) {
            effects.push(Effect::ProposalDropped { proposal, reason: DropReason::Indeterminate });
        }
    }

    /// The entry at `index` removed the member from the group: it does not receive the commit of later
    /// entries.
    pub fn drop_after(&mut self, index: u64, effects: &mut Vec<Effect>) {
        let rest = self.0.split_off(&(index + 1, 0)).into_values();
        effects.extend(
            rest.map(|proposal| Effect::ProposalDropped { proposal, reason: DropReason::Indeterminate }),
        );
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

    fn commit(proposals: &mut PendingProposals, index: u64, term: u64) -> (Option<u64>, Vec<Effect>) {
        let mut effects = Vec::new();
        let entry = RaftEntry { index, term, kind: EntryKind::Command, data: Bytes::from_static(b"x") };
        (proposals.commit(&entry, &mut effects), effects)
    }

    fn dropped(proposal: u64, reason: DropReason) -> Effect {
        Effect::ProposalDropped { proposal, reason }
    }

    #[test]
    fn proposal_is_answered_once() {
        let mut proposals = PendingProposals::default();
        proposals.insert(5, 2, 50);
        assert_eq!(commit(&mut proposals, 4, 2), (None, vec![]));
        assert_eq!(commit(&mut proposals, 5, 2), (Some(50), vec![]));
        assert_eq!(commit(&mut proposals, 5, 2), (None, vec![]));
    }

    #[test]
    fn proposal_of_other_term_is_superseded() {
        for (term, applied, lost) in [(2, 20, 40), (4, 40, 20)] {
            let mut proposals = PendingProposals::default();
            proposals.insert(5, 2, 20);
            proposals.insert(5, 4, 40);
            let superseded = vec![dropped(lost, DropReason::Superseded)];
            assert_eq!(commit(&mut proposals, 5, term), (Some(applied), superseded));
        }
        let mut proposals = PendingProposals::default();
        proposals.insert(5, 2, 20);
        assert_eq!(commit(&mut proposals, 5, 3), (None, vec![dropped(20, DropReason::Superseded)]));
    }

    #[test]
    fn snapshot_makes_covered_proposals_indeterminate() {
        let mut proposals = PendingProposals::default();
        proposals.insert(5, 2, 50);
        proposals.insert(6, 2, 60);
        let mut effects = Vec::new();
        proposals.drop_covered(5, &mut effects);
        assert_eq!(effects, [dropped(50, DropReason::Indeterminate)]);
        assert_eq!(commit(&mut proposals, 6, 2), (Some(60), vec![]));
    }
}
