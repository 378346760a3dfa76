//! One manager: its raft machine, its state, and the callers that wait.
//!
//! Raft's effects are returned in order by [`Replica::next_effect`]; the caller executes IO and applies entries with
//! [`Replica::apply`]. [`Replica::take_output`] then returns what was decided: the changes to publish, and the answers
//! that are sent after the publication, so that a caller that got its answer reads its own write.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use warren_consensus::{
    CommittedEntry, ConfState, DropReason, DurabilityStatus, Effect, EntryKind, Event, MemberChange,
    Proposal, RaftMachine, RaftRole, SnapshotMeta,
};
use warren_core::events::{ClusterEvent, events_of};
use warren_core::{AppliedIndex, ApplyOutcome, Command, State, StateChange};
use warren_types::MemberId;

use crate::{ChangeError, CommandResult, IndeterminateReason, ProposeError, ReadRounds, ReplicaRole};

/// A command that was applied here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedWrite {
    /// Its index and term in the log.
    pub position: AppliedIndex,
    /// Its outcome.
    pub result: CommandResult,
}

/// The changes of one applied entry.
#[derive(Debug, Clone)]
pub struct ChangeBatch {
    /// Raft index of the entry.
    pub index: u64,
    /// The changed keys.
    pub changes: Arc<[StateChange]>,
}

/// Changes applied since the last publication.
#[derive(Debug, Default)]
pub struct Publication {
    /// The changed keys.
    pub batches: Vec<ChangeBatch>,
    /// The same for users.
    pub events: Vec<ClusterEvent>,
    /// Results of the commands; only needed while other managers may lead.
    pub results: Vec<(AppliedIndex, CommandResult)>,
    /// A snapshot replaced the state; the changes came after it.
    pub is_replaced: bool,
}

impl From<Vec<ChangeBatch>> for Publication {
    fn from(batches: Vec<ChangeBatch>) -> Self {
        Self { batches, ..Self::default() }
    }
}

/// What was decided since the last output. The answers are sent after the publication.
#[derive(Debug)]
pub struct ReplicaOutput<W, C, R> {
    /// `None` if nothing changed that readers see.
    pub publication: Option<Publication>,
    /// The answers to writes.
    pub writes: Vec<(W, Result<AppliedWrite, ProposeError>)>,
    /// The answers to membership changes.
    pub changes: Vec<(C, Result<(), ChangeError>)>,
    /// The reads that the state covers now.
    pub reads: Vec<R>,
}

/// The caller that waits for a proposal.
enum Waiter<W, C> {
    Write(W),
    Change(C),
}

/// See the module documentation. `W`, `C` and `R` identify the callers of writes, membership changes and reads.
pub struct Replica<W, C, R> {
    own_id: MemberId,
    raft: RaftMachine,
    state: State,
    applied: AppliedIndex,
    role: ReplicaRole,
    members: Arc<ConfState>,
    durability: DurabilityStatus,
    has_leader_contact: bool,
    /// Waiting callers by proposal number.
    waiters: BTreeMap<u64, Waiter<W, C>>,
    next_proposal: u64,
    reads: ReadRounds<R>,
    /// Events for raft once all effects are executed.
    events: Vec<Event>,
    /// Effects that are not executed yet, in order.
    effects: VecDeque<Effect>,
    is_changed: bool,
    publication: Publication,
    writes: Vec<(W, Result<AppliedWrite, ProposeError>)>,
    changes: Vec<(C, Result<(), ChangeError>)>,
}

impl<W, C, R> Replica<W, C, R> {
    /// A replica of the member `own_id` with the restored machine, its first effects, and the state of the latest
    /// snapshot.
    pub fn new(own_id: MemberId, (raft, effects): (RaftMachine, Vec<Effect>), state: State) -> Self {
        Self {
            own_id,
            applied: state.applied(),
            state,
            role: ReplicaRole::default(),
            members: Arc::new(raft.members().clone()),
            raft,
            durability: DurabilityStatus::default(),
            has_leader_contact: false,
            waiters: BTreeMap::new(),
            next_proposal: 1,
            reads: ReadRounds::default(),
            events: Vec::new(),
            effects: effects.into(),
            is_changed: true,
            publication: Publication::default(),
            writes: Vec::new(),
            changes: Vec::new(),
        }
    }

    /// The raft machine.
    pub fn raft(&self) -> &RaftMachine {
        &self.raft
    }

    /// The state after the last applied entry.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The last applied entry.
    pub fn applied(&self) -> AppliedIndex {
        self.applied
    }

    /// The role.
    pub fn role(&self) -> ReplicaRole {
        self.role
    }

    /// The newest raft configuration known to be committed.
    pub fn members(&self) -> &Arc<ConfState> {
        &self.members
    }

    /// Problems with acknowledged entries.
    pub fn durability(&self) -> DurabilityStatus {
        self.durability
    }

    /// Whether there was contact with a leader, possibly this manager, since the last call.
    pub fn take_leader_contact(&mut self) -> bool {
        std::mem::take(&mut self.has_leader_contact)
    }

    /// Queues an event for raft.
    pub fn add_event(&mut self, event: Event) {
        self.has_leader_contact |= match &event {
            Event::Tick => self.role.is_leader,
            Event::MessageReceived(message) => self.role.is_led_by(message),
            _ => false,
        };
        self.events.push(event);
    }

    /// Queues commands of these callers. They share one write.
    pub fn propose(&mut self, commands: impl IntoIterator<Item = (W, Bytes)>) {
        let mut proposals = Vec::new();
        for (caller, data) in commands {
            proposals.push(Proposal { id: self.add_waiter(Waiter::Write(caller)), data });
        }
        if !proposals.is_empty() {
            self.events.push(Event::Propose(proposals));
        }
    }

    /// Queues a membership change.
    pub fn change_members(&mut self, caller: C, change: MemberChange) {
        let id = self.add_waiter(Waiter::Change(caller));
        self.events.push(Event::ChangeMembers { id, change });
    }

    /// Adds a linearizable read: it is in the output when the state contains everything committed before.
    pub fn read(&mut self, caller: R) {
        self.reads.add(caller);
    }

    /// Starts a read index round at `now` if reads wait; reads whose caller `has_left` do not count.
    pub fn start_read_round(&mut self, now: Duration, has_left: impl Fn(&R) -> bool) {
        let context = self.reads.next_context(now, has_left);
        self.events.extend(context.map(|ctx| Event::ReadIndex { ctx }));
    }

    /// Whether events are queued and all effects of the earlier ones were taken.
    pub fn can_handle_events(&self) -> bool {
        self.effects.is_empty() && !self.events.is_empty()
    }

    /// Whether events are queued.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Whether a durable write is among the queued events.
    pub fn has_persisted(&self) -> bool {
        self.events.iter().any(|event| matches!(event, Event::Persisted { .. }))
    }

    /// Passes the queued events to raft. Does nothing unless [`Replica::can_handle_events`]: effects are ordered.
    pub fn handle_events(&mut self) {
        if self.can_handle_events() {
            self.effects.extend(self.raft.handle_all(self.events.drain(..)));
        }
    }

    /// The next effect. What it changes here is done; writing, sending and [`Replica::apply`] are left to the caller.
    pub fn next_effect(&mut self) -> Option<Effect> {
        let effect = self.effects.pop_front()?;
        match &effect {
            Effect::RoleChanged { term, role, leader } => {
                self.role = self.role.changed(*term, *role == RaftRole::Leader, *leader);
                self.has_leader_contact |= leader.is_some();
                self.is_changed = true;
                self.reads.retry();
            }
            Effect::MembersChanged { members, .. } => {
                self.members = Arc::new(members.clone());
                self.is_changed = true;
            }
            Effect::DurabilityChanged(durability) => {
                self.durability = *durability;
                self.is_changed = true;
            }
            Effect::ProposalDropped { proposal, reason } => self.fail_proposal(*proposal, *reason),
            Effect::ReadReady { ctx, index } => self.reads.on_read_index(*ctx, *index),
            Effect::Persist(_)
            | Effect::Compact { .. }
            | Effect::Send(_)
            | Effect::Apply(_)
            | Effect::Fatal(_) => {}
        }
        Some(effect)
    }

    /// Applies a committed entry; `command` is its command, if it has one. Returns the command's outcome. After the
    /// last entry of an [`Effect::Apply`], add [`Event::Applied`].
    pub fn apply(&mut self, committed: &CommittedEntry, command: Option<&Command>) -> Option<ApplyOutcome> {
        let position = AppliedIndex { term: committed.entry.term, index: committed.entry.index };
        self.applied = position;
        self.is_changed = true;
        if self.role.record_applied(position.term) {
            self.reads.retry();
        }
        let waiter = committed.proposal.and_then(|id| self.waiters.remove(&id));
        let Some(command) = command.filter(|_| committed.entry.kind == EntryKind::Command) else {
            self.state.advance_to(position);
            if let Some(Waiter::Change(caller)) = waiter {
                self.changes.push((caller, Ok(())));
            }
            return None;
        };
        let before = self.state.objects();
        let outcome = self.state.apply(position.term, position.index, command);
        if let ApplyOutcome::Applied { changes, .. } = &outcome {
            self.publication.events.extend(events_of(&before, &self.state, changes));
            let batch = ChangeBatch { index: position.index, changes: changes.as_slice().into() };
            self.publication.batches.push(batch);
        }
        if self.has_other_members() {
            self.publication.results.push((position, command_result(&outcome)));
        }
        if let Some(Waiter::Write(caller)) = waiter {
            self.writes.push((caller, Ok(AppliedWrite { position, result: command_result(&outcome) })));
        }
        Some(outcome)
    }

    /// Replaces the state by that of the leader's snapshot, which the log points to.
    pub fn install(&mut self, meta: &SnapshotMeta, state: State) {
        self.state = state;
        self.applied = AppliedIndex { term: meta.term, index: meta.index };
        self.is_changed = true;
        // The snapshot covers all unpublished changes.
        self.publication = Publication { is_replaced: true, ..Publication::default() };
    }

    /// The output has a publication, for example because the log write stalled.
    pub fn mark_changed(&mut self) {
        self.is_changed = true;
    }

    /// Whether a caller or watcher waits for the output.
    pub fn is_output_awaited(&self) -> bool {
        !(self.writes.is_empty() && self.changes.is_empty() && self.publication.batches.is_empty())
    }

    /// What was decided since the last call.
    pub fn take_output(&mut self) -> ReplicaOutput<W, C, R> {
        let publication = std::mem::take(&mut self.publication);
        ReplicaOutput {
            publication: std::mem::take(&mut self.is_changed).then_some(publication),
            writes: std::mem::take(&mut self.writes),
            changes: std::mem::take(&mut self.changes),
            reads: self.reads.take_ready(self.applied.index),
        }
    }

    /// Whether a stopping leader should transfer its leadership, so that the others need not wait for an election
    /// timeout: another voter could lead.
    pub fn should_transfer_leadership(&self) -> bool {
        let voters = &self.members.voters;
        self.raft.peers().iter().any(|peer| peer.active && voters.contains(&peer.id))
    }

    /// Whether another member leads, so that this manager is not needed for an election.
    pub fn can_stop(&self) -> bool {
        !self.role.is_leader && self.role.leader_id.is_some()
    }

    /// The replica ends: fails all waiting callers, in the next output.
    pub fn fail_waiters(&mut self) {
        self.is_changed = true;
        for waiter in std::mem::take(&mut self.waiters).into_values() {
            let unknown = ProposeError::Indeterminate(IndeterminateReason::DriverEnded);
            self.fail(waiter, unknown, ChangeError::Indeterminate);
        }
    }

    /// Registers a waiting caller and returns its proposal number.
    fn add_waiter(&mut self, waiter: Waiter<W, C>) -> u64 {
        let id = self.next_proposal;
        self.next_proposal += 1;
        self.waiters.insert(id, waiter);
        id
    }

    /// Answers the caller of a proposal that raft dropped.
    fn fail_proposal(&mut self, proposal: u64, reason: DropReason) {
        if let Some(waiter) = self.waiters.remove(&proposal) {
            self.fail(waiter, reason.into(), reason.into());
        }
    }

    fn fail(&mut self, waiter: Waiter<W, C>, write: ProposeError, change: ChangeError) {
        match waiter {
            Waiter::Write(caller) => self.writes.push((caller, Err(write))),
            Waiter::Change(caller) => self.changes.push((caller, Err(change))),
        }
    }

    fn has_other_members(&self) -> bool {
        let ConfState { voters, learners, voters_outgoing, .. } = &*self.members;
        let is_other = |id: &u64| *id != self.own_id;
        voters.iter().any(is_other) || learners.iter().any(is_other) || voters_outgoing.iter().any(is_other)
    }
}

/// The answer to a command's caller: the object as the command's own entry left it. Built from any later state it
/// would show writes of others, and its version would let a compare-and-set overwrite them.
pub fn command_result(outcome: &ApplyOutcome) -> CommandResult {
    match outcome {
        ApplyOutcome::Applied { response: answer, .. } | ApplyOutcome::Unchanged { answer } => {
            Ok(answer.clone())
        }
        ApplyOutcome::Rejected(refusal) => Err(refusal.clone()),
    }
}
