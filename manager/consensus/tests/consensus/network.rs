//! Members and the messages between them; every outcome is checked when it happens.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::Hasher,
};

use bytes::Bytes;
use warren_consensus::{
    ConfState, DropReason, Event, MemberChange, MembershipEntry, Message, MessageKind, RaftRole,
};

use crate::member::{AppliedEntries, MemberOutput, TestMember};

/// A message in flight, and the data of the snapshot that it announces.
#[derive(Debug, Clone)]
pub struct InFlightMessage {
    pub message: Message,
    content: Option<AppliedEntries>,
}

/// The invariants of a group.
#[derive(Debug, Default)]
pub struct ClusterOracle {
    leaders: BTreeMap<u64, u64>,
    applied: BTreeMap<u64, (u64, Bytes)>,
    /// The members as of each membership change, as first applied by a member.
    members: BTreeMap<u64, ConfState>,
    /// The change in each proposal of a membership change.
    changes: BTreeMap<u64, MemberChange>,
    /// Why membership changes were rejected.
    pub reasons: Vec<DropReason>,
    /// Proposals that were applied, as reported to their proposer.
    pub acknowledged: BTreeSet<u64>,
    /// Proposals that will never be applied, as reported to their proposer.
    pub refused: BTreeSet<u64>,
    /// Proposals whose outcome is unknown, as reported to their proposer.
    pub unknown: BTreeSet<u64>,
    /// The lowest index at which a read may be answered.
    reads: BTreeMap<u64, u64>,
    pub reads_answered: usize,
}

impl ClusterOracle {
    fn check(&mut self, member: u64, outcome: MemberOutput) {
        match outcome {
            MemberOutput::Role { term, role: RaftRole::Leader, .. } => {
                let leader = *self.leaders.entry(term).or_insert(member);
                assert_eq!(leader, member, "two leaders in term {term}");
            }
            MemberOutput::Role { .. } => {}
            MemberOutput::Applied { index, term, data, proposal } => {
                if let Some(id) = proposal {
                    assert_eq!(data, self.data_of(id), "answered with another's entry");
                    assert!(self.acknowledged.insert(id), "{id} was answered twice");
                }
                let first = self.applied.entry(index).or_insert((term, data.clone()));
                assert_eq!(*first, (term, data), "member {member} differs at {index}");
            }
            MemberOutput::Members { index, mut members } => {
                if !self.applied.contains_key(&index) {
                    self.members.insert(index, members.clone());
                }
                let (_, first) = self.members.range(..=index).next_back().unwrap();
                // A snapshot can be sent to a member that was added after it was taken, and lists it as a
                // learner; its receiver keeps that until it applies the addition.
                let ConfState { voters, learners, voters_outgoing, .. } = first;
                let known = |id: &u64| [voters, learners, voters_outgoing].iter().any(|ids| ids.contains(id));
                members.learners.retain(known);
                assert_eq!(*first, members, "member {member} differs at {index}");
            }
            MemberOutput::Fatal(fatal) => panic!("member {member} stopped: {fatal}"),
            MemberOutput::Dropped { proposal, reason: DropReason::Indeterminate } => {
                assert!(self.unknown.insert(proposal), "{proposal} was answered twice");
            }
            MemberOutput::Dropped { proposal, reason } => {
                assert!(self.refused.insert(proposal), "{proposal} was refused twice");
                if self.changes.contains_key(&proposal) {
                    self.reasons.push(reason);
                }
            }
            MemberOutput::ReadReady { ctx, index } => {
                let lowest = self.reads[&ctx];
                assert!(index >= lowest, "read {ctx} at {index} misses what {lowest} did");
                self.reads_answered += 1;
            }
        }
    }

    /// The data of a proposal's entry.
    pub fn data_of(&self, proposal: u64) -> Bytes {
        match self.changes.get(&proposal) {
            Some(change) => MembershipEntry::Change(change.clone()).encode().into(),
            None => format!("command {proposal}").into(),
        }
    }

    /// The user accepts the loss of what was committed after this entry.
    pub fn expect_lost_after(&mut self, index: u64) {
        self.applied.split_off(&(index + 1));
    }

    /// The members as of the last entry that any member applied.
    pub fn members(&self) -> &ConfState {
        self.members.last_key_value().map(|(_, members)| members).expect("there are members")
    }

    /// Each membership change that was applied.
    pub fn history(&self) -> Vec<&ConfState> {
        self.members.values().collect()
    }

    /// Every reported outcome is true.
    pub fn check_answers(&self) {
        let applied: BTreeSet<_> = self.applied.values().map(|(_, data)| data).collect();
        for id in &self.acknowledged {
            assert!(applied.contains(&self.data_of(*id)), "{id} was acknowledged and is lost");
        }
        // Of two equal changes one can be applied and the other rejected.
        for id in self.refused.iter().filter(|id| !self.changes.contains_key(id)) {
            assert!(!applied.contains(&self.data_of(*id)), "{id} was refused and is there");
        }
    }

    /// The leader in the highest term that had one.
    pub fn latest_leader(&self) -> Option<u64> {
        self.leaders.last_key_value().map(|(_, leader)| *leader)
    }

    pub fn terms_with_leaders(&self) -> usize {
        self.leaders.len()
    }

    fn last_applied(&self) -> u64 {
        self.applied.last_key_value().map_or(0, |(index, _)| *index)
    }
}

pub struct TestNetwork {
    pub members: Vec<TestMember>,
    pub in_flight: Vec<InFlightMessage>,
    /// Directions in which no message passes.
    pub cut: BTreeSet<(u64, u64)>,
    /// Members that never start again.
    pub departed: BTreeSet<u64>,
    pub oracle: ClusterOracle,
    seed: u64,
    proposals: u64,
}

impl TestNetwork {
    /// A group of `size` voters with ids from 1, all running.
    pub fn new(size: u64, seed: u64) -> Self {
        Self::with_joiners(size, 0, seed)
    }

    /// A group of `size` voters with ids from 1, and `joiners` more machines with the ids after that, which
    /// are not members yet. All running.
    pub fn with_joiners(size: u64, joiners: u64, seed: u64) -> Self {
        let voters: Vec<u64> = (1..=size).collect();
        let ids = 1..=size + joiners;
        let members = ids.clone().map(|id| TestMember::bootstrap(id, &voters)).collect();
        let mut network = Self {
            members,
            in_flight: Vec::new(),
            cut: BTreeSet::new(),
            departed: BTreeSet::new(),
            oracle: ClusterOracle::default(),
            seed,
            proposals: 0,
        };
        network.oracle.members.insert(0, ConfState::of_voters(voters));
        for id in ids {
            network.start(id);
        }
        network
    }

    pub fn member(&mut self, id: u64) -> &mut TestMember {
        &mut self.members[id as usize - 1]
    }

    pub fn ids(&self) -> Vec<u64> {
        self.members.iter().map(|member| member.id).collect()
    }

    /// Does something to a member, then processes its output.
    pub fn with(&mut self, id: u64, act: impl FnOnce(&mut TestMember)) {
        let member = &mut self.members[id as usize - 1];
        act(member);
        for outcome in member.take_outcomes() {
            self.oracle.check(id, outcome);
        }
        for message in std::mem::take(&mut member.outbox) {
            let meta = message.snapshot.as_ref();
            // Between sending and now a newer snapshot may have replaced the file.
            let content = meta.and_then(|meta| member.snapshots.get(&meta.index).cloned());
            self.in_flight.push(InFlightMessage { message, content });
        }
    }

    pub fn start(&mut self, id: u64) {
        let seed = self.seed;
        if self.departed.contains(&id) {
            return;
        }
        self.with(id, |member| {
            if member.run.is_none() {
                member.start(seed);
            }
        });
    }

    /// A member breaks, and never starts again.
    pub fn lose_member(&mut self, id: u64) {
        self.with(id, |member| member.crash());
        self.departed.insert(id);
    }

    /// Proposes a new command; returns the proposal's id.
    pub fn propose(&mut self, id: u64) -> u64 {
        self.proposals += 1;
        let proposal = self.proposals;
        self.with(id, |member| member.propose(proposal));
        proposal
    }

    /// Proposes a membership change; returns the proposal's id.
    pub fn change(&mut self, id: u64, change: MemberChange) -> u64 {
        self.proposals += 1;
        let proposal = self.proposals;
        self.oracle.changes.insert(proposal, change.clone());
        self.with(id, |member| member.change(proposal, change));
        proposal
    }

    /// Requests a read; it must observe whatever any member has applied by now.
    pub fn read(&mut self, id: u64) {
        let ctx = self.oracle.reads.len() as u64;
        self.oracle.reads.insert(ctx, self.oracle.last_applied());
        self.with(id, |member| member.handle(Event::ReadIndex { ctx }));
    }

    /// Delivers messages to one member, all in one call of its machine.
    pub fn deliver(&mut self, to: u64, batch: Vec<InFlightMessage>) {
        let mut events = Vec::new();
        for InFlightMessage { message, content } in batch {
            let passes = !self.cut.contains(&(message.from, to)) && self.member(to).run.is_some();
            let is_snapshot = message.kind == MessageKind::Snapshot;
            let delivered = passes && (!is_snapshot || content.is_some());
            if is_snapshot {
                self.with(message.from, |sender| sender.handle(Event::SnapshotSent { to, delivered }));
            }
            if !delivered {
                continue;
            }
            if let (Some(meta), Some(content)) = (&message.snapshot, content) {
                self.member(to).store_snapshot(meta.index, content);
            }
            events.push(Event::MessageReceived(message));
        }
        self.with(to, |member| member.handle_all(events));
    }

    /// Loses a message; its sender may notice.
    pub fn drop_message(&mut self, in_flight: InFlightMessage, noticed: bool) {
        let (from, to) = (in_flight.message.from, in_flight.message.to);
        if in_flight.message.kind == MessageKind::Snapshot {
            let event = Event::SnapshotSent { to, delivered: false };
            self.with(from, |sender| sender.handle(event));
        } else if noticed {
            self.with(from, |sender| sender.handle(Event::PeerUnreachable { to }));
        }
    }

    /// Writes and delivers until nothing is left.
    pub fn settle(&mut self) {
        loop {
            for id in self.ids() {
                self.with(id, TestMember::write_all);
            }
            if self.in_flight.is_empty() {
                return;
            }
            for in_flight in std::mem::take(&mut self.in_flight) {
                self.deliver(in_flight.message.to, vec![in_flight]);
            }
        }
    }

    /// Ticks all members, settling after each tick.
    pub fn tick(&mut self, ticks: usize) {
        for _ in 0..ticks {
            for id in self.ids() {
                self.with(id, |member| member.handle(Event::Tick));
            }
            self.settle();
        }
    }

    /// Ticks until a leader can commit; returns it.
    pub fn elect(&mut self) -> u64 {
        for _ in 0..200 {
            self.tick(1);
            if let Some(leader) = self.leader() {
                return leader;
            }
        }
        panic!("no leader after 200 ticks");
    }

    /// The leader of the highest term, if it can commit.
    pub fn leader(&mut self) -> Option<u64> {
        let leader = self.oracle.latest_leader()?;
        let proposal = self.propose(leader);
        self.settle();
        self.oracle.acknowledged.contains(&proposal).then_some(leader)
    }

    /// Hashes of all effects of every machine.
    pub fn trace(&self) -> Vec<u64> {
        self.members.iter().map(|member| member.trace.finish()).collect()
    }
}
