//! Messages that contradict each other or the member's data: the machine ignores them, or stops permanently.

use bytes::Bytes;
use warren_consensus::{
    AcknowledgedEntry, ConfState, Effect, EntryKind, Event, FatalError, HardState, MembershipEntry, Message,
    MessageKind, ParseMembershipError, PersistentState, RaftConfig, RaftEntry, RaftMachine, SnapshotMeta,
};

use crate::{
    member::{MemberOutput, TestMember},
    network::TestNetwork,
    slow_disk::message,
};

fn entry(index: u64, term: u64) -> RaftEntry {
    RaftEntry { index, term, kind: EntryKind::Command, data: Bytes::from_static(b"x") }
}

/// A follower in term 2 with entries 1 to 4, of which 3 are committed and applied.
fn follower() -> RaftMachine {
    let restored = PersistentState {
        hard_state: HardState { term: 2, vote: 0, commit: 3 },
        entries: (1..=4).map(|index| entry(index, 1)).collect(),
        ..PersistentState::bootstrap([1, 2, 3])
    };
    let (mut machine, _) = RaftMachine::new(RaftConfig::new(1, 1), restored).unwrap();
    machine.handle(Event::Applied { index: 3 });
    machine
}

fn append(index: u64, log_term: u64, entries: Vec<RaftEntry>) -> Message {
    Message { index, log_term, entries, ..message(MessageKind::Append, 2, 2) }
}

fn announce(index: u64, term: u64, conf_state: ConfState) -> Message {
    let snapshot = Some(SnapshotMeta { index, term, conf_state });
    Message { snapshot, ..message(MessageKind::Snapshot, 2, 2) }
}

/// Each of these makes the raft crate panic, immediately or soon, or is a sign of a broken sender.
#[test]
fn malformed_message_is_ignored() {
    let voters = || ConfState::of_voters([1, 2, 3]);
    let huge = u64::MAX;
    let cases = [
        ("from nobody", Message { from: 0, ..append(4, 1, vec![]) }),
        ("from itself", Message { from: 1, ..append(4, 1, vec![]) }),
        ("a vote without a term", message(MessageKind::Vote, 2, 0)),
        ("a question to vote without a term", message(MessageKind::PreVote, 2, 0)),
        ("a term at the end of all terms", message(MessageKind::Vote, 2, huge)),
        ("a term out of reach", message(MessageKind::Heartbeat, 2, (1 << 32) + 3)),
        ("the last of all terms", message(MessageKind::VoteResponse, 2, (1 << 62) - 1)),
        ("a priority", Message { priority: -1, ..message(MessageKind::PreVote, 2, 3) }),
        ("entries after nothing", append(9, 0, vec![entry(10, 2)])),
        ("a term of nothing", append(0, 1, vec![entry(1, 1)])),
        ("entries with a hole", append(4, 1, vec![entry(6, 2)])),
        ("entries in disorder", append(4, 1, vec![entry(5, 2), entry(5, 2)])),
        ("entries with falling terms", append(4, 1, vec![entry(5, 2), entry(6, 1)])),
        ("entries of a later term", append(4, 1, vec![entry(5, 3)])),
        ("entries at the end of all indexes", append(huge, 1, vec![entry(0, 2)])),
        ("an empty command", append(4, 1, vec![RaftEntry { data: Bytes::new(), ..entry(5, 2) }])),
        ("no snapshot", message(MessageKind::Snapshot, 2, 2)),
        ("a snapshot of nothing", announce(0, 1, voters())),
        ("a snapshot without a term", announce(9, 0, voters())),
        ("a snapshot of a later term", announce(9, 3, voters())),
        ("a snapshot at the end", announce(huge, 1, voters())),
        ("a snapshot for others", announce(9, 1, ConfState::of_voters([2, 3]))),
        ("a snapshot of nobody", announce(9, 1, ConfState::default())),
        ("a voter twice", announce(9, 1, ConfState::of_voters([1, 1]))),
        ("an end without a joint phase", announce(9, 1, ConfState { auto_leave: true, ..voters() })),
        ("a question about a read with a term", message(MessageKind::ReadIndex, 2, 2)),
        ("an answer about no read", message(MessageKind::ReadIndexResponse, 2, 2)),
    ];
    for (what, message) in cases {
        let mut machine = follower();
        assert_eq!(machine.handle(Event::MessageReceived(message)), [], "{what}");
        let good = machine.handle(Event::MessageReceived(append(4, 1, vec![entry(5, 2)])));
        assert!(good.iter().any(|effect| matches!(effect, Effect::Persist(_))), "{what}: {good:?}");
    }
}

#[test]
fn contradictory_message_is_fatal() {
    let voters = || ConfState::of_voters([1, 2, 3]);
    let diverged =
        |index, theirs| FatalError::LogDiverged { leader: 2, index, local_term: 1, leader_term: theirs };
    let cases = [
        (append(3, 2, vec![]), diverged(3, 2)),
        (append(2, 2, vec![entry(3, 2)]), diverged(2, 2)),
        (append(2, 1, vec![entry(3, 2)]), diverged(3, 2)),
        (announce(3, 2, voters()), diverged(3, 2)),
    ];
    for (message, fatal) in cases {
        let mut machine = follower();
        let old = Message { term: 1, log_term: message.log_term.min(1), ..message.clone() };
        let effects = machine.handle(Event::MessageReceived(old));
        assert!(!effects.iter().any(|effect| matches!(effect, Effect::Fatal(_))), "of an old term");
        let stopped = Effect::Fatal(fatal);
        let effects = machine.handle_all([Event::MessageReceived(message.clone()), Event::Tick]);
        let [Effect::Send(output), end] = effects.as_slice() else { panic!("{effects:?}") };
        assert_eq!(*end, stopped);
        // A member with another log may not know what was committed here.
        let committed = AcknowledgedEntry { member: 1, index: 3, term: 1 };
        assert_eq!((output[0].kind, output[0].to), (MessageKind::LogStatus, 2));
        assert_eq!(output[0].acknowledged, [committed]);
        for event in [Event::MessageReceived(message), Event::Tick, Event::Applied { index: 3 }] {
            assert_eq!(machine.handle(event), [], "it takes nothing any more");
        }
    }
}

/// A membership change that this version cannot parse, or cannot apply, must not be skipped.
#[test]
fn invalid_committed_change_is_fatal() {
    let leave = Bytes::from(MembershipEntry::LeaveJoint.encode());
    let later = ParseMembershipError::UnsupportedVersion { supported: 1, found: 2 };
    for (data, expected) in [(Bytes::from_static(b"\x02\x07"), Some(later)), (leave, None)] {
        let mut machine = follower();
        let change = RaftEntry { kind: EntryKind::Membership, data, ..entry(5, 2) };
        let message = Message { commit: 5, ..append(4, 1, vec![change]) };
        let effects = machine.handle(Event::MessageReceived(message));
        let number = effects.iter().find_map(|effect| match effect {
            Effect::Persist(persist) => Some(persist.number),
            _ => None,
        });
        let effects = machine.handle(Event::Persisted { number: number.unwrap() });
        match (effects.last(), expected) {
            (Some(Effect::Fatal(FatalError::UnreadableChange { index: 5, error })), Some(expected)) => {
                assert_eq!(*error, expected);
            }
            (Some(Effect::Fatal(FatalError::InapplicableChange { index: 5, members, .. })), None) => {
                assert_eq!(members.voters, [1, 2, 3]);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// It acknowledged entries once, so the leader relies on them; it must not take part.
#[test]
fn member_with_lost_disk_is_fatal() {
    let mut network = TestNetwork::new(3, 9);
    let leader = network.elect();
    let lost = 1 + leader % 3;
    network.tick(3);
    network.members[lost as usize - 1] = TestMember::bootstrap(lost, &[1, 2, 3]);
    let empty = &mut network.members[lost as usize - 1];
    empty.start(1);
    let mut fatal = None;
    for _ in 0..10 {
        network.with(leader, |member| member.handle(Event::Tick));
        for flying in std::mem::take(&mut network.in_flight) {
            if flying.message.to == lost {
                network.members[lost as usize - 1].handle(Event::MessageReceived(flying.message));
            }
        }
        fatal =
            network.members[lost as usize - 1].take_outcomes().into_iter().find_map(
                |outcome| match outcome {
                    MemberOutput::Fatal(fatal) => Some(fatal),
                    _ => None,
                },
            );
        if fatal.is_some() {
            break;
        }
    }
    let fatal = fatal.expect("it stops with the first heartbeat");
    let FatalError::LogLost { leader: claims, .. } = &fatal else { panic!("{fatal}") };
    assert_eq!(*claims, leader);
    assert!(fatal.to_string().contains("must be removed and joined again with a new id"), "{fatal}");
}
