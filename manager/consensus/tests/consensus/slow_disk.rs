//! Which messages a machine delays while its disk is busy.

use bytes::Bytes;
use warren_consensus::{
    ConfState, DurableWrite, Effect, EntryKind, Event, Message, MessageKind, PersistentState, RaftConfig,
    RaftEntry, RaftMachine, RaftRole, SnapshotMeta,
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
    let entries = vec![RaftEntry { index: 1, term, kind: EntryKind::Command, data }];
    Message { entries, ..message(MessageKind::Append, from, term) }
}

fn follower() -> RaftMachine {
    let (machine, effects) =
        RaftMachine::new(RaftConfig::new(1, 1), PersistentState::bootstrap([1, 2, 3])).unwrap();
    assert_eq!(effects, [Effect::RoleChanged { term: 0, role: RaftRole::Follower, leader: None }]);
    machine
}

fn persist(effects: &[Effect]) -> &DurableWrite {
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
    effects.iter().any(|effect| matches!(effect, Effect::RoleChanged { role: RaftRole::Candidate, .. }))
}

#[test]
fn responses_wait_for_durable_writes() {
    let mut machine = follower();
    let effects = machine.handle(Event::MessageReceived(message(MessageKind::Vote, 2, 1)));
    assert_eq!(sent(&effects), []);
    let vote = persist(&effects).clone();
    assert_eq!(vote.hard_state.map(|hard_state| (hard_state.term, hard_state.vote)), Some((1, 2)));
    let effects = machine.handle(Event::MessageReceived(append(2, 1)));
    assert_eq!(sent(&effects), []);
    let entries = persist(&effects).clone();
    // A heartbeat needs no write of its own; its response still stays behind the others.
    let effects = machine.handle(Event::MessageReceived(message(MessageKind::Heartbeat, 2, 1)));
    assert_eq!(effects, []);
    let effects = machine.handle(Event::Persisted { number: vote.number });
    assert_eq!(sent(&effects), [MessageKind::VoteResponse]);
    let effects = machine.handle(Event::Persisted { number: entries.number });
    assert_eq!(sent(&effects), [MessageKind::AppendResponse, MessageKind::HeartbeatResponse]);
}

#[test]
fn last_persisted_confirms_earlier_writes() {
    let mut machine = follower();
    machine.handle(Event::MessageReceived(message(MessageKind::Vote, 2, 1)));
    let effects = machine.handle(Event::MessageReceived(append(2, 1)));
    let number = persist(&effects).number;
    let effects = machine.handle(Event::Persisted { number });
    assert_eq!(sent(&effects), [MessageKind::VoteResponse, MessageKind::AppendResponse]);
    assert_eq!(machine.handle(Event::Persisted { number }), []);
}

#[test]
fn no_campaign_with_unwritten_log() {
    let mut machine = follower();
    let effects = machine.handle(Event::MessageReceived(append(2, 1)));
    let number = persist(&effects).number;
    for _ in 0..50 {
        assert_eq!(machine.handle(Event::Tick), []);
    }
    assert_eq!(machine.handle(Event::MessageReceived(message(MessageKind::TimeoutNow, 2, 1))), []);
    machine.handle(Event::Persisted { number });
    let effects = machine.handle(Event::MessageReceived(message(MessageKind::TimeoutNow, 2, 1)));
    assert!(campaigns(&effects), "{effects:?}");
}

#[test]
fn snapshot_is_acknowledged_after_load() {
    let mut machine = follower();
    let conf_state = ConfState { voters: vec![1, 2, 3], learners: vec![4], ..ConfState::default() };
    let snapshot = SnapshotMeta { index: 9, term: 1, conf_state };
    let install = Message { snapshot: Some(snapshot.clone()), ..message(MessageKind::Snapshot, 2, 1) };
    let effects = machine.handle(Event::MessageReceived(install));
    assert_eq!(persist(&effects).snapshot, Some(snapshot));
    assert_eq!(sent(&effects), []);
    let number = persist(&effects).number;
    assert_eq!(machine.handle(Event::MessageReceived(message(MessageKind::TimeoutNow, 2, 1))), []);
    for _ in 0..50 {
        assert_eq!(machine.handle(Event::Tick), []);
    }
    let effects = machine.handle(Event::Persisted { number });
    assert_eq!(sent(&effects), [MessageKind::AppendResponse]);
    let elected = (0..12).any(|_| campaigns(&machine.handle(Event::Tick)));
    assert!(elected);
}

/// A single voter is elected by its own vote, so only the machine prevents it from sending as the leader of a
/// term that it may lose in a crash, and lead again with other entries.
#[test]
fn single_voter_sends_nothing_before_durable_term() {
    let conf_state = ConfState { voters: vec![1], learners: vec![2], ..ConfState::default() };
    let restored = PersistentState { conf_state, ..PersistentState::default() };
    let (mut machine, mut effects) = RaftMachine::new(RaftConfig::new(1, 1), restored).unwrap();
    let number = persist(&effects).number;
    for _ in 0..5 {
        assert_eq!(sent(&effects), []);
        effects = machine.handle(Event::Tick);
    }
    let effects = machine.handle(Event::Persisted { number });
    assert_eq!(sent(&effects).first(), Some(&MessageKind::Append), "{effects:?}");
}
