//! The conformance suite of all engines. Each case gets its own store that it can close and reopen.

use warren_log::{AcknowledgedEntry, EntryKind, Error, LogStore, RaftEntry, StoredLog, WriteBatch};

use crate::{entries, entry, hard_state, joint_members, members, snapshot};

/// Opens the same store at every call, after the previous handle was dropped.
pub type OpenStore = Box<dyn FnMut() -> Box<dyn LogStore>>;

/// Runs every case on a new store of `new_store`.
pub fn suite(mut new_store: impl FnMut() -> OpenStore) {
    type SuiteCase = (&'static str, fn(OpenStore));
    let cases: [SuiteCase; 12] = [
        ("a new store is empty", new_is_empty),
        ("a batch survives reopening", batch_survives),
        ("an empty batch writes nothing", empty_batch),
        ("a batch is one durable write", one_write),
        ("a conflicting suffix is replaced", conflicting_suffix),
        ("the latest batch can be repeated", repeat_batch),
        ("entries of every kind and size survive", kinds_and_sizes),
        ("entries that do not fit are refused", invalid_writes_are_rejected),
        ("own snapshots and compaction", own_snapshot),
        ("members are those of the snapshot", members_of_snapshot),
        ("a received snapshot replaces the log", received_snapshot),
        ("snapshots and compaction are bounded", snapshot_bounds),
    ];
    for (name, case) in cases {
        println!("case: {name}");
        case(new_store());
    }
}

/// Acknowledgements of two members.
pub fn acknowledged(index: u64) -> Vec<AcknowledgedEntry> {
    [1, 2].map(|member| AcknowledgedEntry { member, index, term: 1 }).to_vec()
}

fn append(entries: Vec<RaftEntry>) -> WriteBatch {
    WriteBatch { entries, ..WriteBatch::default() }
}

fn new_is_empty(mut open: OpenStore) {
    let store = open();
    assert_eq!(store.load().unwrap(), StoredLog::default());
    drop(store);
    assert_eq!(open().load().unwrap(), StoredLog::default());
}

fn batch_survives(mut open: OpenStore) {
    let mut log = entries(1..=3, 1);
    log[0] = RaftEntry { kind: EntryKind::Noop, data: Default::default(), ..log[0].clone() };
    let batch = WriteBatch {
        snapshot: None,
        entries: log.clone(),
        hard_state: Some(hard_state(1, 1, 2)),
        conf_state: Some(joint_members()),
        acknowledged: Some(acknowledged(3)),
    };
    let mut store = open();
    store.append(&batch).unwrap();
    let expected = StoredLog {
        hard_state: hard_state(1, 1, 2),
        conf_state: joint_members(),
        snapshot: None,
        entries: log,
        recovered: None,
        acknowledged: acknowledged(3),
    };
    assert_eq!(store.load().unwrap(), expected);
    drop(store);
    assert_eq!(open().load().unwrap(), expected);
}

fn kinds_and_sizes(mut open: OpenStore) {
    let kinds = [EntryKind::Command, EntryKind::Membership];
    let sizes = [1, 4086, 4087, 4088, 10_000, 300_000, 2_000_000];
    let noop = RaftEntry { index: 1, term: 1, kind: EntryKind::Noop, data: Default::default() };
    let of_size = |(index, size): (u64, usize)| RaftEntry {
        data: vec![index as u8; size].into(),
        kind: kinds[index as usize % 2],
        ..entry(index, 1)
    };
    let log: Vec<RaftEntry> =
        std::iter::once(noop).chain((2..).zip(sizes).map(of_size)).chain([entry(9, 1)]).collect();
    let mut store = open();
    store.append(&append(log.clone())).unwrap();
    assert_eq!(store.load().unwrap().entries, log);
    drop(store);
    let mut store = open();
    assert_eq!(store.load().unwrap().entries, log);
    store.append(&append(vec![entry(7, 2)])).unwrap();
    let shorter = [&log[..6], &[entry(7, 2)]].concat();
    assert_eq!(store.load().unwrap().entries, shorter, "nothing is left of the long one");
    drop(store);
    assert_eq!(open().load().unwrap().entries, shorter);
}

fn members_of_snapshot(mut open: OpenStore) {
    let mut store = open();
    let founding = WriteBatch { conf_state: Some(members(&[1], &[])), ..append(entries(1..=5, 1)) };
    store.append(&founding).unwrap();
    let mut meta = snapshot(4, 1);
    meta.conf_state = joint_members();
    for _ in 0..2 {
        store.set_snapshot(&meta).unwrap();
        assert_eq!(store.load().unwrap().conf_state, joint_members());
    }
    store.append(&append(entries(6..=6, 1))).unwrap();
    drop(store);
    let loaded = open().load().unwrap();
    assert_eq!((loaded.conf_state, loaded.snapshot), (joint_members(), Some(meta)));
}

fn empty_batch(mut open: OpenStore) {
    let mut store = open();
    let before = store.stats();
    store.append(&WriteBatch::default()).unwrap();
    assert_eq!(store.stats(), before);
    assert_eq!(store.load().unwrap(), StoredLog::default());
}

fn one_write(mut open: OpenStore) {
    let mut store = open();
    let batch = WriteBatch { hard_state: Some(hard_state(1, 1, 0)), ..append(entries(1..=100, 1)) };
    let before = store.stats();
    store.append(&batch).unwrap();
    let after = store.stats();
    assert_eq!(after.durable_writes, before.durable_writes + 1);
    assert_eq!(after.bytes_appended, before.bytes_appended + batch.stored_bytes());
    let data: usize = batch.entries.iter().map(|entry| entry.data.len()).sum();
    assert!(batch.stored_bytes() as usize > data + 100);
}

fn conflicting_suffix(mut open: OpenStore) {
    let mut store = open();
    store.append(&append(entries(1..=5, 1))).unwrap();
    store.append(&append(entries(3..=4, 2))).unwrap();
    let expected = [entries(1..=2, 1), entries(3..=4, 2)].concat();
    assert_eq!(store.load().unwrap().entries, expected);
    drop(store);
    let mut store = open();
    assert_eq!(store.load().unwrap().entries, expected);
    store.append(&append(vec![entry(5, 3)])).unwrap();
    store.append(&append(vec![entry(1, 4)])).unwrap();
    assert_eq!(store.load().unwrap().entries, [entry(1, 4)]);
}

fn repeat_batch(mut open: OpenStore) {
    let mut store = open();
    store.append(&append(entries(1..=2, 1))).unwrap();
    let batch = WriteBatch { hard_state: Some(hard_state(2, 3, 1)), ..append(entries(2..=4, 2)) };
    store.append(&batch).unwrap();
    let once = store.load().unwrap();
    store.append(&batch).unwrap();
    assert_eq!(store.load().unwrap(), once);
    drop(store);
    let mut store = open();
    store.append(&batch).unwrap();
    assert_eq!(store.load().unwrap(), once);
}

fn invalid_writes_are_rejected(mut open: OpenStore) {
    let mut store = open();
    store.append(&append(entries(1..=3, 1))).unwrap();
    let before = (store.load().unwrap(), store.stats());
    let gap = store.append(&append(entries(5..=6, 1)));
    assert!(matches!(gap, Err(Error::Gap { expected: 4, found: 5 })), "{gap:?}");
    let hole = store.append(&append(vec![entry(4, 1), entry(6, 1)]));
    assert!(matches!(hole, Err(Error::Gap { expected: 5, found: 6 })), "{hole:?}");
    let zero = store.append(&append(vec![entry(0, 1)]));
    assert!(matches!(zero, Err(Error::Compacted { first: 1, found: 0 })), "{zero:?}");
    assert_eq!((store.load().unwrap(), store.stats()), before);
}

fn own_snapshot(mut open: OpenStore) {
    let mut store = open();
    store.append(&append(entries(1..=10, 1))).unwrap();
    store.set_snapshot(&snapshot(6, 1)).unwrap();
    let loaded = store.load().unwrap();
    assert_eq!((loaded.snapshot, loaded.entries.len()), (Some(snapshot(6, 1)), 10));
    store.compact(4).unwrap();
    let before = store.stats();
    store.set_snapshot(&snapshot(6, 1)).unwrap();
    store.compact(4).unwrap();
    store.compact(2).unwrap();
    assert_eq!(store.stats(), before, "repeating either writes nothing");
    drop(store);
    let mut store = open();
    let loaded = store.load().unwrap();
    assert_eq!(loaded.snapshot, Some(snapshot(6, 1)));
    assert_eq!(loaded.entries, entries(5..=10, 1));
    let covered = store.append(&append(vec![entry(6, 2)]));
    assert!(matches!(covered, Err(Error::Compacted { first: 7, found: 6 })), "{covered:?}");
    store.set_snapshot(&snapshot(10, 1)).unwrap();
    store.compact(10).unwrap();
    drop(store);
    let mut store = open();
    assert_eq!(store.load().unwrap().entries, []);
    let gap = store.append(&append(vec![entry(12, 2)]));
    assert!(matches!(gap, Err(Error::Gap { expected: 11, found: 12 })), "{gap:?}");
    store.append(&append(vec![entry(11, 2)])).unwrap();
    assert_eq!(store.load().unwrap().entries, [entry(11, 2)]);
}

fn received_snapshot(mut open: OpenStore) {
    let mut store = open();
    store.append(&append(entries(1..=10, 1))).unwrap();
    let batch = WriteBatch {
        snapshot: Some(snapshot(8, 2)),
        hard_state: Some(hard_state(3, 0, 8)),
        ..append(entries(9..=9, 3))
    };
    let before = store.stats();
    for _ in 0..2 {
        store.append(&batch).unwrap();
        let loaded = store.load().unwrap();
        assert_eq!(loaded.snapshot, Some(snapshot(8, 2)));
        assert_eq!(loaded.conf_state, snapshot(8, 2).conf_state);
        assert_eq!(loaded.hard_state, hard_state(3, 0, 8));
        assert_eq!(loaded.entries, entries(9..=9, 3));
    }
    assert_eq!(store.stats().durable_writes, before.durable_writes + 2);
    let far = WriteBatch { snapshot: Some(snapshot(100, 3)), ..WriteBatch::default() };
    store.append(&far).unwrap();
    drop(store);
    let mut store = open();
    let loaded = store.load().unwrap();
    assert_eq!((loaded.snapshot, loaded.entries), (Some(snapshot(100, 3)), vec![]));
    store.append(&append(vec![entry(101, 3)])).unwrap();
}

fn snapshot_bounds(mut open: OpenStore) {
    let mut store = open();
    store.append(&append(entries(1..=5, 1))).unwrap();
    store.set_snapshot(&snapshot(3, 1)).unwrap();
    let before = (store.load().unwrap(), store.stats());
    let ahead = store.set_snapshot(&snapshot(6, 1));
    assert!(matches!(ahead, Err(Error::SnapshotAhead { last: 5, found: 6 })), "{ahead:?}");
    let behind = store.set_snapshot(&snapshot(2, 1));
    assert!(matches!(behind, Err(Error::SnapshotBehind { recorded: 3, found: 2 })), "{behind:?}");
    let older = store.append(&WriteBatch { snapshot: Some(snapshot(2, 1)), ..WriteBatch::default() });
    assert!(matches!(older, Err(Error::SnapshotBehind { recorded: 3, found: 2 })), "{older:?}");
    let uncovered = store.compact(4);
    assert!(matches!(uncovered, Err(Error::NotCovered { covered: 3, up_to: 4 })), "{uncovered:?}");
    assert_eq!((store.load().unwrap(), store.stats()), before);
}
