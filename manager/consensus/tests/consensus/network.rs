//! Members and the messages between them; every outcome is checked as it happens.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::Hasher,
};

use bytes::Bytes;
use warren_consensus::{ConfState, DropReason, Event, MemberChange, Membership, Message, MessageKind, Role};

use crate::member::{Member, Outcome, State};

/// A message on its way, and the content of the snapshot it announces.
#[derive(Debug, Clone)]
pub struct Flying {
    pub message: Message,
    content: Option<State>,
}

/// What must stay true, whatever happens.
#[derive(Debug, Default)]
pub struct Truth {
    leaders: BTreeMap<u64, u64>,
    applied: BTreeMap<u64, (u64, Bytes)>,
    /// The members as of each change of them, whoever applied it first.
    members: BTreeMap<u64, ConfState>,
    /// What was asked of each proposal that changes the members.
    changes: BTreeMap<u64, MemberChange>,
    /// Why changes of members were refused.
    pub reasons: Vec<DropReason>,
    /// Proposals whose proposer saw them applied.
    pub acknowledged: BTreeSet<u64>,
    /// Proposals whose proposer was told that they will never be applied.
    pub refused: BTreeSet<u64>,
    /// Proposals whose proposer was told that nobody can tell.
    pub unknown: BTreeSet<u64>,
    /// The lowest index with which a read may be answered.
    reads: BTreeMap<u64, u64>,
    pub reads_answered: usize,
}

impl Truth {
    fn check(&mut self, member: u64, outcome: Outcome) {
        match outcome {
            Outcome::Role { term, role: Role::Leader, .. } => {
                let leader = *self.leaders.entry(term).or_insert(member);
                assert_eq!(leader, member, "two leaders in term {term}");
            }
            Outcome::Role { .. } => {}
            Outcome::Applied { index, term, data, proposal } => {
                if let Some(id) = proposal {
                    assert_eq!(data, self.data_of(id), "answered with another's entry");
                    assert!(self.acknowledged.insert(id), "{id} was answered twice");
                }
                let first = self.applied.entry(index).or_insert((term, data.clone()));
                assert_eq!(*first, (term, data), "member {member} differs at {index}");
            }
            Outcome::Members { index, mut members } => {
                if !self.applied.contains_key(&index) {
                    self.members.insert(index, members.clone());
                }
                let (_, first) = self.members.range(..=index).next_back().unwrap();
                // A snapshot can be sent to a member that was added after it was taken, and says
                // that it learns; its receiver passes that on until it comes to the addition.
                let ConfState { voters, learners, voters_outgoing, .. } = first;
                let known = |id: &u64| [voters, learners, voters_outgoing].iter().any(|ids| ids.contains(id));
                members.learners.retain(known);
                assert_eq!(*first, members, "member {member} differs at {index}");
            }
            Outcome::Fatal(fatal) => panic!("member {member} stopped: {fatal}"),
            Outcome::Dropped { proposal, reason: DropReason::Unknown } => {
                assert!(self.unknown.insert(proposal), "{proposal} was answered twice");
            }
            Outcome::Dropped { proposal, reason } => {
                assert!(self.refused.insert(proposal), "{proposal} was refused twice");
                if self.changes.contains_key(&proposal) {
                    self.reasons.push(reason);
                }
            }
            Outcome::ReadReady { ctx, index } => {
                let lowest = self.reads[&ctx];
                assert!(index >= lowest, "read {ctx} at {index} misses what {lowest} did");
                self.reads_answered += 1;
            }
        }
    }

    /// The entry that a proposal becomes.
    pub fn data_of(&self, proposal: u64) -> Bytes {
        match self.changes.get(&proposal) {
            Some(change) => Membership::Change(change.clone()).encode().into(),
            None => format!("command {proposal}").into(),
        }
    }

    /// People give up what was committed after this entry.
    pub fn give_up_after(&mut self, index: u64) {
        self.applied.split_off(&(index + 1));
    }

    /// The members as of the last entry that anyone applied.
    pub fn members(&self) -> &ConfState {
        self.members.last_key_value().map(|(_, members)| members).expect("there are members")
    }

    /// Each change of the members that was applied.
    pub fn history(&self) -> Vec<&ConfState> {
        self.members.values().collect()
    }

    /// Nothing that was answered turned out otherwise.
    pub fn check_answers(&self) {
        let applied: BTreeSet<_> = self.applied.values().map(|(_, data)| data).collect();
        for id in &self.acknowledged {
            assert!(applied.contains(&self.data_of(*id)), "{id} was acknowledged and is lost");
        }
        // Of two equal changes one can be applied and the other refused.
        for id in self.refused.iter().filter(|id| !self.changes.contains_key(id)) {
            assert!(!applied.contains(&self.data_of(*id)), "{id} was refused and is there");
        }
    }

    /// Who led in the highest term in which anyone did.
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

pub struct Network {
    pub members: Vec<Member>,
    pub flying: Vec<Flying>,
    /// Directions in which nothing passes.
    pub cut: BTreeSet<(u64, u64)>,
    /// Those that never start again.
    pub gone: BTreeSet<u64>,
    pub truth: Truth,
    seed: u64,
    proposals: u64,
}

impl Network {
    /// A group of `size` voters with ids from 1, all running.
    pub fn new(size: u64, seed: u64) -> Self {
        Self::with_joiners(size, 0, seed)
    }

    /// A group of `size` voters with ids from 1, and `joiners` more machines with the ids after
    /// that, which are no members yet. All running.
    pub fn with_joiners(size: u64, joiners: u64, seed: u64) -> Self {
        let voters: Vec<u64> = (1..=size).collect();
        let ids = 1..=size + joiners;
        let members = ids.clone().map(|id| Member::found(id, &voters)).collect();
        let mut network = Self {
            members,
            flying: Vec::new(),
            cut: BTreeSet::new(),
            gone: BTreeSet::new(),
            truth: Truth::default(),
            seed,
            proposals: 0,
        };
        network.truth.members.insert(0, ConfState::of_voters(voters));
        for id in ids {
            network.start(id);
        }
        network
    }

    pub fn member(&mut self, id: u64) -> &mut Member {
        &mut self.members[id as usize - 1]
    }

    pub fn ids(&self) -> Vec<u64> {
        self.members.iter().map(|member| member.id).collect()
    }

    /// Does something to a member, then looks at what came of it.
    pub fn with(&mut self, id: u64, act: impl FnOnce(&mut Member)) {
        let member = &mut self.members[id as usize - 1];
        act(member);
        for outcome in member.take_outcomes() {
            self.truth.check(id, outcome);
        }
        for message in std::mem::take(&mut member.outbox) {
            let meta = message.snapshot.as_ref();
            // Between sending and now a newer snapshot may have replaced the file.
            let content = meta.and_then(|meta| member.snapshots.get(&meta.index).cloned());
            self.flying.push(Flying { message, content });
        }
    }

    pub fn start(&mut self, id: u64) {
        let seed = self.seed;
        if self.gone.contains(&id) {
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
        self.gone.insert(id);
    }

    /// Proposes something new; the proposal's id.
    pub fn propose(&mut self, id: u64) -> u64 {
        self.proposals += 1;
        let proposal = self.proposals;
        self.with(id, |member| member.propose(proposal));
        proposal
    }

    /// Proposes to change the members; the proposal's id.
    pub fn change(&mut self, id: u64, change: MemberChange) -> u64 {
        self.proposals += 1;
        let proposal = self.proposals;
        self.truth.changes.insert(proposal, change.clone());
        self.with(id, |member| member.change(proposal, change));
        proposal
    }

    /// Asks to read; whatever anyone has applied by now must be seen.
    pub fn read(&mut self, id: u64) {
        let ctx = self.truth.reads.len() as u64;
        self.truth.reads.insert(ctx, self.truth.last_applied());
        self.with(id, |member| member.on(Event::ReadIndex { ctx }));
    }

    /// Delivers messages to one member, all in one call of its machine.
    pub fn deliver(&mut self, to: u64, batch: Vec<Flying>) {
        let mut events = Vec::new();
        for Flying { message, content } in batch {
            let passes = !self.cut.contains(&(message.from, to)) && self.member(to).run.is_some();
            let is_snapshot = message.kind == MessageKind::Snapshot;
            let delivered = passes && (!is_snapshot || content.is_some());
            if is_snapshot {
                self.with(message.from, |sender| sender.on(Event::SnapshotSent { to, delivered }));
            }
            if !delivered {
                continue;
            }
            if let (Some(meta), Some(content)) = (&message.snapshot, content) {
                self.member(to).store_snapshot(meta.index, content);
            }
            events.push(Event::Message(message));
        }
        self.with(to, |member| member.on_all(events));
    }

    /// Loses a message; its sender may notice.
    pub fn lose(&mut self, flying: Flying, noticed: bool) {
        let (from, to) = (flying.message.from, flying.message.to);
        if flying.message.kind == MessageKind::Snapshot {
            let event = Event::SnapshotSent { to, delivered: false };
            self.with(from, |sender| sender.on(event));
        } else if noticed {
            self.with(from, |sender| sender.on(Event::Unreachable { to }));
        }
    }

    /// Writes and delivers until nothing moves any more.
    pub fn settle(&mut self) {
        loop {
            for id in self.ids() {
                self.with(id, Member::write_all);
            }
            if self.flying.is_empty() {
                return;
            }
            for flying in std::mem::take(&mut self.flying) {
                self.deliver(flying.message.to, vec![flying]);
            }
        }
    }

    /// Lets time pass for everyone, settling after each tick.
    pub fn pass(&mut self, ticks: usize) {
        for _ in 0..ticks {
            for id in self.ids() {
                self.with(id, |member| member.on(Event::Tick));
            }
            self.settle();
        }
    }

    /// Lets time pass until someone leads and can commit; who.
    pub fn elect(&mut self) -> u64 {
        for _ in 0..200 {
            self.pass(1);
            if let Some(leader) = self.leader() {
                return leader;
            }
        }
        panic!("no leader after 200 ticks");
    }

    /// The leader of the highest term there was, if it can commit.
    pub fn leader(&mut self) -> Option<u64> {
        let leader = self.truth.latest_leader()?;
        let proposal = self.propose(leader);
        self.settle();
        self.truth.acknowledged.contains(&proposal).then_some(leader)
    }

    /// One number for everything that every machine ever asked for.
    pub fn trace(&self) -> Vec<u64> {
        self.members.iter().map(|member| member.trace.finish()).collect()
    }
}
