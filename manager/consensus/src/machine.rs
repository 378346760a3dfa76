//! The machine: the raft crate's `RawNode` behind events and effects.
//!
//! How one call runs: every event is given to raft; then, as long as raft has something ready, one
//! step ("Ready") is taken out of it and turned into effects. Raft goes on at once, before the
//! step's write is durable (its asynchronous way); [`Writes`] holds back what must wait.
//!
//! `machine/proposing.rs`, `receiving.rs`, `changing.rs` and `reading.rs` have the events that need
//! more than a line; `presence.rs` remembers who answers a leader, `regression.rs` has members whose data is older than
//! what they acknowledged.

use raft::{
    RawNode, SnapshotStatus, StateRole,
    eraftpb::{self, EntryType},
};
use slog::{Discard, Logger, o};

use crate::{
    Committed, ConfState, Config, Effect, EntryKind, Event, HardState, Message, Persist, Restored, Result,
    Role, SnapshotMeta,
    acknowledgements::Acknowledgements,
    convert,
    election::ElectionTimeouts,
    log::Log,
    proposals::Proposals,
    writes::{Write, Writes},
};

mod changing;
mod presence;
mod proposing;
mod reading;
mod receiving;
mod regression;

pub use changing::Peer;
pub use regression::Durability;

/// One member of the group.
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
    presence: presence::Presence,
    acknowledgements: Acknowledgements,
    /// As it was last given out.
    durability: Durability,
    /// It was found that the own log went back, and the disk does not know.
    regression_unwritten: bool,
    reported: Option<(u64, Role, Option<u64>)>,
    /// [`Effect::Fatal`] was given out.
    stopped: bool,
}

impl Machine {
    /// Makes a member of what it had on its disk, and its first effects. The only voter of a
    /// group campaigns as soon as every change of members it knows to be committed is applied,
    /// which is at once if there is none; it leads as soon as its first write is done.
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
        let acknowledgements = Acknowledgements::restored(&restored.acknowledged);
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
            presence: presence::Presence::default(),
            acknowledgements,
            durability: Durability::default(),
            regression_unwritten: false,
            reported: None,
            stopped: false,
        };
        machine.campaign_if_alone();
        machine.set_election_timeout();
        let mut effects = Vec::new();
        machine.note_acknowledgements();
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
    /// machine never asked for. Repeating one is harmless. No [`Event::Message`] makes it panic.
    pub fn on_all(&mut self, events: impl IntoIterator<Item = Event>) -> Vec<Effect> {
        let mut effects = Vec::new();
        for event in events {
            if self.stopped {
                return effects;
            }
            self.take(event, &mut effects);
            self.set_election_timeout();
        }
        self.campaign_if_alone();
        self.collect(&mut effects);
        self.set_election_timeout();
        effects
    }

    /// The members as of the last entry handed out; at the start, as of the restored snapshot.
    pub fn members(&self) -> &ConfState {
        self.node.store().members()
    }

    /// What a snapshot of the state covers that has applied everything up to `index`, and nothing
    /// after it. `None` if that is not known any more: a later snapshot is there already.
    ///
    /// # Panics
    /// If the entry at `index` was not handed out yet.
    pub fn snapshot_meta(&self, index: u64) -> Option<SnapshotMeta> {
        let handed_out = self.handed_out;
        assert!(index <= handed_out, "a snapshot of entry {index}, only {handed_out} are committed");
        self.node.store().snapshot_meta(index)
    }

    fn take(&mut self, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Tick => {
                if self.is_leader() {
                    self.note_presence();
                }
                if self.is_leader() || self.may_campaign() {
                    self.node.tick();
                } else if self.must_not_lead() {
                    self.expire_leader();
                }
            }
            Event::Propose(proposals) => self.propose(proposals, effects),
            Event::ChangeMembers { id, change } => self.change_members(id, change, effects),
            Event::TransferLeader { to } => self.transfer_leader(to),
            Event::Message(message) => self.receive(message, effects),
            Event::Persisted { number } => {
                for write in self.writes.finish(number) {
                    self.finish(write, effects);
                }
            }
            Event::Applied { index } => self.applied(index),
            Event::ReadIndex { ctx } => self.read_index(ctx),
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
    /// bad leader anyway. Raft itself waits for changes of members that are committed and not
    /// applied. A member that lacks an acknowledged entry waits for a leader.
    fn may_campaign(&self) -> bool {
        let log = &self.node.raft.raft_log;
        log.persisted == log.last_index() && !self.must_not_lead()
    }

    /// The only voter need not wait for anyone's silence.
    fn campaign_if_alone(&mut self) {
        let ConfState { voters, voters_outgoing, .. } = self.members();
        let alone = *voters == [self.config.id] && voters_outgoing.is_empty();
        if !alone || self.is_leader() || !self.may_campaign() {
            return;
        }
        let log = &self.node.raft.raft_log;
        if self.node.store().members_since() <= log.applied {
            let campaign = self.node.campaign();
            campaign.expect("a voter whose log is on its disk can always campaign");
        }
    }

    fn applied(&mut self, index: u64) {
        let handed_out = self.handed_out;
        assert!(index <= handed_out, "entry {index} was applied, only {handed_out} are committed");
        if index <= self.node.raft.raft_log.applied {
            return;
        }
        let last = self.node.raft.raft_log.last_index();
        self.node.advance_apply_to(index);
        // Raft ends a joint phase with an entry of its own, and forgets to send it.
        if self.node.raft.raft_log.last_index() > last {
            self.node.raft.bcast_append();
        }
    }

    fn snapshotted(&mut self, index: u64, effects: &mut Vec<Effect>) {
        let applied = self.node.raft.raft_log.applied;
        assert!(index <= applied, "a snapshot of entry {index}, only {applied} are applied");
        if index <= self.node.store().snapshot_index() {
            return;
        }
        let snapshot = self.snapshot_meta(index);
        let snapshot = snapshot.expect("the log reaches back to the latest snapshot");
        let up_to = index.saturating_sub(self.config.keep_entries);
        let log = self.node.mut_store();
        log.set_snapshot(snapshot.clone());
        log.compact(up_to);
        effects.push(Effect::Compact { snapshot, up_to });
    }

    /// Takes everything out of raft that is ready.
    fn collect(&mut self, effects: &mut Vec<Effect>) {
        if self.stopped {
            return;
        }
        self.report_role(effects);
        self.report_durability(effects);
        while !self.stopped && (self.node.has_ready() || self.regression_unwritten) {
            self.step(effects);
            if self.stopped {
                return;
            }
            // A leader that hands out its own removal leads no more.
            self.report_role(effects);
        }
        if !self.stopped {
            self.report_durability(effects);
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
        self.note_acknowledgements();
        let mut ready = self.node.ready();
        let hard_state = ready.hs().map_or(self.hard_state, convert::hard_state_from_raft);
        let votes = (hard_state.term, hard_state.vote) != (self.hard_state.term, self.hard_state.vote);
        self.hard_state = hard_state;
        let snapshot = convert::snapshot_from_raft(ready.snapshot());
        if let Some(snapshot) = &snapshot {
            self.install(snapshot, effects);
        }
        let entries: Vec<_> = ready.take_entries().into_iter().map(convert::entry_from_raft).collect();
        self.node.mut_store().append(&entries);
        let early = from_raft(ready.take_messages());
        let late = from_raft(ready.take_persisted_messages());
        let committed = ready.take_committed_entries();
        // Members that left are not there to tell again what is committed.
        let changes = committed.iter().any(|entry| entry.entry_type != EntryType::EntryNormal);
        let mut write = Write {
            number: ready.number(),
            asked: std::mem::take(&mut self.regression_unwritten)
                || ready.must_sync()
                || (changes && self.hard_state != self.written),
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
            self.send(early, effects);
        }
        self.hand_out(committed, effects);
        if self.stopped {
            // As if it had crashed before the write: nothing that depends on it was said.
            return;
        }
        if write.asked {
            let hard_state = Some(hard_state).filter(|new| *new != self.written);
            self.written = self.hard_state;
            let (number, acknowledged) = (write.number, self.acknowledgements.take_changed());
            effects.push(Effect::Persist(Persist { number, snapshot, entries, hard_state, acknowledged }));
        }
        if let Some(write) = self.writes.begin(write) {
            self.finish(write, effects);
        }
    }

    fn install(&mut self, snapshot: &SnapshotMeta, effects: &mut Vec<Effect>) {
        let changed = *self.members() != snapshot.conf_state;
        self.acknowledgements
            .retain(|id| id == self.config.id || crate::members::include(&snapshot.conf_state, id));
        self.node.mut_store().install(snapshot.clone());
        self.proposals.cover(snapshot.index, effects);
        self.handed_out = snapshot.index;
        if changed {
            effects.push(Effect::Members { index: snapshot.index, members: snapshot.conf_state.clone() });
        }
    }

    fn hand_out(&mut self, committed: Vec<eraftpb::Entry>, effects: &mut Vec<Effect>) {
        let mut handed_out = Vec::with_capacity(committed.len());
        for entry in committed {
            let entry = convert::entry_from_raft(entry);
            if entry.kind == EntryKind::Membership
                && let Err(fatal) = self.change(&entry, effects)
            {
                self.stop(*fatal, effects);
                return;
            }
            self.handed_out = entry.index;
            let proposal = self.proposals.commit(&entry, effects);
            handed_out.push(Committed { entry, proposal });
        }
        if !handed_out.is_empty() {
            effects.push(Effect::Apply(handed_out));
        }
    }

    /// A step is durable.
    fn finish(&mut self, write: Write, effects: &mut Vec<Effect>) {
        self.node.on_persist_ready(write.number);
        // Loading the snapshot is part of its write, so its entries are applied as well.
        if let Some(index) = write.snapshot {
            self.applied(index);
        }
        self.send(write.messages, effects);
    }

    fn send(&self, mut messages: Vec<Message>, effects: &mut Vec<Effect>) {
        self.tell_acknowledgements(&mut messages);
        send(messages, effects);
    }

    fn set_election_timeout(&mut self) {
        let raft = &mut self.node.raft;
        let ticks = self.timeouts.draw(raft.term, raft.state);
        raft.set_randomized_election_timeout(ticks);
    }
}

fn from_raft(messages: Vec<eraftpb::Message>) -> Vec<Message> {
    messages.into_iter().map(convert::message_from_raft).collect()
}

fn send(messages: Vec<Message>, effects: &mut Vec<Effect>) {
    if !messages.is_empty() {
        effects.push(Effect::Send(messages));
    }
}
