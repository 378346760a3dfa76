//! A group of one: leads immediately, loses nothing that it acknowledged, writes nothing when idle.

use bytes::Bytes;
use warren_consensus::{
    CommittedEntry, DropReason, DurableWrite, Effect, EntryKind, Event, HardState, PersistentState, Proposal,
    RaftConfig, RaftEntry, RaftMachine, RaftRole,
};
use warren_log::CrashPoint;

use crate::member::{MemberOutput, TestMember};

fn started() -> TestMember {
    let mut member = TestMember::bootstrap(1, &[1]);
    member.start(1);
    member.write_all();
    member
}

fn commands(member: &TestMember) -> Vec<Bytes> {
    member.state().iter().map(|(.., data)| data.clone()).filter(|data| !data.is_empty()).collect()
}

fn proposal(id: u64, data: &'static str) -> Proposal {
    Proposal { id, data: Bytes::from_static(data.as_bytes()) }
}

/// The effects of the very first start, step by step: nothing is applied before it is written.
#[test]
fn new_single_voter_leads_after_first_write() {
    let (mut machine, effects) =
        RaftMachine::new(RaftConfig::new(1, 1), PersistentState::bootstrap([1])).unwrap();
    let noop = RaftEntry { index: 1, term: 1, kind: EntryKind::Noop, data: Bytes::new() };
    let hard_state = HardState { term: 1, vote: 1, commit: 0 };
    let persist = DurableWrite {
        number: 1,
        snapshot: None,
        entries: vec![noop.clone()],
        hard_state: Some(hard_state),
        acknowledged: None,
    };
    let role = Effect::RoleChanged { term: 1, role: RaftRole::Leader, leader: Some(1) };
    assert_eq!(effects, [role, Effect::Persist(persist)]);
    let effects = machine.handle(Event::Persisted { number: 1 });
    let committed = CommittedEntry { entry: noop, proposal: None };
    assert_eq!(effects, [Effect::Apply(vec![committed])]);
    assert_eq!(machine.handle(Event::Applied { index: 1 }), []);
    for _ in 0..2 {
        assert_eq!(machine.handle(Event::Persisted { number: 1 }), [], "a repeat is harmless");
        assert_eq!(machine.handle(Event::Applied { index: 1 }), [], "a repeat is harmless");
    }
}

#[test]
fn proposals_of_one_batch_share_one_write() {
    let mut member = started();
    let before = member.disk.durable_writes();
    let batch = (10..20).map(|id| Proposal { id, data: Bytes::from(id.to_string()) }).collect();
    member.handle(Event::Propose(batch));
    assert_eq!(member.writes_waiting(), 1);
    assert_eq!(commands(&member).len(), 0, "nothing is applied before it is written");
    member.write_all();
    assert_eq!(member.disk.durable_writes(), before + 1, "and the commit needs no second one");
    let applied: Vec<_> = member
        .take_outcomes()
        .into_iter()
        .filter_map(|outcome| match outcome {
            MemberOutput::Applied { proposal, .. } => proposal,
            _ => None,
        })
        .collect();
    assert_eq!(applied, (10..20).collect::<Vec<_>>());
}

#[test]
fn writes_are_pipelined() {
    let mut member = started();
    for id in 10..14 {
        member.propose(id);
    }
    assert_eq!(member.writes_waiting(), 4);
    member.write_one();
    member.write_one();
    assert_eq!(commands(&member), ["command 10", "command 11"]);
    member.write_all();
    assert_eq!(commands(&member).len(), 4);
}

#[test]
fn an_idle_group_writes_nothing() {
    let mut member = started();
    member.propose(1);
    member.write_all();
    member.take_outcomes();
    let before = member.disk.durable_writes();
    for _ in 0..1_000 {
        member.handle(Event::Tick);
        assert!(!member.write_one());
    }
    assert_eq!(member.disk.durable_writes(), before);
    assert_eq!(member.take_outcomes(), [], "and stays the leader");
}

#[test]
fn empty_proposal_is_dropped_alone() {
    let mut member = started();
    member.take_outcomes();
    member.handle(Event::Propose(vec![proposal(1, ""), proposal(2, "x")]));
    member.write_all();
    let outcomes = member.take_outcomes();
    assert_eq!(outcomes[0], MemberOutput::Dropped { proposal: 1, reason: DropReason::EmptyProposal });
    assert!(matches!(outcomes[1], MemberOutput::Applied { proposal: Some(2), .. }), "{outcomes:?}");
}

#[test]
fn proposals_over_limit_are_dropped_as_busy() {
    let config = RaftConfig { max_uncommitted_bytes: 10, max_message_bytes: 10, ..RaftConfig::new(1, 1) };
    let (mut machine, _) = RaftMachine::new(config, PersistentState::bootstrap([1])).unwrap();
    machine.handle(Event::Persisted { number: 1 });
    let effects = machine.handle(Event::Propose(vec![proposal(1, "eight by")]));
    let [Effect::Persist(write)] = effects.as_slice() else { panic!("{effects:?}") };
    let busy = Effect::ProposalDropped { proposal: 2, reason: DropReason::Busy };
    assert_eq!(machine.handle(Event::Propose(vec![proposal(2, "tes")])), [busy]);
    machine.handle(Event::Persisted { number: write.number });
    let effects = machine.handle(Event::Propose(vec![proposal(3, "tes")]));
    assert!(matches!(effects.as_slice(), [Effect::Persist(_)]), "{effects:?}");
}

#[test]
fn a_read_is_answered_at_the_commit_index() {
    let mut member = started();
    member.propose(1);
    member.handle(Event::ReadIndex { ctx: 7 });
    member.write_all();
    member.handle(Event::ReadIndex { ctx: 8 });
    let reads: Vec<_> = member
        .take_outcomes()
        .into_iter()
        .filter(|outcome| matches!(outcome, MemberOutput::ReadReady { .. }))
        .collect();
    let expected =
        [MemberOutput::ReadReady { ctx: 7, index: 1 }, MemberOutput::ReadReady { ctx: 8, index: 2 }];
    assert_eq!(reads, expected);
}

/// Proposals, snapshots and compaction until the end or the planned crash; returns the acknowledged
/// proposals.
fn history(member: &mut TestMember, crash: Option<(u64, CrashPoint)>) -> Vec<u64> {
    member.start(1);
    if let Some((nth, point)) = crash {
        member.disk.crash_at(nth, point);
    }
    let mut acknowledged = Vec::new();
    for id in 1..=24 {
        member.propose(id);
        if id % 3 == 0 {
            member.write_all();
        }
        if id % 8 == 0 {
            member.snapshot();
        }
        let applied = member.take_outcomes().into_iter().filter_map(|outcome| match outcome {
            MemberOutput::Applied { proposal, .. } => proposal,
            _ => None,
        });
        acknowledged.extend(applied);
    }
    acknowledged
}

#[test]
fn crash_loses_no_acknowledged_entry() {
    let mut whole = TestMember::bootstrap(1, &[1]);
    let acknowledged = history(&mut whole, None);
    assert_eq!(acknowledged, (1..=24).collect::<Vec<_>>());
    let writes = whole.disk.durable_writes() - 1;
    assert!(writes > 25, "{writes}");

    for nth in 1..=writes {
        for point in [CrashPoint::Before, CrashPoint::After] {
            let mut member = TestMember::bootstrap(1, &[1]);
            let acknowledged = history(&mut member, Some((nth, point)));
            assert!(member.run.is_none(), "it crashed at write {nth}");
            // Crash again in the first write of the restart, then return.
            member.start(2);
            member.disk.crash_at(1, point);
            member.write_all();
            assert!(member.run.is_none());
            member.start(3);
            member.write_all();
            member.propose(1_000);
            member.write_all();
            let present = commands(&member);
            for id in &acknowledged {
                let expected = Bytes::from(format!("command {id}"));
                assert!(present.contains(&expected), "{id} is lost at write {nth} {point:?}");
            }
            let order: Vec<_> = (1..).map(|id| format!("command {id}")).take(present.len() - 1).collect();
            assert_eq!(present[..present.len() - 1], order, "once each, in order");
            assert_eq!(present.last().unwrap(), "command 1000");
        }
    }
}

#[test]
fn restarted_single_voter_leads_new_term() {
    let mut member = started();
    for id in 1..=3 {
        member.propose(id);
    }
    member.write_all();
    member.crash();
    member.start(2);
    let roles: Vec<_> = member.take_outcomes();
    let leader = MemberOutput::Role { term: 2, role: RaftRole::Leader, leader: Some(1) };
    assert!(roles.contains(&leader), "before any tick: {roles:?}");
    member.write_all();
    assert_eq!(commands(&member).len(), 3);
    assert_eq!(member.state().last().unwrap().1, 2, "an entry of its own term is applied");
}
