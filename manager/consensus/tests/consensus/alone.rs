//! A group of one: leads at once, loses nothing it acknowledged, writes nothing when idle.

use bytes::Bytes;
use warren_consensus::{
    Committed, Config, DropReason, Effect, Entry, EntryKind, Event, HardState, Machine, Persist, Proposal,
    Restored, Role,
};
use warren_log::CrashPoint;

use crate::member::{Member, Outcome};

fn started() -> Member {
    let mut member = Member::found(1, &[1]);
    member.start(1);
    member.write_all();
    member
}

fn commands(member: &Member) -> Vec<Bytes> {
    member.state().iter().map(|(.., data)| data.clone()).filter(|data| !data.is_empty()).collect()
}

fn proposal(id: u64, data: &'static str) -> Proposal {
    Proposal { id, data: Bytes::from_static(data.as_bytes()) }
}

/// The effects of the very first start, step by step: nothing is applied before it is written.
#[test]
fn a_new_group_of_one_leads_with_its_first_write() {
    let (mut machine, effects) = Machine::new(Config::new(1, 1), Restored::founding([1])).unwrap();
    let noop = Entry { index: 1, term: 1, kind: EntryKind::Noop, data: Bytes::new() };
    let hard_state = HardState { term: 1, vote: 1, commit: 0 };
    let persist = Persist {
        number: 1,
        snapshot: None,
        entries: vec![noop.clone()],
        hard_state: Some(hard_state),
        acknowledged: None,
    };
    let role = Effect::Role { term: 1, role: Role::Leader, leader: Some(1) };
    assert_eq!(effects, [role, Effect::Persist(persist)]);
    let effects = machine.on(Event::Persisted { number: 1 });
    let committed = Committed { entry: noop, proposal: None };
    assert_eq!(effects, [Effect::Apply(vec![committed])]);
    assert_eq!(machine.on(Event::Applied { index: 1 }), []);
    for _ in 0..2 {
        assert_eq!(machine.on(Event::Persisted { number: 1 }), [], "a repeat is harmless");
        assert_eq!(machine.on(Event::Applied { index: 1 }), [], "a repeat is harmless");
    }
}

#[test]
fn proposals_that_come_together_share_one_write() {
    let mut member = started();
    let before = member.disk.durable_writes();
    let batch = (10..20).map(|id| Proposal { id, data: Bytes::from(id.to_string()) }).collect();
    member.on(Event::Propose(batch));
    assert_eq!(member.writes_waiting(), 1);
    assert_eq!(commands(&member).len(), 0, "nothing is applied before it is written");
    member.write_all();
    assert_eq!(member.disk.durable_writes(), before + 1, "and the commit needs no second one");
    let applied: Vec<_> = member
        .take_outcomes()
        .into_iter()
        .filter_map(|outcome| match outcome {
            Outcome::Applied { proposal, .. } => proposal,
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
        member.on(Event::Tick);
        assert!(!member.write_one());
    }
    assert_eq!(member.disk.durable_writes(), before);
    assert_eq!(member.take_outcomes(), [], "and stays the leader");
}

#[test]
fn a_proposal_without_data_is_refused_and_the_rest_is_not() {
    let mut member = started();
    member.take_outcomes();
    member.on(Event::Propose(vec![proposal(1, ""), proposal(2, "x")]));
    member.write_all();
    let outcomes = member.take_outcomes();
    assert_eq!(outcomes[0], Outcome::Dropped { proposal: 1, reason: DropReason::Empty });
    assert!(matches!(outcomes[1], Outcome::Applied { proposal: Some(2), .. }), "{outcomes:?}");
}

#[test]
fn too_much_at_once_is_refused_until_there_is_room() {
    let config = Config { max_uncommitted_bytes: 10, max_message_bytes: 10, ..Config::new(1, 1) };
    let (mut machine, _) = Machine::new(config, Restored::founding([1])).unwrap();
    machine.on(Event::Persisted { number: 1 });
    let effects = machine.on(Event::Propose(vec![proposal(1, "eight by")]));
    let [Effect::Persist(write)] = effects.as_slice() else { panic!("{effects:?}") };
    let busy = Effect::Dropped { proposal: 2, reason: DropReason::Busy };
    assert_eq!(machine.on(Event::Propose(vec![proposal(2, "tes")])), [busy]);
    machine.on(Event::Persisted { number: write.number });
    let effects = machine.on(Event::Propose(vec![proposal(3, "tes")]));
    assert!(matches!(effects.as_slice(), [Effect::Persist(_)]), "{effects:?}");
}

#[test]
fn a_read_is_answered_at_the_commit_index() {
    let mut member = started();
    member.propose(1);
    member.on(Event::ReadIndex { ctx: 7 });
    member.write_all();
    member.on(Event::ReadIndex { ctx: 8 });
    let reads: Vec<_> = member
        .take_outcomes()
        .into_iter()
        .filter(|outcome| matches!(outcome, Outcome::ReadReady { .. }))
        .collect();
    let expected = [Outcome::ReadReady { ctx: 7, index: 1 }, Outcome::ReadReady { ctx: 8, index: 2 }];
    assert_eq!(reads, expected);
}

/// Proposals, snapshots and compaction until the end or the planned crash; returns what was
/// acknowledged.
fn history(member: &mut Member, crash: Option<(u64, CrashPoint)>) -> Vec<u64> {
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
            Outcome::Applied { proposal, .. } => proposal,
            _ => None,
        });
        acknowledged.extend(applied);
    }
    acknowledged
}

#[test]
fn nothing_acknowledged_is_lost_at_any_crash() {
    let mut whole = Member::found(1, &[1]);
    let acknowledged = history(&mut whole, None);
    assert_eq!(acknowledged, (1..=24).collect::<Vec<_>>());
    let writes = whole.disk.durable_writes() - 1;
    assert!(writes > 25, "{writes}");

    for nth in 1..=writes {
        for point in [CrashPoint::Before, CrashPoint::After] {
            let mut member = Member::found(1, &[1]);
            let acknowledged = history(&mut member, Some((nth, point)));
            assert!(member.run.is_none(), "it crashed at write {nth}");
            // Crash again in the first write of the restart, then come back for good.
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
                let wanted = Bytes::from(format!("command {id}"));
                assert!(present.contains(&wanted), "{id} is lost at write {nth} {point:?}");
            }
            let order: Vec<_> = (1..).map(|id| format!("command {id}")).take(present.len() - 1).collect();
            assert_eq!(present[..present.len() - 1], order, "once each, in order");
            assert_eq!(present.last().unwrap(), "command 1000");
        }
    }
}

#[test]
fn a_restart_leads_at_once_in_a_new_term_and_applies_everything_again() {
    let mut member = started();
    for id in 1..=3 {
        member.propose(id);
    }
    member.write_all();
    member.crash();
    member.start(2);
    let roles: Vec<_> = member.take_outcomes();
    let leader = Outcome::Role { term: 2, role: Role::Leader, leader: Some(1) };
    assert!(roles.contains(&leader), "before any tick: {roles:?}");
    member.write_all();
    assert_eq!(commands(&member).len(), 3);
    assert_eq!(member.state().last().unwrap().1, 2, "an entry of its own term is applied");
}
