//! Messages from other members.

use crate::{Effect, Fatal, Machine, Message, MessageKind, SnapshotMeta, convert, screen};

impl Machine {
    pub(super) fn receive(&mut self, message: Message, effects: &mut Vec<Effect>) {
        if !self.is_useful(&message) {
            return;
        }
        if let Some(fatal) = self.contradicts(&message) {
            return self.stop(fatal, effects);
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
            (MessageKind::Heartbeat, _) if message.commit > last => {
                Some(Fatal::LostLog { leader, commit: message.commit, last })
            }
            (MessageKind::Append, _) => self.differs(leader, message.index, message.log_term),
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
