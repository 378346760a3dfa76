use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::TempDir;
use warren_consensus::HardState;
use warren_log::{ConfState, SnapshotMeta};

use super::*;
use crate::raft::snapshot;

const SECRET: &[u8] = b"password=hunter2";

fn entry(index: u64, kind: EntryKind) -> RaftEntry {
    let data: &[u8] = if kind == EntryKind::Noop { b"" } else { SECRET };
    RaftEntry { index, term: 2, kind, data: data.into() }
}

fn entries() -> Vec<RaftEntry> {
    let kinds = [EntryKind::Noop, EntryKind::Command, EntryKind::Membership, EntryKind::Command];
    (1..).zip(kinds).map(|(index, kind)| entry(index, kind)).collect()
}

fn persist() -> DurableWrite {
    let hard_state = Some(HardState::default());
    DurableWrite { number: 1, snapshot: None, entries: entries(), hard_state, acknowledged: None }
}

fn loaded(entries: Vec<RaftEntry>) -> StoredLog {
    let members = ConfState::of_voters(vec![1]);
    let hard_state = HardState { term: 2, ..HardState::default() };
    StoredLog { hard_state, conf_state: members, entries, ..StoredLog::default() }
}

fn ring(dir: &TempDir, keys: &BTreeSet<KeyId>) -> Keyring {
    Keyring::open(dir.path(), keys).unwrap()
}

#[test]
fn entry_data_is_sealed_and_restored() {
    let dir = tempfile::tempdir().unwrap();
    let first = ring(&dir, &BTreeSet::new());
    let batch = seal_batch(persist(), &first).unwrap();
    assert_eq!(batch.hard_state, Some(HardState::default()));
    for (sealed, plain) in batch.entries.iter().zip(entries()) {
        assert_eq!((sealed.index, sealed.term, sealed.kind), (plain.index, plain.term, plain.kind));
        assert_eq!(sealed.data.is_empty(), plain.kind == EntryKind::Noop);
        assert!(!sealed.data.windows(8).any(|window| window == &SECRET[..8]));
    }
    let stored = loaded(batch.entries);
    let keys = required_keys(&stored).unwrap();
    assert_eq!(keys, BTreeSet::from([first.current()]));
    let second = ring(&dir, &keys);
    assert_ne!(second.current(), first.current());
    assert_eq!(open_loaded(stored, &second).unwrap().entries, entries());
}

#[test]
fn moved_entry_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let keyring = ring(&dir, &BTreeSet::new());
    let sealed = seal_batch(persist(), &keyring).unwrap().entries;
    let refused = |change: &dyn Fn(&mut RaftEntry)| {
        let mut stored = loaded(sealed.clone());
        change(&mut stored.entries[1]);
        open_loaded(stored, &keyring).unwrap_err()
    };
    let changes: [&dyn Fn(&mut RaftEntry); 4] = [
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
fn unsealed_entry_is_refused() {
    let error = required_keys(&loaded(entries())).unwrap_err();
    assert!(matches!(error, OpenEntryError { index: 2, source: SealError::Format(b'p') }), "{error}");
}

/// What version 1 looks like on the disk: a keyring, and what it sealed. These files are never changed.
#[test]
fn version_1_log_is_readable() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/raft/sealing/golden");
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
    let keyring = ring(&dir, &required_keys(&stored).unwrap());
    assert_eq!(open_loaded(stored, &keyring).unwrap().entries, entries());
    let opened = keyring.unseal_stream(&snapshot::snapshot_aad(&golden_meta()), read("snapshot.1")).unwrap();
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
