//! A member whose data is older than what it acknowledged: restored from a backup, or from an image of its disk.
//!
//! Until its log holds what it is known to have acknowledged, it neither campaigns nor votes for a candidate that
//! lacks that, since a majority with it might elect a leader without acknowledged entries. Whoever asks for its vote,
//! or answers when it asks, says in the same message what is known of it, so nobody waits for anything. Nobody else
//! campaigns either who knows of an acknowledged entry that it lacks. See `acknowledgements.rs`.

use raft::{INVALID_ID, StateRole};
use warren_types::raft::Acknowledged;

use crate::{ConfState, Effect, Machine, Message, MessageKind, Position, members, screen};

/// What is wrong with the entries that members acknowledged, as far as this member knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Durability {
    /// This member acknowledged this entry, and its log does not hold it. Until it does, it does not campaign, and
    /// votes for nobody without that entry.
    pub regressed: Option<Position>,
    /// The highest entry that was acknowledged, and that the group replaced by another one. Nothing takes that back, so
    /// it stays until the process ends. After that it is found again only where a member is still known to have
    /// acknowledged nothing later, and the log still reaches back to it.
    pub lost: Option<u64>,
}

impl Machine {
    /// The entry that this member is known to have acknowledged, if its log does not hold it.
    pub(super) fn regressed(&self) -> Option<Position> {
        let known = self.acknowledgements.of(self.config.id)?;
        let log = &self.node.raft.raft_log;
        let holds = known.index <= log.committed || self.term_of(known.index) == Some(known.term);
        (!holds).then_some(known)
    }

    /// Whether it lacks what it acknowledged, or what it knows anybody else to have acknowledged, and people do not
    /// give that up. Whoever elected it would lose a committed entry.
    pub(super) fn must_not_lead(&self) -> bool {
        let log = &self.node.raft.raft_log;
        let last = Position { term: log.last_term(), index: log.last_index() };
        let is_behind = self.acknowledgements.newest().is_some_and(|known| known > last);
        !self.config.accept_data_loss && (is_behind || self.regressed().is_some())
    }

    /// Whether it can vote for this candidate, as far as it is known what it acknowledged. Then it votes as it would if
    /// it still had that.
    pub(super) fn may_vote_for(&self, candidate: &Message) -> bool {
        let has = Position { term: candidate.log_term, index: candidate.index };
        !self.must_not_lead() || self.regressed().is_none_or(|acknowledged| has >= acknowledged)
    }

    /// The term of an entry in the log, if it is there.
    fn term_of(&self, index: u64) -> Option<u64> {
        // The raft crate answers 0 for an entry that it does not have.
        self.node.raft.raft_log.term(index).ok().filter(|term| *term > 0)
    }

    /// A leader knows what members acknowledged, and everybody what it did itself.
    pub(super) fn note_acknowledgements(&mut self) {
        let raft = &self.node.raft;
        let (own, committed) = (self.config.id, raft.raft_log.committed);
        let mut matched = vec![(own, raft.raft_log.persisted)];
        if self.is_leader() {
            matched.extend(raft.prs().iter().filter(|(id, _)| **id != own).map(|(id, it)| (*id, it.matched)));
        }
        for (member, matched) in matched {
            let index = matched.min(committed);
            if let Some(term) = self.term_of(index) {
                self.acknowledgements.learn(Acknowledged { member, index, term });
            }
        }
    }

    /// A tick of a member that must not lead, which raft's own tick might make a candidate. Raft answers no candidate
    /// as long as it counts on a leader, and only ticks tell it that this one is silent.
    pub(super) fn expire_leader(&mut self) {
        let raft = &mut self.node.raft;
        raft.election_elapsed += 1;
        if raft.leader_id != INVALID_ID && raft.election_elapsed >= raft.election_timeout() {
            let term = raft.term;
            raft.become_follower(term, INVALID_ID);
        }
    }

    /// These are the members from now on; nothing need be known of those that left.
    pub(super) fn forget_who_left(&mut self, before: &ConfState, members: &ConfState) {
        let ConfState { voters, learners, voters_outgoing, .. } = before;
        for id in voters.iter().chain(learners).chain(voters_outgoing) {
            if *id != self.config.id && !members::include(members, *id) {
                self.acknowledgements.forget(*id);
            }
        }
    }

    /// Learns what a message says of members, this one among them. A candidate that learns of an acknowledged entry
    /// which it lacks gives up with the votes that it counted, since one of those may be of a member that has gone
    /// back.
    ///
    /// A leader that learns it goes on, before its first commit as well: whoever accepted its first entry has a log
    /// that wins over those with the lost entry, so the group might elect nobody then, or the same log again. The
    /// loss is told.
    pub(super) fn learn_acknowledgements(&mut self, message: &mut Message) {
        for known in std::mem::take(&mut message.acknowledged) {
            let Acknowledged { member, index, term } = known;
            match member == self.config.id || members::include(self.members(), member) {
                true => self.acknowledgements.learn(known),
                // It left, or is too new to be known here.
                false => self.acknowledgements.watch(Position { term, index }),
            }
        }
        let asks = matches!(self.node.raft.state, StateRole::Candidate | StateRole::PreCandidate);
        if asks && self.must_not_lead() {
            let term = self.node.raft.term;
            self.node.raft.become_follower(term, INVALID_ID);
        }
    }

    /// Says what is known of members in the messages that may decide an election, in those of a leader, and in what it
    /// hears first of a member that returns.
    pub(super) fn tell_acknowledgements(&self, messages: &mut [Message]) {
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
                | MessageKind::Status => self.acknowledgements.all(),
            };
            // Nobody takes more.
            message.acknowledged.truncate(screen::MOST_MEMBERS);
        }
    }

    /// What this member's log holds.
    pub(super) fn status(&self, to: u64) -> Message {
        let raft = &self.node.raft;
        let mut message = Message {
            term: raft.term,
            index: raft.raft_log.last_index(),
            log_term: raft.raft_log.last_term(),
            commit: raft.raft_log.committed,
            reject: self.regressed().is_some(),
            ..Message::new(MessageKind::Status, self.config.id, to)
        };
        self.tell_acknowledgements(std::slice::from_mut(&mut message));
        message
    }

    /// A member lacks what it acknowledged to this leader, and gets it again.
    pub(super) fn receive_status(&mut self, message: &Message) {
        if !self.is_leader() {
            return;
        }
        let known = self.acknowledgements.of(message.from).unwrap_or_default();
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

    /// A leader that counts on more than is here does not know yet. What it takes for committed here is not, until it
    /// has sent that again.
    pub(super) fn correct_heartbeat(&self, message: &mut Message, effects: &mut Vec<Effect>) {
        let log = &self.node.raft.raft_log;
        if self.regressed().is_none() && message.commit <= log.last_index() {
            return;
        }
        message.commit = message.commit.min(log.committed);
        super::send(vec![self.status(message.from)], effects);
    }

    /// Says what is wrong, when that changed.
    pub(super) fn report_durability(&mut self, effects: &mut Vec<Effect>) {
        let mut now = Durability { regressed: self.regressed(), lost: self.durability.lost };
        let log = &self.node.raft.raft_log;
        let term_of = |index| log.term(index).ok().filter(|term| *term > 0);
        if let Some(term) = term_of(log.committed) {
            let committed = Position { term, index: log.committed };
            now.lost = now.lost.max(self.acknowledgements.find_lost(committed, term_of));
        }
        if now != self.durability {
            // A restart must not forget it, even of a member that nobody sends anything to write.
            self.regression_unwritten |=
                now.regressed > self.durability.regressed && self.acknowledgements.is_changed();
            self.durability = now;
            effects.push(Effect::Durability(now));
        }
    }
}
