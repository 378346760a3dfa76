//! Restored state that a machine rejects.

use bytes::Bytes;
use warren_consensus::{
    ConfState, EntryKind, Error, HardState, PersistentState, RaftConfig, RaftEntry, RaftMachine, SnapshotMeta,
};

fn entries(range: std::ops::RangeInclusive<u64>, term: u64) -> Vec<RaftEntry> {
    let data = Bytes::from_static(b"x");
    range.map(|index| RaftEntry { index, term, kind: EntryKind::Command, data: data.clone() }).collect()
}

fn members(voters: &[u64], learners: &[u64]) -> ConfState {
    ConfState { voters: voters.to_vec(), learners: learners.to_vec(), ..ConfState::default() }
}

/// A log of entries 3 to 8 in term 2 with a snapshot at 5.
fn whole() -> PersistentState {
    PersistentState {
        hard_state: HardState { term: 3, vote: 1, commit: 6 },
        conf_state: members(&[1, 2, 3], &[]),
        snapshot: Some(SnapshotMeta { index: 5, term: 2, conf_state: members(&[1, 2, 3], &[]) }),
        entries: entries(3..=8, 2),
        acknowledged: Vec::new(),
    }
}

fn refusal(change: impl FnOnce(&mut PersistentState)) -> Option<Error> {
    let mut restored = whole();
    change(&mut restored);
    RaftMachine::new(RaftConfig::new(1, 1), restored).err()
}

#[test]
fn valid_state_is_accepted() {
    assert_eq!(refusal(|_| {}), None);
    assert_eq!(refusal(|restored| restored.entries = entries(6..=8, 2)), None);
    assert_eq!(refusal(|restored| restored.entries = [entries(4..=7, 2), entries(8..=8, 3)].concat()), None);
    assert_eq!(refusal(|restored| restored.hard_state.commit = 1), None);
    assert_eq!(refusal(|restored| *restored = PersistentState::default()), None);
    let bare = refusal(|restored| {
        restored.entries.clear();
        restored.hard_state.commit = 5;
    });
    assert_eq!(bare, None);
}

#[test]
fn invalid_state_is_refused() {
    type Change = fn(&mut PersistentState);
    let cases: [(Change, Error); 9] = [
        (|r| r.entries = entries(7..=8, 2), Error::MissingEntry { expected: 6, found: 7 }),
        (|r| drop(r.entries.remove(2)), Error::MissingEntry { expected: 5, found: 6 }),
        (|r| r.entries.truncate(2), Error::LogEndsBeforeSnapshot { last: 4, snapshot: 5 }),
        (|r| r.hard_state.commit = 9, Error::CommitBeyondLog { commit: 9, last: 8 }),
        (|r| r.entries[5].term = 4, Error::InvalidTerm { index: 8, found: 4, lowest: 2, highest: 3 }),
        (|r| r.entries[5].term = 1, Error::InvalidTerm { index: 8, found: 1, lowest: 2, highest: 3 }),
        (|r| r.entries[2].term = 1, Error::InvalidTerm { index: 5, found: 1, lowest: 2, highest: 2 }),
        (|r| r.entries[2].term = 0, Error::InvalidTerm { index: 5, found: 0, lowest: 2, highest: 2 }),
        (|r| r.entries[0].term = 0, Error::InvalidTerm { index: 3, found: 0, lowest: 1, highest: 2 }),
    ];
    for (change, expected) in cases {
        assert_eq!(refusal(change), Some(expected));
    }
}

#[test]
fn invalid_members_are_refused() {
    let joint = ConfState {
        voters: vec![1, 4],
        learners: vec![5],
        voters_outgoing: vec![1, 2],
        learners_next: vec![2],
        auto_leave: true,
    };
    let cases = [
        members(&[1, 2], &[2]),
        members(&[1, 1], &[]),
        members(&[0], &[]),
        members(&[], &[1]),
        ConfState { auto_leave: true, ..members(&[1], &[]) },
        ConfState { learners_next: vec![2], ..members(&[1], &[]) },
        ConfState { voters_outgoing: vec![2, 2], ..joint.clone() },
        ConfState { learners: vec![2], ..joint.clone() },
        ConfState { learners_next: vec![1], ..joint.clone() },
        ConfState { learners_next: vec![3], ..joint.clone() },
    ];
    assert_eq!(refusal(|restored| restored.snapshot.as_mut().unwrap().conf_state = joint), None);
    for members in cases {
        let impossible = Some(Error::InvalidMembers { members: members.clone() });
        assert_eq!(refusal(|r| r.snapshot.as_mut().unwrap().conf_state = members.clone()), impossible);
        let founding = |r: &mut PersistentState| {
            *r = PersistentState { conf_state: members, ..PersistentState::default() }
        };
        assert_eq!(refusal(founding), impossible);
    }
}

/// The members of the snapshot count.
#[test]
fn snapshot_members_are_used() {
    let mut restored = whole();
    restored.conf_state = members(&[1], &[]);
    let (machine, _) = RaftMachine::new(RaftConfig::new(1, 1), restored).unwrap();
    assert_eq!(*machine.members(), members(&[1, 2, 3], &[]));
}

#[test]
fn invalid_config_is_refused() {
    let refused = |config: RaftConfig| match RaftMachine::new(config, whole()) {
        Err(Error::InvalidConfig(text)) => text,
        other => panic!("{:?}", other.err()),
    };
    assert!(refused(RaftConfig::new(0, 1)).contains("id"));
    assert!(refused(RaftConfig { heartbeat_ticks: 6, ..RaftConfig::new(1, 1) }).contains("heartbeat"));
    assert!(refused(RaftConfig { election_ticks: 6..6, ..RaftConfig::new(1, 1) }).contains("election"));
}
