//! What a machine does with messages that contradict each other, or what it has: nothing, or it
//! stops for good.

use bytes::Bytes;
use warren_consensus::{
    Acknowledged, ConfState, Config, Effect, Entry, EntryKind, Event, Fatal, HardState, Machine, Membership,
    MembershipError, Message, MessageKind, Restored, SnapshotMeta,
};

use crate::{
    member::{Member, Outcome},
    network::Network,
    slow_disk::message,
};

fn entry(index: u64, term: u64) -> Entry {
    Entry { index, term, kind: EntryKind::Command, data: Bytes::from_static(b"x") }
}

/// A follower in term 2 with entries 1 to 4, of which 3 are committed and applied.
fn follower() -> Machine {
    let restored = Restored {
        hard_state: HardState { term: 2, vote: 0, commit: 3 },
        entries: (1..=4).map(|index| entry(index, 1)).collect(),
        ..Restored::founding([1, 2, 3])
    };
    let (mut machine, _) = Machine::new(Config::new(1, 1), restored).unwrap();
    machine.on(Event::Applied { index: 3 });
    machine
}

fn append(index: u64, log_term: u64, entries: Vec<Entry>) -> Message {
    Message { index, log_term, entries, ..message(MessageKind::Append, 2, 2) }
}

fn announce(index: u64, term: u64, conf_state: ConfState) -> Message {
    let snapshot = Some(SnapshotMeta { index, term, conf_state });
    Message { snapshot, ..message(MessageKind::Snapshot, 2, 2) }
}

/// Each of these makes the raft crate panic, at once or soon, or is a sign of a broken sender.
#[test]
fn what_no_member_can_have_sent_is_ignored() {
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
        ("an empty command", append(4, 1, vec![Entry { data: Bytes::new(), ..entry(5, 2) }])),
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
        assert_eq!(machine.on(Event::Message(message)), [], "{what}");
        let good = machine.on(Event::Message(append(4, 1, vec![entry(5, 2)])));
        assert!(good.iter().any(|effect| matches!(effect, Effect::Persist(_))), "{what}: {good:?}");
    }
}

#[test]
fn what_cannot_be_true_at_once_stops_the_machine() {
    let voters = || ConfState::of_voters([1, 2, 3]);
    let diverged = |index, theirs| Fatal::Diverged { leader: 2, index, ours: 1, theirs };
    let cases = [
        (append(3, 2, vec![]), diverged(3, 2)),
        (append(2, 2, vec![entry(3, 2)]), diverged(2, 2)),
        (append(2, 1, vec![entry(3, 2)]), diverged(3, 2)),
        (announce(3, 2, voters()), diverged(3, 2)),
    ];
    for (message, fatal) in cases {
        let mut machine = follower();
        let old = Message { term: 1, log_term: message.log_term.min(1), ..message.clone() };
        let effects = machine.on(Event::Message(old));
        assert!(!effects.iter().any(|effect| matches!(effect, Effect::Fatal(_))), "of an old term");
        let stopped = Effect::Fatal(fatal);
        let effects = machine.on_all([Event::Message(message.clone()), Event::Tick]);
        let [Effect::Send(said), end] = effects.as_slice() else { panic!("{effects:?}") };
        assert_eq!(*end, stopped);
        // Whoever has another log may not know what was committed here.
        let committed = Acknowledged { member: 1, index: 3, term: 1 };
        assert_eq!((said[0].kind, said[0].to), (MessageKind::Status, 2));
        assert_eq!(said[0].acknowledged, [committed]);
        for event in [Event::Message(message), Event::Tick, Event::Applied { index: 3 }] {
            assert_eq!(machine.on(event), [], "it takes nothing any more");
        }
    }
}

/// A change of members that this version cannot read, or cannot make, must not be passed over.
#[test]
fn a_change_of_members_that_means_nothing_here_stops_the_machine() {
    let leave = Bytes::from(Membership::LeaveJoint.encode());
    let later = MembershipError::Version { supported: 1, found: 2 };
    for (data, expected) in [(Bytes::from_static(b"\x02\x07"), Some(later)), (leave, None)] {
        let mut machine = follower();
        let change = Entry { kind: EntryKind::Membership, data, ..entry(5, 2) };
        let message = Message { commit: 5, ..append(4, 1, vec![change]) };
        let effects = machine.on(Event::Message(message));
        let number = effects.iter().find_map(|effect| match effect {
            Effect::Persist(persist) => Some(persist.number),
            _ => None,
        });
        let effects = machine.on(Event::Persisted { number: number.unwrap() });
        match (effects.last(), expected) {
            (Some(Effect::Fatal(Fatal::UnknownChange { index: 5, error })), Some(expected)) => {
                assert_eq!(*error, expected);
            }
            (Some(Effect::Fatal(Fatal::ImpossibleChange { index: 5, members, .. })), None) => {
                assert_eq!(members.voters, [1, 2, 3]);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// It acknowledged entries once, so the leader counts on them; it must not take part.
#[test]
fn a_member_that_lost_its_disk_stops_under_its_old_id() {
    let mut network = Network::new(3, 9);
    let leader = network.elect();
    let lost = 1 + leader % 3;
    network.pass(3);
    network.members[lost as usize - 1] = Member::found(lost, &[1, 2, 3]);
    let empty = &mut network.members[lost as usize - 1];
    empty.start(1);
    let mut fatal = None;
    for _ in 0..10 {
        network.with(leader, |member| member.on(Event::Tick));
        for flying in std::mem::take(&mut network.flying) {
            if flying.message.to == lost {
                network.members[lost as usize - 1].on(Event::Message(flying.message));
            }
        }
        fatal =
            network.members[lost as usize - 1].take_outcomes().into_iter().find_map(
                |outcome| match outcome {
                    Outcome::Fatal(fatal) => Some(fatal),
                    _ => None,
                },
            );
        if fatal.is_some() {
            break;
        }
    }
    let fatal = fatal.expect("it stops with the first heartbeat");
    let Fatal::LostLog { leader: claims, .. } = &fatal else { panic!("{fatal}") };
    assert_eq!(*claims, leader);
    assert!(fatal.to_string().contains("must join again as a new one"), "{fatal}");
}
