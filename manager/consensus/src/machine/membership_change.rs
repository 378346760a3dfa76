//! Membership changes and leadership transfer.

use raft::{INVALID_ID, eraftpb};

use crate::{
    ConfState, DropReason, Effect, FatalError, MemberChange, MembershipEntry, RaftEntry, RaftMachine,
    convert, members,
};

/// The leader's view of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PeerProgress {
    /// The member's id.
    pub id: u64,
    /// Up to where its log is known to match the leader's, and to be durable.
    pub matched: u64,
    /// Whether it responded within the current or the previous election timeout.
    pub active: bool,
    /// Whether it did not respond for an election timeout, during which this member led. A new leader has no
    /// responses yet: then a member is neither active nor silent.
    pub silent: bool,
}

impl RaftMachine {
    /// The leader's view of the other members, ordered by id; empty on a member that does not lead. A learner
    /// should be promoted only when it is active and almost at the end of the leader's log: otherwise its
    /// vote would be missing.
    pub fn peers(&self) -> Vec<PeerProgress> {
        if !self.is_leader() {
            return Vec::new();
        }
        let others = self.node.raft.prs().iter().filter(|(id, _)| **id != self.config.id);
        let (term, timeout) = (self.node.raft.term, self.config.election_ticks.start);
        let peer = |(id, progress): (&u64, &raft::Progress)| PeerProgress {
            id: *id,
            matched: progress.matched,
            active: progress.recent_active || self.peer_activity.is_active(term, *id, timeout),
            silent: !progress.recent_active && self.peer_activity.is_silent(term, *id, timeout),
        };
        let mut peers: Vec<_> = others.map(peer).collect();
        peers.sort_unstable_by_key(|peer| peer.id);
        peers
    }

    /// A leader's tick, just before raft's: records who responded since the last one.
    pub(super) fn record_peer_activity(&mut self) {
        let (own, raft) = (self.config.id, &self.node.raft);
        let others = raft.prs().iter().filter(|(id, _)| **id != own);
        self.peer_activity.tick(raft.term, others.map(|(id, progress)| (*id, progress.recent_active)));
    }

    pub(super) fn change_members(&mut self, id: u64, change: MemberChange, effects: &mut Vec<Effect>) {
        let reason = match self.check_change(&change) {
            None if self.append_change(id, change) => return,
            None => DropReason::Busy,
            Some(reason) => reason,
        };
        effects.push(Effect::ProposalDropped { proposal: id, reason });
    }

    fn check_change(&self, change: &MemberChange) -> Option<DropReason> {
        if let Some(reason) = self.check_propose() {
            return Some(reason);
        }
        let raft = &self.node.raft;
        let joint = !self.members().voters_outgoing.is_empty();
        if joint || raft.has_pending_conf() || !raft.apply_to_current_term() {
            return Some(DropReason::ChangePending);
        }
        change.verify(self.members(), self.config.id).err().map(DropReason::InvalidChange)
    }

    /// Appends the change to the log; false if too many bytes are uncommitted. Does what the raft crate does
    /// with a proposal, without its check, which parses the entry as a protobuf message.
    fn append_change(&mut self, id: u64, change: MemberChange) -> bool {
        let entry = eraftpb::Entry {
            entry_type: eraftpb::EntryType::EntryConfChangeV2,
            data: MembershipEntry::Change(change).encode().into(),
            ..eraftpb::Entry::default()
        };
        let raft = &mut self.node.raft;
        if !raft.append_entry(&mut [entry]) {
            return false;
        }
        let index = raft.raft_log.last_index();
        raft.pending_conf_index = index;
        raft.bcast_append();
        self.proposals.insert(index, raft.term, id);
        true
    }

    /// Applies a committed membership change.
    pub(super) fn apply_change(
        &mut self,
        entry: &RaftEntry,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Box<FatalError>> {
        let index = entry.index;
        let change = MembershipEntry::parse(&entry.data)
            .map_err(|error| FatalError::UnreadableChange { index, error })?;
        let changed = self.node.apply_conf_change(&change.to_raft());
        let changed = changed.map_err(|error| FatalError::InapplicableChange {
            index,
            members: self.members().clone(),
            reason: error.to_string(),
        })?;
        let members = convert::conf_state_from_raft(&changed);
        self.forget_departed_members(&self.members().clone(), &members);
        self.node.mut_store().set_members(index, members.clone());
        let ConfState { voters, voters_outgoing, .. } = &members;
        let votes = voters.contains(&self.config.id) || voters_outgoing.contains(&self.config.id);
        if self.is_leader() && !votes {
            // It has sent the commit of the change, and has nothing left to send. The raft crate would
            // continue to lead, and panic with its next commit.
            let term = self.node.raft.term;
            self.node.raft.become_follower(term, INVALID_ID);
        }
        if !members::contains_member(&members, self.config.id) {
            self.proposals.drop_after(index, effects);
        }
        effects.push(Effect::MembersChanged { index, members });
        Ok(())
    }

    pub(super) fn transfer_leadership(&mut self, to: Option<u64>) {
        if !self.is_leader() {
            return;
        }
        let voters = &self.members().voters;
        let furthest = || {
            let peers = self.peers().into_iter().filter(|peer| voters.contains(&peer.id));
            peers.max_by_key(|peer| (peer.active, peer.matched, u64::MAX - peer.id)).map(|peer| peer.id)
        };
        let to = to.or_else(furthest).filter(|to| *to != self.config.id && voters.contains(to));
        if let Some(to) = to {
            self.node.transfer_leader(to);
        }
    }
}
