//! Changes of the members and of the leader.

use raft::{INVALID_ID, eraftpb};

use crate::{
    ConfState, DropReason, Effect, Entry, Fatal, Machine, MemberChange, Membership, convert, members,
};

/// What the leader knows about a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Its id.
    pub id: u64,
    /// Up to where its log is known to be the leader's, and durable.
    pub matched: u64,
    /// Whether it answered within the last election timeout, or the one before.
    pub active: bool,
    /// Whether it answered nothing for an election timeout, and the leader has led for as long. A new leader has heard
    /// of nobody: then a member is neither.
    pub silent: bool,
}

impl Machine {
    /// What this member knows about the others as their leader, in the order of their ids; empty
    /// if it does not lead. A learner should not be promoted before it is active and almost at
    /// the leader's end: its vote would be missing.
    pub fn peers(&self) -> Vec<Peer> {
        if !self.is_leader() {
            return Vec::new();
        }
        let others = self.node.raft.prs().iter().filter(|(id, _)| **id != self.config.id);
        let (term, timeout) = (self.node.raft.term, self.config.election_ticks.start);
        let peer = |(id, progress): (&u64, &raft::Progress)| Peer {
            id: *id,
            matched: progress.matched,
            active: progress.recent_active || self.presence.is_active(term, *id, timeout),
            silent: !progress.recent_active && self.presence.is_silent(term, *id, timeout),
        };
        let mut peers: Vec<_> = others.map(peer).collect();
        peers.sort_unstable_by_key(|peer| peer.id);
        peers
    }

    /// A leader's tick, just before raft's: who answered since the last one?
    pub(super) fn note_presence(&mut self) {
        let (own, raft) = (self.config.id, &self.node.raft);
        let others = raft.prs().iter().filter(|(id, _)| **id != own);
        self.presence.tick(raft.term, others.map(|(id, progress)| (*id, progress.recent_active)));
    }

    pub(super) fn change_members(&mut self, id: u64, change: MemberChange, effects: &mut Vec<Effect>) {
        let reason = match self.why_not_change(&change) {
            None if self.append_change(id, change) => return,
            None => DropReason::Busy,
            Some(reason) => reason,
        };
        effects.push(Effect::Dropped { proposal: id, reason });
    }

    fn why_not_change(&self, change: &MemberChange) -> Option<DropReason> {
        if let Some(reason) = self.why_not_propose() {
            return Some(reason);
        }
        let raft = &self.node.raft;
        let joint = !self.members().voters_outgoing.is_empty();
        if joint || raft.has_pending_conf() || !raft.apply_to_current_term() {
            return Some(DropReason::ChangePending);
        }
        change.verify(self.members(), self.config.id).err().map(DropReason::InvalidChange)
    }

    /// Appends the change to the log; false if too much waits there. Does what the raft crate does
    /// with a proposal, without its check, which parses the entry as a protobuf message.
    fn append_change(&mut self, id: u64, change: MemberChange) -> bool {
        let entry = eraftpb::Entry {
            entry_type: eraftpb::EntryType::EntryConfChangeV2,
            data: Membership::Change(change).encode().into(),
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

    /// A change is committed: it takes effect.
    pub(super) fn change(&mut self, entry: &Entry, effects: &mut Vec<Effect>) -> Result<(), Box<Fatal>> {
        let index = entry.index;
        let change = Membership::parse(&entry.data).map_err(|error| Fatal::UnknownChange { index, error })?;
        let changed = self.node.apply_conf_change(&change.to_raft());
        let changed = changed.map_err(|error| Fatal::ImpossibleChange {
            index,
            members: self.members().clone(),
            reason: error.to_string(),
        })?;
        let members = convert::conf_state_from_raft(&changed);
        self.forget_who_left(&self.members().clone(), &members);
        self.node.mut_store().set_members(index, members.clone());
        let ConfState { voters, voters_outgoing, .. } = &members;
        let votes = voters.contains(&self.config.id) || voters_outgoing.contains(&self.config.id);
        if self.is_leader() && !votes {
            // It told the others that the change is committed, and has no more to say. The raft
            // crate would go on leading, and panic with its next commit.
            let term = self.node.raft.term;
            self.node.raft.become_follower(term, INVALID_ID);
        }
        if !members::include(&members, self.config.id) {
            self.proposals.give_up_after(index, effects);
        }
        effects.push(Effect::Members { index, members });
        Ok(())
    }

    pub(super) fn transfer_leader(&mut self, to: Option<u64>) {
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
