//! Renewals of the data key.

use std::collections::BTreeSet;

use bytes::Bytes;
use warren_consensus::{Message, MessageKind};
use warren_core::AppliedIndex;
use warren_log::{EntryKind, RaftEntry, SnapshotMeta, StoredLog};
use warren_security::seal::{KeyFiles, KeyId};

use super::*;
use crate::codec;
use crate::raft::open::SealedSnapshot;
use crate::raft::snapshot::SnapshotExchange;
use crate::store::DriverRequest;

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
        let renewed = tokio::time::timeout(TEST_TIMEOUT, renewal).await.unwrap().unwrap();
        renewed.unwrap();
        assert!(keys_in_use(&disk, &dir).is_disjoint(&earlier));
        check_opens(&disk, &dir);
        rig.stop.cancel();
        rig.end.await.unwrap().unwrap();
    }
}

/// The term of the leader, which is member 2.
const TERM: u64 = 1;

fn members() -> ConfState {
    ConfState::of_voters(vec![1, 2, 3])
}

fn meta(index: u64) -> SnapshotMeta {
    SnapshotMeta { index, term: TERM, conf_state: members() }
}

/// A message of the leader with entries, which are committed, or a snapshot.
fn message(kind: MessageKind, entries: Vec<RaftEntry>, snapshot: Option<SnapshotMeta>) -> Message {
    Message {
        kind,
        to: 1,
        from: 2,
        term: TERM,
        log_term: 0,
        index: 0,
        commit: entries.last().map_or(0, |entry| entry.index),
        entries,
        commit_term: 0,
        snapshot,
        request_snapshot: 0,
        reject: false,
        reject_hint: 0,
        context: Bytes::new(),
        priority: 0,
        acknowledged: Vec::new(),
    }
}

/// A state up to this index, as the leader sends it.
fn leader_snapshot(index: u64) -> Vec<u8> {
    let mut state = State::new();
    state.advance_to(AppliedIndex { term: TERM, index });
    let mut plain = Vec::new();
    codec::write_snapshot(&state, &mut plain).unwrap();
    plain
}

/// Handles everything that is queued.
fn settle(driver: &mut RaftDriver) {
    let mut proposals = Vec::new();
    loop {
        driver.take_inputs(&mut proposals, true);
        driver.run_once().unwrap();
        if !driver.replica.has_events() {
            return;
        }
    }
}

/// The leader's snapshot, stored with the earlier key, replaces the state while that of the renewal is written.
#[tokio::test]
async fn renewal_in_which_a_snapshot_is_received_leaves_nothing_sealed_with_an_earlier_key() {
    let (disk, dir) = (FaultyDisk::new(MemoryDisk::new()), tempfile::tempdir().unwrap());
    let (store, files, parts) = driver_parts(&disk, &dir, usize::MAX, members());
    let mut driver = RaftDriver::new(parts, sync_channel(1).0);
    let entry = |index: u64| {
        let data = codec::encode(&create_cluster(index.into())).into();
        RaftEntry { index, term: TERM, kind: EntryKind::Command, data }
    };
    store.receive_message(message(MessageKind::Append, vec![entry(1), entry(2)], None));
    settle(&mut driver);
    let earlier = keys_in_use(&disk, &dir);
    assert_eq!((driver.replica.applied().index, earlier.len()), (2, 1));

    let exchange = SnapshotExchange::new(files.clone(), store);
    let announced = message(MessageKind::Snapshot, Vec::new(), Some(meta(50)));
    let plain = leader_snapshot(50).into();
    let received = tokio::spawn(async move { exchange.receive(announced, plain).await });
    let snapshot = driver.inbox.inputs.recv().await.unwrap();
    let (reply, mut renewed) = oneshot::channel();
    driver.handle_request(DriverRequest::RenewDataKey(reply));
    settle(&mut driver);
    let written = async {
        while !files.path(&meta(2)).exists() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, written).await.unwrap();
    driver.handle_input(snapshot);
    settle(&mut driver);
    received.await.unwrap().unwrap();
    assert_eq!(driver.replica.applied().index, 50);
    assert_eq!(keys_in_use(&disk, &dir), earlier, "all that is left is the snapshot of the leader");

    // That of the renewal comes too late; another one takes the place of the leader's.
    for _ in 0..2 {
        assert!(renewed.try_recv().is_err(), "the earlier key is in use");
        let written = driver.snapshotter.next_result().await;
        driver.finish_snapshot(written);
        driver.tick();
        settle(&mut driver);
    }
    renewed.try_recv().unwrap().unwrap();
    assert_eq!(durable_log(&disk).snapshot, Some(meta(50)));
    assert!(keys_in_use(&disk, &dir).is_disjoint(&earlier));
    check_opens(&disk, &dir);
}
