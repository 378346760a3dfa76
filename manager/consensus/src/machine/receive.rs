//! Messages from other members.

use crate::{Effect, FatalError, Message, MessageKind, RaftMachine, SnapshotMeta, convert, validation};

impl RaftMachine {
    pub(super) fn receive(&mut self, mut message: Message, effects: &mut Vec<Effect>) {
        if !self.is_acceptable(&message) {
            return;
        }
        self.merge_acknowledgements(&mut message);
        if let Some(fatal) = self.find_contradiction(&message) {
            // The others may not know what this member knows to be committed, and no other member sends it to
            // them.
            super::send(vec![self.log_status_message(message.from)], effects);
            return self.stop(fatal, effects);
        }
        match message.kind {
            MessageKind::LogStatus => return self.receive_log_status(&message),
            MessageKind::Vote | MessageKind::PreVote if !self.may_vote_for(&message) => return,
            MessageKind::VoteResponse | MessageKind::PreVoteResponse if self.must_not_lead() => return,
            MessageKind::Heartbeat => self.correct_heartbeat(&mut message, effects),
            _ => {}
        }
        // The only error is a response from a sender that is not in the group: it is ignored.
        let _ = self.node.step(convert::message_to_raft(message));
    }

    /// Stops the machine permanently.
    pub(super) fn stop(&mut self, fatal: FatalError, effects: &mut Vec<Effect>) {
        self.is_stopped = true;
        effects.push(Effect::Fatal(fatal));
    }

    /// Whether raft can process it.
    fn is_acceptable(&self, message: &Message) -> bool {
        let raft = &self.node.raft;
        message.to == self.config.id
            && validation::is_well_formed(message)
            && validation::is_term_reachable(message.term, raft.term)
            && message.acknowledged.iter().all(|it| validation::is_term_reachable(it.term, raft.term))
            && match message.kind {
                MessageKind::TimeoutNow => self.may_campaign(),
                // A follower would forward the request. The requester can ask the leader itself.
                MessageKind::ReadIndex => self.is_leader(),
                // No member has more entries of this term than its leader.
                MessageKind::AppendResponse => {
                    let answer = self.is_leader() && message.term == raft.term && !message.reject;
                    !answer || message.index <= raft.raft_log.last_index()
                }
                _ => true,
            }
    }

    /// The error if a leader's message contradicts the local log.
    fn find_contradiction(&self, message: &Message) -> Option<FatalError> {
        let raft = &self.node.raft;
        let from_leader = message.term > raft.term || (message.term == raft.term && !self.is_leader());
        if !from_leader {
            return None;
        }
        let leader = message.from;
        let last = raft.raft_log.last_index();
        match (message.kind, &message.snapshot) {
            (MessageKind::Heartbeat, _) if message.commit > 0 && last == 0 => {
                Some(FatalError::LogLost { leader, commit: message.commit })
            }
            (MessageKind::Append, _) => {
                let committed = raft.raft_log.committed;
                // Raft would take those for entries that it has, and acknowledge them.
                let mut known = message.entries.iter().take_while(|entry| entry.index <= committed);
                let before = self.find_divergence(leader, message.index, message.log_term);
                before
                    .or_else(|| known.find_map(|entry| self.find_divergence(leader, entry.index, entry.term)))
            }
            (MessageKind::Snapshot, Some(SnapshotMeta { index, term, .. })) => {
                self.find_divergence(leader, *index, *term)
            }
            _ => None,
        }
    }

    /// The error if a committed entry that is still in the local log has another term at the leader.
    fn find_divergence(&self, leader: u64, index: u64, theirs: u64) -> Option<FatalError> {
        let log = &self.node.raft.raft_log;
        let known = log.first_index() - 1..=log.committed;
        let ours = log.term(index).ok().filter(|_| known.contains(&index))?;
        (ours != theirs).then_some(FatalError::LogDiverged {
            leader,
            index,
            local_term: ours,
            leader_term: theirs,
        })
    }
}
