//! A member whose data is older than what it acknowledged: restored from a backup, or from an image of its
//! disk.
//!
//! Until its log holds what it is known to have acknowledged, it neither campaigns nor votes for a candidate
//! that lacks it, since a majority with it might elect a leader without acknowledged entries. A member that
//! asks it for a vote, or that responds to its request for one, sends what is known of it in the same
//! message, so no member waits. A member that knows of any acknowledged entry that it lacks does not campaign
//! either. See `acknowledgements.rs`.

use raft::{INVALID_ID, StateRole};
use warren_types::raft::AcknowledgedEntry;

use crate::{
    ConfState, DurabilityStatus, Effect, LogPosition, Message, MessageKind, RaftMachine, members, validation,
};

impl RaftMachine {
    /// The entry that this member is known to have acknowledged, if its log does not hold it.
    pub(super) fn missing_entry(&self) -> Option<LogPosition> {
        let known = self.acknowledgements.get(self.config.id)?;
        let log = &self.node.raft.raft_log;
        let holds = known.index <= log.committed || self.term_of(known.index) == Some(known.term);
        (!holds).then_some(known)
    }

    /// Whether it lacks an entry that it, or any other member as far as it knows, acknowledged, unless the
    /// user accepted the data loss. As the leader it would lose a committed entry.
    pub(super) fn must_not_lead(&self) -> bool {
        let log = &self.node.raft.raft_log;
        let last = LogPosition { term: log.last_term(), index: log.last_index() };
        let is_behind = self.acknowledgements.newest().is_some_and(|known| known > last);
        !self.config.accept_data_loss && (is_behind || self.missing_entry().is_some())
    }

    /// Whether it can vote for this candidate, as far as it is known what it acknowledged. It then votes as
    /// if it still had those entries.
    pub(super) fn may_vote_for(&self, candidate: &Message) -> bool {
        let has = LogPosition { term: candidate.log_term, index: candidate.index };
        !self.must_not_lead() || self.missing_entry().is_none_or(|acknowledged| has >= acknowledged)
    }

    /// The term of an entry, if the log has it.
    fn term_of(&self, index: u64) -> Option<u64> {
        // The raft crate returns 0 for an entry that it does not have.
        self.node.raft.raft_log.term(index).ok().filter(|term| *term > 0)
    }

    /// Records acknowledgements: a leader those of all members, every member its own.
    pub(super) fn record_acknowledgements(&mut self) {
        let raft = &self.node.raft;
        let (own, committed) = (self.config.id, raft.raft_log.committed);
        let mut matched = vec![(own, raft.raft_log.persisted)];
        if self.is_leader() {
            matched.extend(raft.prs().iter().filter(|(id, _)| **id != own).map(|(id, it)| (*id, it.matched)));
        }
        for (member, matched) in matched {
            let index = matched.min(committed);
            if let Some(term) = self.term_of(index) {
                self.acknowledgements.record(AcknowledgedEntry { member, index, term });
            }
        }
    }

    /// A tick of a member that must not lead, which raft's own tick might make a candidate. Raft responds to
    /// no candidate as long as it has a leader, which only ticks expire.
    pub(super) fn expire_leader(&mut self) {
        let raft = &mut self.node.raft;
        raft.election_elapsed += 1;
        if raft.leader_id != INVALID_ID && raft.election_elapsed >= raft.election_timeout() {
            let term = raft.term;
            raft.become_follower(term, INVALID_ID);
        }
    }

    /// Removes what is known of members that left.
    pub(super) fn forget_departed_members(&mut self, before: &ConfState, members: &ConfState) {
        let ConfState { voters, learners, voters_outgoing, .. } = before;
        for id in voters.iter().chain(learners).chain(voters_outgoing) {
            if *id != self.config.id && !members::contains_member(members, *id) {
                self.acknowledgements.remove(*id);
            }
        }
    }

    /// Merges what a message reports about members, including this one. A candidate that learns of an
    /// acknowledged entry which it lacks discards the votes that it counted, since one of them may be of a
    /// member that has regressed.
    ///
    /// A leader that learns it continues, also before its first commit: every member that accepted its first
    /// entry has a log that wins over those with the lost entry, so the group might elect no member then, or
    /// the same log again. The loss is reported.
    pub(super) fn merge_acknowledgements(&mut self, message: &mut Message) {
        for known in std::mem::take(&mut message.acknowledged) {
            let AcknowledgedEntry { member, index, term } = known;
            match member == self.config.id || members::contains_member(self.members(), member) {
                true => self.acknowledgements.record(known),
                // It left, or is too new to be known here.
                false => self.acknowledgements.record_committed(LogPosition { term, index }),
            }
        }
        let asks = matches!(self.node.raft.state, StateRole::Candidate | StateRole::PreCandidate);
        if asks && self.must_not_lead() {
            let term = self.node.raft.term;
            self.node.raft.become_follower(term, INVALID_ID);
        }
    }

    /// Adds what is known of members to messages that may decide an election, to those of a leader, and to
    /// the first ones for a member that returns.
    pub(super) fn attach_acknowledgements(&self, messages: &mut [Message]) {
        for message in messages {
            message.acknowledged = match message.kind {
                MessageKind::AppendResponse
                | MessageKind::ReadIndex
                | MessageKind::ReadIndexResponse
                | MessageKind::TimeoutNow => continue,
                MessageKind::Append
                | MessageKind::Vote
                | MessageKind::VoteResponse
                | MessageKind::Snapshot
                | MessageKind::Heartbeat
                | MessageKind::HeartbeatResponse
                | MessageKind::PreVote
                | MessageKind::PreVoteResponse
                | MessageKind::LogStatus => self.acknowledgements.to_vec(),
            };
            // Receivers reject more.
            message.acknowledged.truncate(validation::MAX_MEMBERS);
        }
    }

    /// A message with the end of this member's log.
    pub(super) fn log_status_message(&self, to: u64) -> Message {
        let raft = &self.node.raft;
        let mut message = Message {
            term: raft.term,
            index: raft.raft_log.last_index(),
            log_term: raft.raft_log.last_term(),
            commit: raft.raft_log.committed,
            reject: self.missing_entry().is_some(),
            ..Message::new(MessageKind::LogStatus, self.config.id, to)
        };
        self.attach_acknowledgements(std::slice::from_mut(&mut message));
        message
    }

    /// A member lacks entries that it acknowledged to this leader: sends them again.
    pub(super) fn receive_log_status(&mut self, message: &Message) {
        if !self.is_leader() {
            return;
        }
        let known = self.acknowledgements.get(message.from).unwrap_or_default();
        let last = self.node.raft.raft_log.last_index();
        let Some(progress) = self.node.raft.mut_prs().get_mut(message.from) else { return };
        let is_shorter = message.index < progress.matched;
        let differs = message.reject && known.index <= progress.matched;
        if progress.matched > 0 && (is_shorter || differs) {
            progress.matched = 0;
            progress.pending_snapshot = 0;
            progress.become_probe();
            progress.next_idx = message.index.min(last) + 1;
        }
    }

    /// Caps the commit index of a leader that does not know yet that this log is shorter. An entry is
    /// committed here only after the leader has sent it again.
    pub(super) fn correct_heartbeat(&self, message: &mut Message, effects: &mut Vec<Effect>) {
        let log = &self.node.raft.raft_log;
        if self.missing_entry().is_none() && message.commit <= log.last_index() {
            return;
        }
        message.commit = message.commit.min(log.committed);
        super::send(vec![self.log_status_message(message.from)], effects);
    }

    /// Reports the durability status if it changed.
    pub(super) fn report_durability(&mut self, effects: &mut Vec<Effect>) {
        let mut now =
            DurabilityStatus { missing_entry: self.missing_entry(), lost_entry: self.durability.lost_entry };
        let log = &self.node.raft.raft_log;
        let term_of = |index| log.term(index).ok().filter(|term| *term > 0);
        if let Some(term) = term_of(log.committed) {
            let committed = LogPosition { term, index: log.committed };
            now.lost_entry = now.lost_entry.max(self.acknowledgements.find_lost(committed, term_of));
        }
        if now != self.durability {
            // It must survive a restart, even for a member that gets no new entries to write.
            self.regression_unwritten |=
                now.missing_entry > self.durability.missing_entry && self.acknowledgements.is_changed();
            self.durability = now;
            effects.push(Effect::DurabilityChanged(now));
        }
    }
}
