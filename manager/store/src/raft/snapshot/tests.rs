use std::collections::BTreeSet;

use tempfile::TempDir;
use warren_core::{Command, FEATURE_LEVEL};
use warren_log::{ConfState, SnapshotDir};
use warren_security::seal::Keyring;
use warren_types::{ClusterId, Id, Timestamp};

use super::*;
use crate::codec;

const MIB: u64 = 1 << 20;

fn state() -> State {
    let mut state = State::new();
    let ranges = vec!["10.0.0.0/8".parse().unwrap()];
    state.apply(
        1,
        1,
        &Command::CreateCluster {
            id: ClusterId(Id(1)),
            ranges,
            feature_level: FEATURE_LEVEL,
            at: Timestamp(1),
        },
    );
    state
}

fn meta(index: u64) -> SnapshotMeta {
    SnapshotMeta { index, term: 1, conf_state: ConfState::of_voters(vec![1]) }
}

fn rig(dir: &TempDir) -> (SnapshotDir, Arc<Keyring>, Snapshotter) {
    let files = SnapshotDir::open(dir.path().join("snapshots"), None).unwrap();
    let keyring = Arc::new(Keyring::open(dir.path(), &BTreeSet::new()).unwrap());
    let sealed = SnapshotFiles::new(files.clone(), keyring.clone());
    let snapshotter = Snapshotter::new(sealed, SnapshotThresholds { bytes: 100, entries: 3 }, 0);
    (files, keyring, snapshotter)
}

#[test]
fn threshold_grows_with_state() {
    let bounds = SnapshotThresholds::default();
    let due = |mib: u64, entries, last: u64| {
        bounds.are_exceeded(SnapshotThresholds { bytes: (mib * MIB) as usize, entries }, last * MIB)
    };
    for (mib, entries, last, expected) in [
        (15, 49_999, 0, false),
        (16, 1, 0, true),
        (1, 50_000, 0, true),
        (16, 1, 17, true),
        (47, 149_999, 50, false),
        (48, 1, 50, true),
        (1, 150_000, 50, true),
    ] {
        assert_eq!(due(mib, entries, last), expected, "{mib} MiB, {entries} entries after {last} MiB");
    }
    let never = SnapshotThresholds { bytes: usize::MAX, entries: usize::MAX };
    assert!(!never.are_exceeded(SnapshotThresholds { bytes: 1 << 40, entries: 1 << 40 }, u64::MAX));
    assert!(
        SnapshotThresholds { bytes: 0, entries: 0 }
            .are_exceeded(SnapshotThresholds { bytes: 0, entries: 1 }, MIB)
    );
}

#[tokio::test]
async fn snapshot_is_due_after_threshold() {
    let dir = tempfile::tempdir().unwrap();
    let (_, _, mut snapshotter) = rig(&dir);
    snapshotter.record_applied(40);
    snapshotter.record_applied(40);
    assert!(!snapshotter.is_due());
    snapshotter.record_applied(40);
    assert!(snapshotter.is_due(), "by its entries, and by its bytes");
    snapshotter.start(state(), meta(3)).unwrap();
    for _ in 0..3 {
        snapshotter.record_applied(40);
    }
    assert!(!snapshotter.is_due());
    snapshotter.next_result().await.unwrap();
    assert!(snapshotter.is_due());
}

#[tokio::test]
async fn snapshot_is_bound_to_its_position() {
    let dir = tempfile::tempdir().unwrap();
    let (files, keyring, mut snapshotter) = rig(&dir);
    snapshotter.start(state(), meta(5)).unwrap();
    let WrittenSnapshot { index, bytes } = snapshotter.next_result().await.unwrap();
    let sealed = files.load(&meta(5)).unwrap();
    let plain = keyring.unseal_stream(&snapshot_aad(&meta(5)), sealed.clone()).unwrap();
    assert_eq!((index, bytes), (5, plain.len() as u64));
    assert_eq!(codec::read_snapshot(&plain).unwrap(), state());
    let others = [
        meta(6),
        SnapshotMeta { term: 2, ..meta(5) },
        SnapshotMeta { conf_state: ConfState::of_voters(vec![1, 2]), ..meta(5) },
    ];
    for other in others {
        assert!(keyring.unseal_stream(&snapshot_aad(&other), sealed.clone()).is_err(), "{other:?}");
    }
}

#[tokio::test]
async fn remove_older_is_idempotent() {
    let dir = tempfile::tempdir().unwrap();
    let (files, _, mut snapshotter) = rig(&dir);
    for index in [1, 2, 3] {
        snapshotter.start(state(), meta(index)).unwrap();
        snapshotter.next_result().await.unwrap();
    }
    snapshotter.remove_older(meta(3));
    snapshotter.remove_older(meta(3));
    // Dropping waits for the running threads.
    drop(snapshotter);
    let there = [1, 2, 3].map(|index| files.path(&meta(index)).exists());
    assert_eq!(there, [false, false, true]);
}

#[test]
fn data_key_of_a_received_snapshot_is_kept_as_long_as_the_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let files = SnapshotDir::open(dir.path().join("snapshots"), None).unwrap();
    let keyring = Arc::new(Keyring::open(dir.path(), &BTreeSet::new()).unwrap());
    let files = SnapshotFiles::new(files, keyring.clone());
    let mut plain = Vec::new();
    codec::write_snapshot(&state(), &mut plain).unwrap();
    files.store_received(&meta(7), &plain, || true).unwrap();
    keyring.renew().unwrap();
    files.write(&state(), &meta(9), &std::sync::atomic::AtomicBool::new(false)).unwrap();
    assert_eq!(files.forget_unused_keys(7).unwrap().unwrap(), 1, "the renewal is not complete");
    assert_eq!(files.read(7, 1).unwrap().unwrap(), plain);
    assert_eq!(files.forget_unused_keys(8).unwrap().unwrap(), 0);
    assert!(files.read(7, 1).unwrap().is_err());
    files.read(9, 1).unwrap().unwrap();
}
