//! Arbitrary messages of other members, mixed with ticks and proposals, to one member of three.

use std::collections::VecDeque;

use arbitrary::{Arbitrary, Result, Unstructured};
use bytes::Bytes;
use warren_consensus::{
    AcknowledgedEntry, Effect, EntryKind, Event, MemberChange, Message, MessageKind, PersistentState,
    Proposal, RaftConfig, RaftEntry, RaftMachine,
};
use warren_types::raft::{ConfState, SnapshotMeta};

/// Events of one input.
const MAX_EVENTS: usize = 200;
const ME: u64 = 1;

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

/// The member never panics, and its applied entries have no gap and never go back, until it reports that it
/// cannot continue.
pub fn run(bytes: &[u8]) {
    let mut input = Unstructured::new(bytes);
    let seed = u64::arbitrary(&mut input).unwrap_or_default();
    let (machine, first) = RaftMachine::new(RaftConfig::new(ME, seed), PersistentState::bootstrap([1, 2, 3]))
        .expect("a valid configuration");
    let mut member = FuzzMember { machine, applied: (0, 0), is_alive: true };
    member.settle(first);
    for number in 0..MAX_EVENTS as u64 {
        if input.is_empty() || !member.is_alive {
            return;
        }
        let Ok(event) = event(&mut input, number + 1) else { return };
        let effects = member.machine.handle(event);
        member.settle(effects);
    }
}

struct FuzzMember {
    machine: RaftMachine,
    /// Term and index of the last entry.
    applied: (u64, u64),
    is_alive: bool,
}

impl FuzzMember {
    fn settle(&mut self, effects: Vec<Effect>) {
        let mut effects = VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            assert!(self.is_alive, "{effect:?} after the end");
            let event = match effect {
                Effect::Persist(write) => {
                    if let Some(SnapshotMeta { index, term, .. }) = write.snapshot {
                        assert!(index > self.applied.1, "the snapshot is older than the applied index");
                        self.applied = (term, index);
                    }
                    Event::Persisted { number: write.number }
                }
                Effect::Apply(entries) => {
                    for committed in &entries {
                        let (term, index) = (committed.entry.term, committed.entry.index);
                        assert_eq!(index, self.applied.1 + 1, "a gap");
                        assert!(term >= self.applied.0, "the term decreased");
                        self.applied = (term, index);
                    }
                    Event::Applied { index: self.applied.1 }
                }
                Effect::Fatal(why) => {
                    assert!(!why.to_string().is_empty());
                    self.is_alive = false;
                    continue;
                }
                _ => continue,
            };
            effects.extend(self.machine.handle(event));
        }
    }
}

fn event(input: &mut Unstructured<'_>, number: u64) -> Result<Event> {
    Ok(match u8::arbitrary(input)? % 16 {
        0..=2 => Event::Tick,
        3 => Event::Propose(vec![Proposal { id: number, data: Bytes::from_static(b"x") }]),
        4 => {
            let member = small(input)?;
            let change = [
                MemberChange::add_learner(member),
                MemberChange::promote([member]),
                MemberChange::remove(member),
            ];
            Event::ChangeMembers { id: number, change: input.choose(&change)?.clone() }
        }
        5 => {
            Event::TransferLeadership { to: if bool::arbitrary(input)? { Some(small(input)?) } else { None } }
        }
        6 => Event::ReadIndex { ctx: number },
        7 => Event::PeerUnreachable { to: small(input)? },
        _ => Event::MessageReceived(message(input)?),
    })
}

/// 0 to 7, rarely any value.
fn small(input: &mut Unstructured<'_>) -> Result<u64> {
    match u8::arbitrary(input)? {
        255 => u64::arbitrary(input),
        byte => Ok(u64::from(byte % 8)),
    }
}

fn message(input: &mut Unstructured<'_>) -> Result<Message> {
    let kind = *input.choose(&KINDS)?;
    let (index, log_term) = (small(input)?, small(input)?);
    let snapshot = if kind == MessageKind::Snapshot { Some(snapshot(input)?) } else { None };
    Ok(Message {
        kind,
        to: if u8::arbitrary(input)? == 255 { small(input)? } else { ME },
        from: small(input)?,
        term: small(input)?,
        log_term,
        index,
        entries: entries(input, index)?,
        commit: small(input)?,
        commit_term: small(input)?,
        snapshot,
        request_snapshot: if u8::arbitrary(input)? > 250 { small(input)? } else { 0 },
        reject: bool::arbitrary(input)?,
        reject_hint: small(input)?,
        context: if bool::arbitrary(input)? { Bytes::new() } else { data(input)? },
        priority: i64::from(i8::arbitrary(input)? / 64),
        acknowledged: if u8::arbitrary(input)? > 200 { acknowledged(input)? } else { Vec::new() },
    })
}

fn acknowledged(input: &mut Unstructured<'_>) -> Result<Vec<AcknowledgedEntry>> {
    let one = |input: &mut Unstructured<'_>, member| {
        Ok(AcknowledgedEntry { member, index: small(input)?, term: small(input)? })
    };
    (1..=u64::from(u8::arbitrary(input)? % 4)).map(|member| one(input, member)).collect()
}

fn entries(input: &mut Unstructured<'_>, before: u64) -> Result<Vec<RaftEntry>> {
    let count = input.int_in_range(0..=3)?;
    let mut entries = Vec::new();
    for number in 0..count {
        let follows = u8::arbitrary(input)? < 250;
        let index = if follows { before.wrapping_add(number + 1) } else { small(input)? };
        let kind = *input.choose(&[EntryKind::Command, EntryKind::Noop, EntryKind::Membership])?;
        entries.push(RaftEntry { index, term: small(input)?, kind, data: data(input)? });
    }
    Ok(entries)
}

fn data(input: &mut Unstructured<'_>) -> Result<Bytes> {
    let length = input.int_in_range(0..=24)?;
    Ok(Bytes::copy_from_slice(input.bytes(length)?))
}

fn snapshot(input: &mut Unstructured<'_>) -> Result<SnapshotMeta> {
    let mut ids = || -> Result<Vec<u64>> {
        let count = input.int_in_range(0..=3)?;
        (0..count).map(|_| small(input)).collect()
    };
    let conf_state = ConfState {
        voters: ids()?,
        learners: ids()?,
        voters_outgoing: ids()?,
        learners_next: ids()?,
        auto_leave: bool::arbitrary(input)?,
    };
    Ok(SnapshotMeta { index: small(input)?, term: small(input)?, conf_state })
}
