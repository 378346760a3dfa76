//! No message from another member makes a machine panic: it ignores it, or stops in order.
//!
//! A failing seed is replayed with `WARREN_SEED=<seed> cargo test -p warren-consensus hostile`.

use bytes::Bytes;
use warren_consensus::{
    AcknowledgedEntry, ConfState, EntryKind, Event, MemberChange, MemberStep, MembershipEntry, Message,
    MessageKind, RaftEntry, RaftRole, SnapshotMeta,
};
use warren_log::CrashPoint;

use crate::{
    faults::seeds,
    member::{MemberOutput, TestMember},
    rng::Rng,
};

const KINDS: [MessageKind; 13] = [
    MessageKind::Append,
    MessageKind::AppendResponse,
    MessageKind::Vote,
    MessageKind::VoteResponse,
    MessageKind::Snapshot,
    MessageKind::Heartbeat,
    MessageKind::HeartbeatResponse,
    MessageKind::TimeoutNow,
    MessageKind::ReadIndex,
    MessageKind::ReadIndexResponse,
    MessageKind::PreVote,
    MessageKind::PreVoteResponse,
    MessageKind::LogStatus,
];

/// Makes messages with few or many errors: most are valid enough to pass the first checks.
struct MessageForger {
    dice: Rng,
    /// Terms and indexes that the receiver uses.
    terms: Vec<u64>,
    indexes: Vec<u64>,
}

impl MessageForger {
    fn number(&mut self, meaningful: &[u64]) -> u64 {
        let near = meaningful[self.dice.below(meaningful.len())];
        match self.dice.below(40) {
            0 => 0,
            1 => u64::MAX - self.dice.next() % 3,
            2 => (1 << 62) - self.dice.next() % 3,
            3 => self.dice.next(),
            4..8 => near.wrapping_sub(1),
            8..14 => near.wrapping_add(1),
            _ => near,
        }
    }

    fn term(&mut self) -> u64 {
        let terms = self.terms.clone();
        self.number(&terms)
    }

    fn index(&mut self) -> u64 {
        let indexes = self.indexes.clone();
        self.number(&indexes)
    }

    fn id(&mut self) -> u64 {
        match self.dice.below(20) {
            0 => 0,
            1 => u64::MAX,
            _ => 1 + self.dice.next() % 5,
        }
    }

    fn ids(&mut self) -> Vec<u64> {
        (0..self.dice.below(4)).map(|_| self.id()).collect()
    }

    fn members(&mut self) -> ConfState {
        match self.dice.below(4) {
            0 => ConfState {
                voters: self.ids(),
                learners: self.ids(),
                voters_outgoing: self.ids(),
                learners_next: self.ids(),
                auto_leave: self.dice.one_in(2),
            },
            1 => ConfState { learners: vec![1], ..ConfState::of_voters([2, 3]) },
            2 => ConfState { voters_outgoing: vec![1, 2], ..ConfState::of_voters([1, 2, 3]) },
            _ => ConfState::of_voters([1, 2, 3]),
        }
    }

    fn entry(&mut self, index: u64, term: u64) -> RaftEntry {
        let (kind, data) = match self.dice.below(12) {
            0 => (EntryKind::Noop, Bytes::new()),
            1 => (EntryKind::Command, Bytes::new()),
            2 => (EntryKind::Noop, Bytes::from_static(b"x")),
            3 => {
                let id = self.id();
                let change = MemberChange::new([MemberStep::Learner(id)]);
                (EntryKind::Membership, MembershipEntry::Change(change).encode().into())
            }
            4 => (EntryKind::Membership, MembershipEntry::LeaveJoint.encode().into()),
            5 => (EntryKind::Membership, Bytes::from_static(b"\x02\x09")),
            _ => (EntryKind::Command, Bytes::from_static(b"y")),
        };
        let strange = self.dice.one_in(30);
        let (index, term) = if strange { (self.index(), self.term()) } else { (index, term) };
        RaftEntry { index, term, kind, data }
    }

    /// Of other members and of the receiver.
    fn acknowledged(&mut self) -> Vec<AcknowledgedEntry> {
        if !self.dice.one_in(50) {
            return Vec::new();
        }
        let members = (1..4).filter(|_| self.dice.one_in(4)).collect::<Vec<u64>>();
        let of = |member| AcknowledgedEntry { member, index: self.index(), term: self.term() };
        members.into_iter().map(of).collect()
    }

    fn message(&mut self) -> Message {
        let kind = KINDS[self.dice.below(KINDS.len())];
        let index = self.index();
        let term = self.term();
        let entry_term = if self.dice.one_in(3) { self.term() } else { term };
        let count = self.dice.below(4) as u64;
        let entries: Vec<_> = (1..=count).map(|n| self.entry(index.wrapping_add(n), entry_term)).collect();
        let snapshot = SnapshotMeta { index: self.index(), term: self.term(), conf_state: self.members() };
        Message {
            kind,
            to: if self.dice.one_in(30) { self.id() } else { 1 },
            from: self.id(),
            term: if kind == MessageKind::ReadIndex && !self.dice.one_in(4) { 0 } else { term },
            log_term: self.term(),
            index,
            entries,
            commit: self.index(),
            commit_term: self.term(),
            snapshot: (kind == MessageKind::Snapshot || self.dice.one_in(20)).then_some(snapshot),
            request_snapshot: if self.dice.one_in(20) { self.index() } else { 0 },
            reject: self.dice.one_in(2),
            reject_hint: self.index(),
            context: if self.dice.one_in(2) { Bytes::new() } else { Bytes::from_static(b"CampaignTransfer") },
            priority: if self.dice.one_in(20) { self.dice.next() as i64 } else { 0 },
            acknowledged: self.acknowledged(),
        }
    }
}

#[derive(Debug, Default)]
struct Counters {
    messages: usize,
    stopped: usize,
    led: usize,
    snapshots: usize,
    applied: usize,
}

fn run(seed: u64, counters: &mut Counters) {
    let mut forger = MessageForger { dice: Rng(seed), terms: vec![1], indexes: vec![0, 1] };
    let founders: &[u64] = [&[1][..], &[1, 2, 3], &[1, 2], &[2, 3], &[]][forger.dice.below(5)];
    let mut member = TestMember::bootstrap(1, founders);
    member.start(seed);
    for id in 0..600 {
        match forger.dice.below(20) {
            0..10 => {
                let message = forger.message();
                counters.messages += 1;
                if let (MessageKind::Snapshot, Some(meta)) = (message.kind, &message.snapshot) {
                    member.store_snapshot(meta.index, vec![(meta.index, meta.term, Bytes::new())]);
                }
                member.handle(Event::MessageReceived(message));
            }
            // A message of this member returns as one from another member.
            10..13 => {
                let answers: Vec<_> = member.outbox.iter().rev().take(3).cloned().collect();
                for mut message in answers {
                    (message.to, message.from) = (1, message.to);
                    message.kind = KINDS[forger.dice.below(KINDS.len())];
                    message.reject = forger.dice.one_in(3);
                    member.handle(Event::MessageReceived(message));
                }
            }
            13..15 => (0..4).for_each(|_| member.handle(Event::Tick)),
            15 => member.propose(id),
            16 => {
                member.change(id, MemberChange::new([MemberStep::Voter(2 + id % 4)]));
                member.handle(Event::TransferLeadership { to: None });
            }
            17 => member.handle(Event::ReadIndex { ctx: id }),
            18 => member.snapshot(),
            _ if forger.dice.one_in(10) => member.disk.crash_at(1, CrashPoint::After),
            _ => member.write_all(),
        }
        if forger.dice.one_in(2) {
            member.write_one();
        }
        look(&mut member, &mut forger, counters);
        if member.run.is_none() {
            // A forged message can have become part of the stored state; then that is rejected.
            member = TestMember::bootstrap(1, founders);
            member.start(seed + id);
        }
    }
}

/// Records the member's terms and indexes for later messages.
fn look(member: &mut TestMember, forger: &mut MessageForger, counters: &mut Counters) {
    for outcome in member.take_outcomes() {
        match outcome {
            MemberOutput::Role { term, role, .. } => {
                forger.terms = vec![term, term.saturating_sub(1).max(1), 1];
                counters.led += usize::from(role == RaftRole::Leader);
            }
            MemberOutput::Applied { index, .. } => {
                forger.indexes = vec![index, index + 1, index.saturating_sub(2)];
                counters.applied += 1;
            }
            MemberOutput::Fatal(_) => counters.stopped += 1,
            MemberOutput::Members { .. } | MemberOutput::Dropped { .. } | MemberOutput::ReadReady { .. } => {}
        }
    }
    counters.snapshots += member.outbox.iter().filter(|message| message.snapshot.is_some()).count();
    if member.outbox.len() > 8 {
        member.outbox.drain(..4);
    }
}

#[test]
fn no_message_makes_a_machine_panic() {
    struct OnPanic(u64);
    impl Drop for OnPanic {
        fn drop(&mut self) {
            if std::thread::panicking() {
                println!("replay: WARREN_SEED={} cargo test -p warren-consensus hostile", self.0);
            }
        }
    }
    let mut counters = Counters::default();
    let seeds = seeds(1_000);
    for seed in &seeds {
        let _named = OnPanic(*seed);
        run(*seed, &mut counters);
    }
    println!("{counters:?}");
    if seeds.len() > 10 {
        let Counters { messages, stopped, led, snapshots, applied } = counters;
        assert!(messages > 100_000 && stopped > 1_000 && led > 1_000 && snapshots > 100 && applied > 1_000);
    }
}
