//! The raft machine: the raft crate's `RawNode` behind events and effects.
//!
//! One call passes every event to raft; then, as long as raft has a `Ready`, it is taken out and turned into
//! effects. Raft continues immediately, before the write of the `Ready` is durable (its asynchronous mode);
//! [`PendingWrites`] delays what must wait.
//!
//! `machine/propose.rs`, `receive.rs`, `membership_change.rs` and `read_index.rs` handle the events that need
//! more than a line; `peer_activity.rs` records which members respond to a leader, `regression.rs` handles
//! members whose data is older than what they acknowledged.

use raft::{
    RawNode, SnapshotStatus, StateRole,
    eraftpb::{self, EntryType},
};
use slog::{Discard, Logger, o};

use crate::{
    CommittedEntry, ConfState, DurabilityStatus, DurableWrite, Effect, EntryKind, Event, HardState, Message,
    PersistentState, RaftConfig, RaftRole, Result, SnapshotMeta,
    acknowledgements::Acknowledgements,
    convert,
    election::ElectionTimeouts,
    pending_proposals::PendingProposals,
    pending_writes::{PendingWrite, PendingWrites},
    raft_log::RaftLog,
};

mod membership_change;
mod peer_activity;
mod propose;
mod read_index;
mod receive;
mod regression;

pub use membership_change::PeerProgress;

/// One member of the group.
pub struct RaftMachine {
    node: RawNode<RaftLog>,
    config: RaftConfig,
    timeouts: ElectionTimeouts,
    proposals: PendingProposals,
    writes: PendingWrites,
    /// The current hard state, and the one in the latest write.
    hard_state: HardState,
    written_hard_state: HardState,
    /// The last entry delivered to apply, or covered by a snapshot that must be loaded.
    delivered: u64,
    peer_activity: peer_activity::PeerActivity,
    acknowledgements: Acknowledgements,
    /// As last reported.
    durability: DurabilityStatus,
    /// The local log was found to have regressed, and the disk does not record it yet.
    regression_unwritten: bool,
    reported_role: Option<(u64, RaftRole, Option<u64>)>,
    /// [`Effect::Fatal`] was emitted.
    is_stopped: bool,
}

impl RaftMachine {
    /// Restores a member from its persistent state; returns its first effects too. The only voter of a group
    /// campaigns as soon as all membership changes that it knows to be committed are applied, which is
    /// immediately if there are none; it leads as soon as its first write is durable.
    ///
    /// # Errors
    /// If the configuration is invalid, or no member can have written the restored state.
    pub fn new(config: RaftConfig, restored: PersistentState) -> Result<(Self, Vec<Effect>)> {
        restored.verify()?;
        let applied = restored.applied();
        let settings = config.to_raft(applied);
        settings.validate().map_err(|error| crate::Error::InvalidConfig(error.to_string()))?;
        let hard_state = restored.effective_hard_state();
        let written = restored.hard_state;
        let acknowledgements = Acknowledgements::from_stored(&restored.acknowledged);
        let node = RawNode::new(&settings, RaftLog::new(restored), &Logger::root(Discard, o!()))
            .map_err(|error| crate::Error::InvalidConfig(error.to_string()))?;
        let mut machine = Self {
            node,
            timeouts: ElectionTimeouts::new(config.seed, config.id, config.election_ticks.clone()),
            config,
            proposals: PendingProposals::default(),
            writes: PendingWrites::default(),
            hard_state,
            written_hard_state: written,
            delivered: applied,
            peer_activity: peer_activity::PeerActivity::default(),
            acknowledgements,
            durability: DurabilityStatus::default(),
            regression_unwritten: false,
            reported_role: None,
            is_stopped: false,
        };
        machine.campaign_if_sole_voter();
        machine.set_election_timeout();
        let mut effects = Vec::new();
        machine.record_acknowledgements();
        machine.process_all_ready(&mut effects);
        Ok((machine, effects))
    }

    /// Handles one event; see [`RaftMachine::handle_all`].
    pub fn handle(&mut self, event: Event) -> Vec<Effect> {
        self.handle_all([event])
    }

    /// Handles events in order and returns all effects in order. Events that wait together should be handled
    /// together: they share writes and messages.
    ///
    /// # Panics
    /// If [`Event::Persisted`], [`Event::Applied`] or [`Event::Snapshotted`] reports something that the
    /// machine never requested. Repeating one is idempotent. No [`Event::MessageReceived`] makes it panic.
    pub fn handle_all(&mut self, events: impl IntoIterator<Item = Event>) -> Vec<Effect> {
        let mut effects = Vec::new();
        for event in events {
            if self.is_stopped {
                return effects;
            }
            self.handle_event(event, &mut effects);
            self.set_election_timeout();
        }
        self.campaign_if_sole_voter();
        self.process_all_ready(&mut effects);
        self.set_election_timeout();
        effects
    }

    /// The members as of the last entry delivered to apply; at the start, as of the restored snapshot.
    pub fn members(&self) -> &ConfState {
        self.node.store().members()
    }

    /// The metadata of a snapshot of the state that has applied everything up to `index`, and nothing after
    /// it. `None` if it is not known any more because a later snapshot exists.
    ///
    /// # Panics
    /// If the entry at `index` was not delivered yet.
    pub fn snapshot_meta(&self, index: u64) -> Option<SnapshotMeta> {
        let handed_out = self.delivered;
        assert!(index <= handed_out, "a snapshot of entry {index}, only {handed_out} are committed");
        self.node.store().snapshot_meta(index)
    }

    fn handle_event(&mut self, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Tick => {
                if self.is_leader() {
                    self.record_peer_activity();
                }
                if self.is_leader() || self.may_campaign() {
                    self.node.tick();
                } else if self.must_not_lead() {
                    self.expire_leader();
                }
            }
            Event::Propose(proposals) => self.propose(proposals, effects),
            Event::ChangeMembers { id, change } => self.change_members(id, change, effects),
            Event::TransferLeadership { to } => self.transfer_leadership(to),
            Event::MessageReceived(message) => self.receive(message, effects),
            Event::Persisted { number } => {
                for write in self.writes.complete(number) {
                    self.finish_write(write, effects);
                }
            }
            Event::Applied { index } => self.on_applied(index),
            Event::ReadIndex { ctx } => self.read_index(ctx),
            Event::Snapshotted { index } => self.on_snapshotted(index, effects),
            Event::SnapshotSent { to, delivered } => {
                let status = if delivered { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
                self.node.report_snapshot(to, status);
            }
            Event::PeerUnreachable { to } => self.node.report_unreachable(to),
        }
    }

    fn is_leader(&self) -> bool {
        self.node.raft.state == StateRole::Leader
    }

    fn leader(&self) -> Option<u64> {
        Some(self.node.raft.leader_id).filter(|id| *id != raft::INVALID_ID)
    }

    /// Raft assumes that a member's whole log is durable when it asks for votes, and that a received snapshot
    /// is loaded. A member with a slow disk waits; it would make a bad leader anyway. Raft itself waits for
    /// membership changes that are committed and not applied. A member that lacks an acknowledged entry waits
    /// for a leader.
    fn may_campaign(&self) -> bool {
        let log = &self.node.raft.raft_log;
        log.persisted == log.last_index() && !self.must_not_lead()
    }

    /// The only voter does not wait for an election timeout.
    fn campaign_if_sole_voter(&mut self) {
        let ConfState { voters, voters_outgoing, .. } = self.members();
        let alone = *voters == [self.config.id] && voters_outgoing.is_empty();
        if !alone || self.is_leader() || !self.may_campaign() {
            return;
        }
        let log = &self.node.raft.raft_log;
        if self.node.store().members_index() <= log.applied {
            let campaign = self.node.campaign();
            campaign.expect("a voter whose log is on its disk can always campaign");
        }
    }

    fn on_applied(&mut self, index: u64) {
        let handed_out = self.delivered;
        assert!(index <= handed_out, "entry {index} was applied, only {handed_out} are committed");
        if index <= self.node.raft.raft_log.applied {
            return;
        }
        let last = self.node.raft.raft_log.last_index();
        self.node.advance_apply_to(index);
        // Raft ends a joint phase with an entry of its own, and does not send it.
        if self.node.raft.raft_log.last_index() > last {
            self.node.raft.bcast_append();
        }
    }

    fn on_snapshotted(&mut self, index: u64, effects: &mut Vec<Effect>) {
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

    /// Takes all `Ready`s out of raft.
    fn process_all_ready(&mut self, effects: &mut Vec<Effect>) {
        if self.is_stopped {
            return;
        }
        self.report_role(effects);
        self.report_durability(effects);
        while !self.is_stopped && (self.node.has_ready() || self.regression_unwritten) {
            self.process_ready(effects);
            if self.is_stopped {
                return;
            }
            // A leader that delivers its own removal stops leading.
            self.report_role(effects);
        }
        if !self.is_stopped {
            self.report_durability(effects);
        }
    }

    fn report_role(&mut self, effects: &mut Vec<Effect>) {
        let raft = &self.node.raft;
        let role = match raft.state {
            StateRole::Leader => RaftRole::Leader,
            StateRole::Candidate | StateRole::PreCandidate => RaftRole::Candidate,
            StateRole::Follower => RaftRole::Follower,
        };
        let (term, leader) = (raft.term, self.leader());
        if self.reported_role != Some((term, role, leader)) {
            self.reported_role = Some((term, role, leader));
            effects.push(Effect::RoleChanged { term, role, leader });
        }
    }

    /// Takes one `Ready` out of raft.
    fn process_ready(&mut self, effects: &mut Vec<Effect>) {
        self.record_acknowledgements();
        let mut ready = self.node.ready();
        let hard_state = ready.hs().map_or(self.hard_state, convert::hard_state_from_raft);
        let votes = (hard_state.term, hard_state.vote) != (self.hard_state.term, self.hard_state.vote);
        self.hard_state = hard_state;
        let snapshot = convert::snapshot_from_raft(ready.snapshot());
        if let Some(snapshot) = &snapshot {
            self.install_snapshot(snapshot, effects);
        }
        let entries: Vec<_> = ready.take_entries().into_iter().map(convert::entry_from_raft).collect();
        self.node.mut_store().append(&entries);
        let early = from_raft(ready.take_messages());
        let late = from_raft(ready.take_persisted_messages());
        let committed = ready.take_committed_entries();
        // Members that left cannot report the commit again.
        let changes = committed.iter().any(|entry| entry.entry_type != EntryType::EntryNormal);
        let mut write = PendingWrite {
            number: ready.number(),
            needs_persist: std::mem::take(&mut self.regression_unwritten)
                || ready.must_sync()
                || (changes && self.hard_state != self.written_hard_state),
            changes_vote: votes,
            snapshot: snapshot.as_ref().map(|snapshot| snapshot.index),
            messages: late,
        };
        for read in ready.take_read_states() {
            effects.extend(self.read_ready(&read));
        }
        self.node.advance_append_async(ready);

        // A leader sends entries to the others while it writes them itself (Raft thesis, 10.2.1), but not
        // before its term is durable.
        if votes || self.writes.has_unpersisted_vote() {
            write.messages.splice(..0, early);
        } else {
            self.send(early, effects);
        }
        self.deliver_committed(committed, effects);
        if self.is_stopped {
            // As after a crash before the write: nothing that depends on it was sent.
            return;
        }
        if write.needs_persist {
            let hard_state = Some(hard_state).filter(|new| *new != self.written_hard_state);
            self.written_hard_state = self.hard_state;
            let (number, acknowledged) = (write.number, self.acknowledgements.take_changed());
            effects.push(Effect::Persist(DurableWrite {
                number,
                snapshot,
                entries,
                hard_state,
                acknowledged,
            }));
        }
        if let Some(write) = self.writes.push(write) {
            self.finish_write(write, effects);
        }
    }

    fn install_snapshot(&mut self, snapshot: &SnapshotMeta, effects: &mut Vec<Effect>) {
        let changed = *self.members() != snapshot.conf_state;
        self.acknowledgements
            .retain(|id| id == self.config.id || crate::members::contains_member(&snapshot.conf_state, id));
        self.node.mut_store().install(snapshot.clone());
        self.proposals.drop_covered(snapshot.index, effects);
        self.delivered = snapshot.index;
        if changed {
            effects
                .push(Effect::MembersChanged { index: snapshot.index, members: snapshot.conf_state.clone() });
        }
    }

    fn deliver_committed(&mut self, committed: Vec<eraftpb::Entry>, effects: &mut Vec<Effect>) {
        let mut handed_out = Vec::with_capacity(committed.len());
        for entry in committed {
            let entry = convert::entry_from_raft(entry);
            if entry.kind == EntryKind::Membership
                && let Err(fatal) = self.apply_change(&entry, effects)
            {
                self.stop(*fatal, effects);
                return;
            }
            self.delivered = entry.index;
            let proposal = self.proposals.commit(&entry, effects);
            handed_out.push(CommittedEntry { entry, proposal });
        }
        if !handed_out.is_empty() {
            effects.push(Effect::Apply(handed_out));
        }
    }

    /// Handles a `Ready` whose write is durable.
    fn finish_write(&mut self, write: PendingWrite, effects: &mut Vec<Effect>) {
        self.node.on_persist_ready(write.number);
        // Loading the snapshot is part of its write, so its entries are applied as well.
        if let Some(index) = write.snapshot {
            self.on_applied(index);
        }
        self.send(write.messages, effects);
    }

    fn send(&self, mut messages: Vec<Message>, effects: &mut Vec<Effect>) {
        self.attach_acknowledgements(&mut messages);
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
