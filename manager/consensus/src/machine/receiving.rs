//! Messages from other members.

use crate::{Effect, Fatal, Machine, Message, MessageKind, SnapshotMeta, convert, screen};

impl Machine {
    pub(super) fn receive(&mut self, mut message: Message, effects: &mut Vec<Effect>) {
        if !self.is_useful(&message) {
            return;
        }
        self.learn_acknowledgements(&mut message);
        if let Some(fatal) = self.contradicts(&message) {
            // The others may not know what this member knows to be committed, and nobody else tells them.
            super::send(vec![self.status(message.from)], effects);
            return self.stop(fatal, effects);
        }
        match message.kind {
            MessageKind::Status => return self.receive_status(&message),
            MessageKind::Vote | MessageKind::PreVote if !self.may_vote_for(&message) => return,
            MessageKind::VoteResponse | MessageKind::PreVoteResponse if self.must_not_lead() => return,
            MessageKind::Heartbeat => self.correct_heartbeat(&mut message, effects),
            _ => {}
        }
        // The only error is an answer from someone who is not in the group: it means nothing.
        let _ = self.node.step(convert::message_to_raft(message));
    }

    /// Gives up for good.
    pub(super) fn stop(&mut self, fatal: Fatal, effects: &mut Vec<Effect>) {
        self.stopped = true;
        effects.push(Effect::Fatal(fatal));
    }

    /// Whether raft can do something with it.
    fn is_useful(&self, message: &Message) -> bool {
        let raft = &self.node.raft;
        message.to == self.config.id
            && screen::well_formed(message)
            && screen::within_reach(message.term, raft.term)
            && message.acknowledged.iter().all(|it| screen::within_reach(it.term, raft.term))
            && match message.kind {
                MessageKind::TimeoutNow => self.may_campaign(),
                // A follower would pass the question on. Who asks can ask the leader.
                MessageKind::ReadIndex => self.is_leader(),
                // Nobody has more of this term than its leader.
                MessageKind::AppendResponse => {
                    let answer = self.is_leader() && message.term == raft.term && !message.reject;
                    !answer || message.index <= raft.raft_log.last_index()
                }
                _ => true,
            }
    }

    /// Whether a leader claims something that cannot be true together with what is here.
    fn contradicts(&self, message: &Message) -> Option<Fatal> {
        let raft = &self.node.raft;
        let from_leader = message.term > raft.term || (message.term == raft.term && !self.is_leader());
        if !from_leader {
            return None;
        }
        let leader = message.from;
        let last = raft.raft_log.last_index();
        match (message.kind, &message.snapshot) {
            (MessageKind::Heartbeat, _) if message.commit > 0 && last == 0 => {
                Some(Fatal::LostLog { leader, commit: message.commit })
            }
            (MessageKind::Append, _) => {
                let committed = raft.raft_log.committed;
                // Raft would take those for entries that it has, and acknowledge them.
                let mut known = message.entries.iter().take_while(|entry| entry.index <= committed);
                let before = self.differs(leader, message.index, message.log_term);
                before.or_else(|| known.find_map(|entry| self.differs(leader, entry.index, entry.term)))
            }
            (MessageKind::Snapshot, Some(SnapshotMeta { index, term, .. })) => {
                self.differs(leader, *index, *term)
            }
            _ => None,
        }
    }

    /// Whether a committed entry that is still known here has another term there.
    fn differs(&self, leader: u64, index: u64, theirs: u64) -> Option<Fatal> {
        let log = &self.node.raft.raft_log;
        let known = log.first_index() - 1..=log.committed;
        let ours = log.term(index).ok().filter(|_| known.contains(&index))?;
        (ours != theirs).then_some(Fatal::Diverged { leader, index, ours, theirs })
    }
}
