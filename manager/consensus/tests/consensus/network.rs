//! Members and the messages between them; every outcome is checked as it happens.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::Hasher,
};

use bytes::Bytes;
use warren_consensus::{DropReason, Event, Message, MessageKind, Role};

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
                    assert_eq!(data, format!("command {id}"), "answered with another's entry");
                    assert!(self.acknowledged.insert(id), "{id} was answered twice");
                }
                let first = self.applied.entry(index).or_insert((term, data.clone()));
                assert_eq!(*first, (term, data), "member {member} differs at {index}");
            }
            Outcome::Dropped { proposal, reason: DropReason::Unknown } => {
                assert!(self.unknown.insert(proposal), "{proposal} was answered twice");
            }
            Outcome::Dropped { proposal, .. } => {
                assert!(self.refused.insert(proposal), "{proposal} was refused twice");
            }
            Outcome::ReadReady { ctx, index } => {
                let lowest = self.reads[&ctx];
                assert!(index >= lowest, "read {ctx} at {index} misses what {lowest} did");
                self.reads_answered += 1;
            }
        }
    }

    /// Everything applied, by anyone, in order.
    pub fn commands(&self) -> Vec<&Bytes> {
        self.applied.values().map(|(_, data)| data).filter(|data| !data.is_empty()).collect()
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
    pub truth: Truth,
    seed: u64,
    proposals: u64,
}

impl Network {
    /// A group of `size` voters with ids from 1, all running.
    pub fn new(size: u64, seed: u64) -> Self {
        let voters: Vec<u64> = (1..=size).collect();
        let members = voters.iter().map(|id| Member::found(*id, &voters)).collect();
        let mut network = Self {
            members,
            flying: Vec::new(),
            cut: BTreeSet::new(),
            truth: Truth::default(),
            seed,
            proposals: 0,
        };
        for id in voters {
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
        self.with(id, |member| {
            if member.run.is_none() {
                member.start(seed);
            }
        });
    }

    /// Proposes something new; the proposal's id.
    pub fn propose(&mut self, id: u64) -> u64 {
        self.proposals += 1;
        let proposal = self.proposals;
        self.with(id, |member| member.propose(proposal));
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
    fn leader(&mut self) -> Option<u64> {
        let (_, leader) = self.truth.leaders.last_key_value()?;
        let leader = *leader;
        let proposal = self.propose(leader);
        self.settle();
        self.truth.acknowledged.contains(&proposal).then_some(leader)
    }

    /// One number for everything that every machine ever asked for.
    pub fn trace(&self) -> Vec<u64> {
        self.members.iter().map(|member| member.trace.finish()).collect()
    }
}
