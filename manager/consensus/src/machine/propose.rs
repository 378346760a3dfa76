//! Proposals, and who may make them.

use raft::eraftpb;

use crate::{DropReason, Effect, Proposal, RaftMachine};

impl RaftMachine {
    pub(super) fn propose(&mut self, proposals: Vec<Proposal>, effects: &mut Vec<Effect>) {
        let (proposals, empty): (Vec<_>, Vec<_>) =
            proposals.into_iter().partition(|proposal| !proposal.data.is_empty());
        drop_all(empty.iter().map(|proposal| proposal.id), DropReason::EmptyProposal, effects);
        let ids: Vec<u64> = proposals.iter().map(|proposal| proposal.id).collect();
        if ids.is_empty() {
            return;
        }
        if let Some(reason) = self.check_propose() {
            return drop_all(ids, reason, effects);
        }
        let entries: Vec<_> = proposals
            .into_iter()
            .map(|proposal| eraftpb::Entry { data: proposal.data, ..Default::default() })
            .collect();
        let message = eraftpb::Message {
            msg_type: eraftpb::MessageType::MsgPropose,
            from: self.config.id,
            entries: entries.into(),
            ..Default::default()
        };
        let first = self.node.raft.raft_log.last_index() + 1;
        match self.node.raft.step(message) {
            Ok(()) => {
                for (index, id) in (first..).zip(ids) {
                    self.proposals.insert(index, self.node.raft.term, id);
                }
            }
            Err(_) => drop_all(ids, DropReason::Busy, effects),
        }
    }

    pub(super) fn check_propose(&self) -> Option<DropReason> {
        // A follower of the raft crate would forward it to the leader and never get its outcome.
        if !self.is_leader() {
            return Some(DropReason::NotLeader { leader: self.leader() });
        }
        self.node.raft.lead_transferee.map(|to| DropReason::Transferring { to })
    }
}

fn drop_all(ids: impl IntoIterator<Item = u64>, reason: DropReason, effects: &mut Vec<Effect>) {
    effects.extend(ids.into_iter().map(|proposal| Effect::ProposalDropped { proposal, reason }));
}
