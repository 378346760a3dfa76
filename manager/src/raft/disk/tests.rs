use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::TempDir;
use warren_consensus::HardState;
use warren_log::{ConfState, SnapshotMeta};

use super::*;
use crate::raft::snapshot;

const SECRET: &[u8] = b"password=hunter2";

fn entry(index: u64, kind: EntryKind) -> Entry {
    let data: &[u8] = if kind == EntryKind::Noop { b"" } else { SECRET };
    Entry { index, term: 2, kind, data: data.into() }
}

fn entries() -> Vec<Entry> {
    let kinds = [EntryKind::Noop, EntryKind::Command, EntryKind::Membership, EntryKind::Command];
    (1..).zip(kinds).map(|(index, kind)| entry(index, kind)).collect()
}

fn persist() -> Persist {
    let hard_state = Some(HardState::default());
    Persist { number: 1, snapshot: None, entries: entries(), hard_state, acknowledged: None }
}

fn loaded(entries: Vec<Entry>) -> Loaded {
    let members = ConfState::of_voters(vec![1]);
    let hard_state = HardState { term: 2, ..HardState::default() };
    Loaded { hard_state, conf_state: members, entries, ..Loaded::default() }
}

fn ring(dir: &TempDir, keys: &BTreeSet<KeyId>) -> Keyring {
    Keyring::open(dir.path(), keys).unwrap()
}

#[test]
fn what_entries_carry_is_sealed_and_comes_back_at_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let first = ring(&dir, &BTreeSet::new());
    let batch = batch(persist(), &first).unwrap();
    assert_eq!(batch.hard_state, Some(HardState::default()));
    for (sealed, plain) in batch.entries.iter().zip(entries()) {
        assert_eq!((sealed.index, sealed.term, sealed.kind), (plain.index, plain.term, plain.kind));
        assert_eq!(sealed.data.is_empty(), plain.kind == EntryKind::Noop);
        assert!(!sealed.data.windows(8).any(|window| window == &SECRET[..8]));
    }
    let stored = loaded(batch.entries);
    let keys = keys(&stored).unwrap();
    assert_eq!(keys, BTreeSet::from([first.current()]));
    let second = ring(&dir, &keys);
    assert_ne!(second.current(), first.current());
    assert_eq!(restored(stored, &second).unwrap().entries, entries());
}

#[test]
fn an_entry_that_was_moved_is_refused_by_its_number() {
    let dir = tempfile::tempdir().unwrap();
    let keyring = ring(&dir, &BTreeSet::new());
    let sealed = batch(persist(), &keyring).unwrap().entries;
    let refused = |change: &dyn Fn(&mut Entry)| {
        let mut stored = loaded(sealed.clone());
        change(&mut stored.entries[1]);
        restored(stored, &keyring).unwrap_err()
    };
    let changes: [&dyn Fn(&mut Entry); 4] = [
        &|entry| entry.index += 100,
        &|entry| entry.term += 1,
        &|entry| entry.kind = EntryKind::Membership,
        &|entry| entry.data = sealed[3].data.clone(),
    ];
    for change in changes {
        assert!(matches!(refused(change).source, SealError::Refused(_)));
    }
    assert!(refused(changes[1]).to_string().starts_with("entry 2 of the log: it does not open"));
}

#[test]
fn entries_that_were_never_sealed_are_refused() {
    let error = keys(&loaded(entries())).unwrap_err();
    assert!(matches!(error, SealedEntry { index: 2, source: SealError::Format(b'p') }), "{error}");
}

/// What version 1 looks like on the disk: a keyring, and what it sealed. These files are never changed.
#[test]
fn version_1_is_read() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/raft/disk/golden");
    let read = |name: &str| std::fs::read(golden.join(name)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for name in ["member.key", "keyring"] {
        let path = dir.path().join(name);
        std::fs::write(&path, read(name)).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
    }
    let mut sealed = entries();
    for (entry, name) in sealed[1..].iter_mut().zip(["command.1", "membership.1", "command-4.1"]) {
        entry.data = read(name).into();
    }
    let stored = loaded(sealed);
    let keyring = ring(&dir, &keys(&stored).unwrap());
    assert_eq!(restored(stored, &keyring).unwrap().entries, entries());
    let opened = keyring.unseal_stream(&snapshot::place(&golden_meta()), read("snapshot.1")).unwrap();
    assert_eq!(opened, SECRET);
}

/// Something in each of its fields.
fn golden_meta() -> SnapshotMeta {
    let conf_state = ConfState {
        voters: vec![1, 2, 3],
        learners: vec![4],
        voters_outgoing: vec![1, 5, 6],
        learners_next: vec![6],
        auto_leave: true,
    };
    SnapshotMeta { index: 1_000, term: 7, conf_state }
}
