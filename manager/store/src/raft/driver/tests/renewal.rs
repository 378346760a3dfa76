//! Renewals of the data key.

use std::collections::BTreeSet;

use warren_log::{SnapshotMeta, StoredLog};
use warren_security::seal::{KeyFiles, KeyId};

use super::*;
use crate::raft::open::SealedSnapshot;

/// What is on the disk while the driver runs.
fn durable_log(disk: &FaultyDisk) -> StoredLog {
    disk.disk.clone_durable().open().load().unwrap()
}

/// The keys that the log and its snapshot need.
fn keys_in_use(disk: &FaultyDisk, dir: &TempDir) -> BTreeSet<KeyId> {
    let loaded = durable_log(disk);
    let mut keys = sealing::required_keys(&loaded).unwrap();
    keys.extend(loaded.snapshot.map(|meta| load_snapshot(dir, &meta).key_id()));
    keys
}

fn load_snapshot(dir: &TempDir, meta: &SnapshotMeta) -> SealedSnapshot {
    SealedSnapshot::load(&SnapshotDir::at(dir.path().join("snapshots")), meta).unwrap()
}

#[tokio::test]
async fn renewal_leaves_nothing_sealed_with_an_earlier_key() {
    let (disk, dir) = (FaultyDisk::new(MemoryDisk::new()), tempfile::tempdir().unwrap());
    let rig = fixture(&disk, &dir, usize::MAX);
    rig.prepare().await;
    for number in 1..=5 {
        assert_eq!(rig.count().await.unwrap(), number);
    }
    let mut earlier = keys_in_use(&disk, &dir);
    assert_eq!(earlier.len(), 1);
    // The second time there is nothing new in the log.
    for _ in 0..2 {
        rig.store.renew_data_key().await.unwrap();
        let in_use = keys_in_use(&disk, &dir);
        assert!(in_use.is_disjoint(&earlier), "{in_use:?} after {earlier:?}");
        earlier.extend(in_use);
    }
    assert_eq!(rig.count().await.unwrap(), 6);
    let state = rig.store.read().state.clone();
    rig.stop.cancel();
    rig.end.await.unwrap().unwrap();

    // All that the next process needs is there.
    let loaded = durable_log(&disk);
    let in_use = keys_in_use(&disk, &dir);
    let keyring = Keyring::open(dir.path(), &in_use).unwrap();
    let meta = loaded.snapshot.clone().unwrap();
    let (restored, _) = load_snapshot(&dir, &meta).open(&keyring).unwrap();
    assert_eq!(restored.cluster(), state.cluster());
    sealing::open_loaded(loaded, &keyring).unwrap();
    for key in earlier.difference(&in_use) {
        Keyring::open(dir.path(), &BTreeSet::from([*key])).unwrap_err();
    }
}

#[tokio::test]
async fn renewal_replaces_the_key_of_a_recent_snapshot() {
    let (disk, dir) = (FaultyDisk::new(MemoryDisk::new()), tempfile::tempdir().unwrap());
    let rig = fixture(&disk, &dir, 3);
    rig.prepare().await;
    for number in 1..=20 {
        assert_eq!(rig.count().await.unwrap(), number);
    }
    let earlier = BTreeSet::from([KeyId(1)]);
    rig.store.renew_data_key().await.unwrap();
    assert!(keys_in_use(&disk, &dir).is_disjoint(&earlier));
    for number in 21..=40 {
        assert_eq!(rig.count().await.unwrap(), number);
    }
    rig.stop.cancel();
    rig.end.await.unwrap().unwrap();
}

/// A process that would start now opens the snapshot and the log. Changes nothing.
fn check_opens(disk: &FaultyDisk, dir: &TempDir) {
    let loaded = durable_log(disk);
    let files = KeyFiles::open(dir.path(), None).unwrap();
    let prepared = Keyring::prepare(&files, &keys_in_use(disk, dir)).unwrap();
    if let Some(meta) = &loaded.snapshot {
        load_snapshot(dir, meta).open(prepared.keyring()).unwrap();
    }
    sealing::open_loaded(loaded, prepared.keyring()).unwrap();
}

#[tokio::test]
async fn interrupted_renewal_leaves_what_the_next_process_opens() {
    // Before the log points to the snapshot with the new key, and after that, before it is compacted.
    for (fault, has_snapshot) in [(DiskFault::Full, false), (DiskFault::FailAfterWrite, true)] {
        let (disk, dir) = (FaultyDisk::new(MemoryDisk::new()), tempfile::tempdir().unwrap());
        let rig = fixture(&disk, &dir, usize::MAX);
        rig.prepare().await;
        assert_eq!(rig.count().await.unwrap(), 1);
        let earlier = keys_in_use(&disk, &dir);
        disk.set_fault(fault);
        let store = rig.store.clone();
        let renewal = tokio::spawn(async move { store.renew_data_key().await });
        rig.until(|published| published.write_stall.is_some()).await;
        assert_eq!(durable_log(&disk).snapshot.is_some(), has_snapshot, "{fault:?}");
        assert!(keys_in_use(&disk, &dir).is_superset(&earlier), "the log is not compacted yet");
        check_opens(&disk, &dir);
        disk.set_fault(DiskFault::None);
        let renewed = tokio::time::timeout(Duration::from_secs(20), renewal).await.unwrap().unwrap();
        renewed.unwrap();
        assert!(keys_in_use(&disk, &dir).is_disjoint(&earlier));
        check_opens(&disk, &dir);
        rig.stop.cancel();
        rig.end.await.unwrap().unwrap();
    }
}
