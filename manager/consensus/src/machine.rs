//! The machine: the raft crate's `RawNode` behind events and effects.
//!
//! How one call runs: every event is given to raft; then, as long as raft has something ready, one
//! step ("Ready") is taken out of it and turned into effects. Raft goes on at once, before the
//! step's write is durable (its asynchronous way); [`Writes`] holds back what must wait.

use raft::{RawNode, SnapshotStatus, StateRole, eraftpb};
use slog::{Discard, Logger, o};

use crate::{
    Config, DropReason, Effect, Event, HardState, Message, MessageKind, Persist, Proposal, Restored, Result,
    Role, convert,
    election::ElectionTimeouts,
    log::Log,
    proposals::Proposals,
    writes::{Write, Writes},
};

/// One member of the group.
///
/// # Panics
/// The raft crate panics when another member claims what cannot be, such as a commit index this
/// member's log never reached: it lost its disk and came back under its old id. Nothing can be
/// trusted then, and the process must end.
pub struct Machine {
    node: RawNode<Log>,
    config: Config,
    timeouts: ElectionTimeouts,
    proposals: Proposals,
    writes: Writes,
    /// The hard state now, and as the latest write has it.
    hard_state: HardState,
    written: HardState,
    /// The last entry given out to be applied, or covered by a snapshot to be loaded.
    handed_out: u64,
    reported: Option<(u64, Role, Option<u64>)>,
}

impl Machine {
    /// Makes a member of what it had on its disk, and its first effects. The only voter of a
    /// group campaigns at once; it leads as soon as its first write is done.
    ///
    /// # Errors
    /// If the settings do not work, or no member can have written what was restored.
    pub fn new(config: Config, restored: Restored) -> Result<(Self, Vec<Effect>)> {
        restored.verify()?;
        let applied = restored.applied();
        let settings = config.to_raft(applied);
        settings.validate().map_err(|error| crate::Error::Config(error.to_string()))?;
        let hard_state = restored.known_hard_state();
        let written = restored.hard_state;
        let alone = restored.conf_state.voters == [config.id];
        let node = RawNode::new(&settings, Log::new(restored), &Logger::root(Discard, o!()))
            .map_err(|error| crate::Error::Config(error.to_string()))?;
        let mut machine = Self {
            node,
            timeouts: ElectionTimeouts::new(config.seed, config.id, config.election_ticks.clone()),
            config,
            proposals: Proposals::default(),
            writes: Writes::default(),
            hard_state,
            written,
            handed_out: applied,
            reported: None,
        };
        if alone {
            let campaign = machine.node.campaign();
            campaign.expect("a voter whose log is on its disk can always campaign");
        }
        machine.set_election_timeout();
        let mut effects = Vec::new();
        machine.collect(&mut effects);
        Ok((machine, effects))
    }

    /// Takes one event; see [`Machine::on_all`].
    pub fn on(&mut self, event: Event) -> Vec<Effect> {
        self.on_all([event])
    }

    /// Takes what happened, in order, and says what to do about all of it, in order. Events that
    /// wait together are best taken together: they share writes and messages.
    ///
    /// # Panics
    /// If [`Event::Persisted`], [`Event::Applied`] or [`Event::Snapshotted`] claims something the
    /// machine never asked for. Repeating one is harmless.
    pub fn on_all(&mut self, events: impl IntoIterator<Item = Event>) -> Vec<Effect> {
        let mut effects = Vec::new();
        for event in events {
            self.take(event, &mut effects);
            self.set_election_timeout();
        }
        self.collect(&mut effects);
        effects
    }

    fn take(&mut self, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Tick => {
                if self.is_leader() || self.may_campaign() {
                    self.node.tick();
                }
            }
            Event::Propose(proposals) => self.propose(proposals, effects),
            Event::Message(message) => self.receive(message),
            Event::Persisted { number } => {
                for write in self.writes.finish(number) {
                    self.finish(write, effects);
                }
            }
            Event::Applied { index } => self.applied(index),
            Event::ReadIndex { ctx } => self.node.read_index(self.read_key(ctx).into()),
            Event::Snapshotted { index } => self.snapshotted(index, effects),
            Event::SnapshotSent { to, delivered } => {
                let status = if delivered { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
                self.node.report_snapshot(to, status);
            }
            Event::Unreachable { to } => self.node.report_unreachable(to),
        }
    }

    fn is_leader(&self) -> bool {
        self.node.raft.state == StateRole::Leader
    }

    fn leader(&self) -> Option<u64> {
        Some(self.node.raft.leader_id).filter(|id| *id != raft::INVALID_ID)
    }

    /// Raft takes it for granted that a member's whole log is durable when it asks for votes, and
    /// that a snapshot it received is loaded. A member with a slow disk waits; it would make a
    /// bad leader anyway.
    fn may_campaign(&self) -> bool {
        let log = &self.node.raft.raft_log;
        log.persisted == log.last_index()
    }

    fn propose(&mut self, proposals: Vec<Proposal>, effects: &mut Vec<Effect>) {
        let (proposals, empty): (Vec<_>, Vec<_>) =
            proposals.into_iter().partition(|proposal| !proposal.data.is_empty());
        drop_all(empty.iter().map(|proposal| proposal.id), DropReason::Empty, effects);
        let ids: Vec<u64> = proposals.iter().map(|proposal| proposal.id).collect();
        if ids.is_empty() {
            return;
        }
        // A follower of the raft crate would forward it to the leader and never hear of it again.
        if !self.is_leader() {
            return drop_all(ids, DropReason::NotLeader { leader: self.leader() }, effects);
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

    fn receive(&mut self, message: Message) {
        let reads = matches!(message.kind, MessageKind::ReadIndex | MessageKind::ReadIndexResponse);
        let useless = message.to != self.config.id
            || (reads && message.entries.len() != 1)
            || (message.kind == MessageKind::TimeoutNow && !self.may_campaign());
        if useless {
            return;
        }
        // The only error is an answer from someone who is not in the group: it means nothing.
        let _ = self.node.step(convert::message_to_raft(message));
    }

    fn applied(&mut self, index: u64) {
        let handed_out = self.handed_out;
        assert!(index <= handed_out, "entry {index} was applied, only {handed_out} are committed");
        if index > self.node.raft.raft_log.applied {
            self.node.advance_apply_to(index);
        }
    }

    fn snapshotted(&mut self, index: u64, effects: &mut Vec<Effect>) {
        let applied = self.node.raft.raft_log.applied;
        assert!(index <= applied, "a snapshot of entry {index}, only {applied} are applied");
        let keep = self.config.keep_entries;
        let log = self.node.mut_store();
        if index <= log.snapshot_index() {
            return;
        }
        let snapshot = log.set_snapshot(index);
        let up_to = index.saturating_sub(keep);
        log.compact(up_to);
        effects.push(Effect::Compact { snapshot, up_to });
    }

    /// Takes everything out of raft that is ready.
    fn collect(&mut self, effects: &mut Vec<Effect>) {
        self.report_role(effects);
        while self.node.has_ready() {
            self.step(effects);
        }
    }

    fn report_role(&mut self, effects: &mut Vec<Effect>) {
        let raft = &self.node.raft;
        let role = match raft.state {
            StateRole::Leader => Role::Leader,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
            StateRole::Follower => Role::Follower,
        };
        let (term, leader) = (raft.term, self.leader());
        if self.reported != Some((term, role, leader)) {
            self.reported = Some((term, role, leader));
            effects.push(Effect::Role { term, role, leader });
        }
    }

    /// Takes one step out of raft.
    fn step(&mut self, effects: &mut Vec<Effect>) {
        let mut ready = self.node.ready();
        let hard_state = ready.hs().map_or(self.hard_state, convert::hard_state_from_raft);
        let votes = (hard_state.term, hard_state.vote) != (self.hard_state.term, self.hard_state.vote);
        self.hard_state = hard_state;
        let snapshot = convert::snapshot_from_raft(ready.snapshot());
        if let Some(snapshot) = &snapshot {
            self.node.mut_store().install(snapshot.clone());
            self.proposals.cover(snapshot.index, effects);
            self.handed_out = snapshot.index;
        }
        let entries = ready.take_entries();
        self.node.mut_store().append(&entries);
        let early = from_raft(ready.take_messages());
        let late = from_raft(ready.take_persisted_messages());
        let committed = ready.take_committed_entries();
        let mut write = Write {
            number: ready.number(),
            asked: ready.must_sync(),
            votes,
            snapshot: snapshot.as_ref().map(|snapshot| snapshot.index),
            messages: late,
        };
        for read in ready.take_read_states() {
            effects.extend(self.read_ready(&read));
        }
        self.node.advance_append_async(ready);

        // A leader sends entries to the others while it writes them itself (Raft thesis, 10.2.1),
        // but not before its term is durable.
        if votes || self.writes.vote_waits() {
            write.messages.splice(..0, early);
        } else {
            send(early, effects);
        }
        self.apply(committed, effects);
        if write.asked {
            let hard_state = Some(hard_state).filter(|new| *new != self.written);
            self.written = self.hard_state;
            let entries = entries.into_iter().map(convert::entry_from_raft).collect();
            effects.push(Effect::Persist(Persist { number: write.number, snapshot, entries, hard_state }));
        }
        if let Some(write) = self.writes.begin(write) {
            self.finish(write, effects);
        }
    }

    fn apply(&mut self, committed: Vec<eraftpb::Entry>, effects: &mut Vec<Effect>) {
        let Some(last) = committed.last() else { return };
        self.handed_out = last.index;
        let committed = committed
            .into_iter()
            .map(|entry| self.proposals.commit(convert::entry_from_raft(entry), effects))
            .collect();
        effects.push(Effect::Apply(committed));
    }

    /// A step is durable.
    fn finish(&mut self, write: Write, effects: &mut Vec<Effect>) {
        self.node.on_persist_ready(write.number);
        // Loading the snapshot is part of its write, so its entries are applied as well.
        if let Some(index) = write.snapshot {
            self.applied(index);
        }
        send(write.messages, effects);
    }

    /// Tells this run's reads from those of other members and of earlier runs, whose answers may
    /// still be on their way.
    fn read_key(&self, ctx: u64) -> [u8; 24] {
        let mut key = [0; 24];
        for (part, value) in key.chunks_exact_mut(8).zip([self.config.id, self.config.seed, ctx]) {
            part.copy_from_slice(&value.to_le_bytes());
        }
        key
    }

    fn read_ready(&self, read: &raft::ReadState) -> Option<Effect> {
        let ctx = read.request_ctx.last_chunk().map(|ctx| u64::from_le_bytes(*ctx))?;
        let ours = read.request_ctx == self.read_key(ctx);
        ours.then_some(Effect::ReadReady { ctx, index: read.index })
    }

    fn set_election_timeout(&mut self) {
        let raft = &mut self.node.raft;
        let ticks = self.timeouts.draw(raft.term, raft.state);
        raft.set_randomized_election_timeout(ticks);
    }
}

fn drop_all(ids: impl IntoIterator<Item = u64>, reason: DropReason, effects: &mut Vec<Effect>) {
    effects.extend(ids.into_iter().map(|proposal| Effect::Dropped { proposal, reason }));
}

fn from_raft(messages: Vec<eraftpb::Message>) -> Vec<Message> {
    messages.into_iter().map(convert::message_from_raft).collect()
}

fn send(messages: Vec<Message>, effects: &mut Vec<Effect>) {
    if !messages.is_empty() {
        effects.push(Effect::Send(messages));
    }
}
