//! What a machine holds back while its disk is busy, message by message.

use bytes::Bytes;
use warren_consensus::{
    ConfState, Config, Effect, Entry, EntryKind, Event, Machine, Message, MessageKind, Persist, Restored,
    Role, SnapshotMeta,
};

pub fn message(kind: MessageKind, from: u64, term: u64) -> Message {
    Message {
        kind,
        to: 1,
        from,
        term,
        log_term: 0,
        index: 0,
        entries: Vec::new(),
        commit: 0,
        commit_term: 0,
        snapshot: None,
        request_snapshot: 0,
        reject: false,
        reject_hint: 0,
        context: Bytes::new(),
        priority: 0,
        acknowledged: Vec::new(),
    }
}

fn append(from: u64, term: u64) -> Message {
    let data = Bytes::from_static(b"x");
    let entries = vec![Entry { index: 1, term, kind: EntryKind::Command, data }];
    Message { entries, ..message(MessageKind::Append, from, term) }
}

fn follower() -> Machine {
    let (machine, effects) = Machine::new(Config::new(1, 1), Restored::founding([1, 2, 3])).unwrap();
    assert_eq!(effects, [Effect::Role { term: 0, role: Role::Follower, leader: None }]);
    machine
}

fn persist(effects: &[Effect]) -> &Persist {
    let mut writes = effects.iter().filter_map(|effect| match effect {
        Effect::Persist(persist) => Some(persist),
        _ => None,
    });
    let write = writes.next().expect("a write was asked for");
    assert_eq!(writes.next(), None, "one write for one step");
    write
}

fn sent(effects: &[Effect]) -> Vec<MessageKind> {
    let sent = effects.iter().filter_map(|effect| match effect {
        Effect::Send(messages) => Some(messages.iter().map(|message| message.kind)),
        _ => None,
    });
    sent.flatten().collect()
}

fn campaigns(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Role { role: Role::Candidate, .. }))
}

#[test]
fn entries_and_votes_are_answered_after_they_are_written() {
    let mut machine = follower();
    let effects = machine.on(Event::Message(message(MessageKind::Vote, 2, 1)));
    assert_eq!(sent(&effects), []);
    let vote = persist(&effects).clone();
    assert_eq!(vote.hard_state.map(|hard_state| (hard_state.term, hard_state.vote)), Some((1, 2)));
    let effects = machine.on(Event::Message(append(2, 1)));
    assert_eq!(sent(&effects), []);
    let entries = persist(&effects).clone();
    // A heartbeat needs no write of its own; its answer still stays behind the others.
    let effects = machine.on(Event::Message(message(MessageKind::Heartbeat, 2, 1)));
    assert_eq!(effects, []);
    let effects = machine.on(Event::Persisted { number: vote.number });
    assert_eq!(sent(&effects), [MessageKind::VoteResponse]);
    let effects = machine.on(Event::Persisted { number: entries.number });
    assert_eq!(sent(&effects), [MessageKind::AppendResponse, MessageKind::HeartbeatResponse]);
}

#[test]
fn writes_can_be_merged_and_reported_by_the_last() {
    let mut machine = follower();
    machine.on(Event::Message(message(MessageKind::Vote, 2, 1)));
    let effects = machine.on(Event::Message(append(2, 1)));
    let number = persist(&effects).number;
    let effects = machine.on(Event::Persisted { number });
    assert_eq!(sent(&effects), [MessageKind::VoteResponse, MessageKind::AppendResponse]);
    assert_eq!(machine.on(Event::Persisted { number }), []);
}

#[test]
fn nobody_campaigns_with_a_log_that_is_not_written() {
    let mut machine = follower();
    let effects = machine.on(Event::Message(append(2, 1)));
    let number = persist(&effects).number;
    for _ in 0..50 {
        assert_eq!(machine.on(Event::Tick), []);
    }
    assert_eq!(machine.on(Event::Message(message(MessageKind::TimeoutNow, 2, 1))), []);
    machine.on(Event::Persisted { number });
    let effects = machine.on(Event::Message(message(MessageKind::TimeoutNow, 2, 1)));
    assert!(campaigns(&effects), "{effects:?}");
}

#[test]
fn a_snapshot_is_answered_and_followed_by_elections_once_it_is_loaded() {
    let mut machine = follower();
    let conf_state = ConfState { voters: vec![1, 2, 3], learners: vec![4], ..ConfState::default() };
    let snapshot = SnapshotMeta { index: 9, term: 1, conf_state };
    let install = Message { snapshot: Some(snapshot.clone()), ..message(MessageKind::Snapshot, 2, 1) };
    let effects = machine.on(Event::Message(install));
    assert_eq!(persist(&effects).snapshot, Some(snapshot));
    assert_eq!(sent(&effects), []);
    let number = persist(&effects).number;
    assert_eq!(machine.on(Event::Message(message(MessageKind::TimeoutNow, 2, 1))), []);
    for _ in 0..50 {
        assert_eq!(machine.on(Event::Tick), []);
    }
    let effects = machine.on(Event::Persisted { number });
    assert_eq!(sent(&effects), [MessageKind::AppendResponse]);
    let elected = (0..12).any(|_| campaigns(&machine.on(Event::Tick)));
    assert!(elected);
}

/// A lone voter is elected by its own vote, so nothing but the machine keeps it from speaking as
/// the leader of a term that it may forget in a crash, and lead again with other entries.
#[test]
fn a_lone_voter_says_nothing_to_learners_before_its_term_is_written() {
    let conf_state = ConfState { voters: vec![1], learners: vec![2], ..ConfState::default() };
    let restored = Restored { conf_state, ..Restored::default() };
    let (mut machine, mut effects) = Machine::new(Config::new(1, 1), restored).unwrap();
    let number = persist(&effects).number;
    for _ in 0..5 {
        assert_eq!(sent(&effects), []);
        effects = machine.on(Event::Tick);
    }
    let effects = machine.on(Event::Persisted { number });
    assert_eq!(sent(&effects).first(), Some(&MessageKind::Append), "{effects:?}");
}
