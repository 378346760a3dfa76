//! The driver on a disk that fails when it is told to.

use tempfile::TempDir;
use warren_consensus::Config;
use warren_core::{Command, Refusal};
use warren_log::{Batch as LogBatch, ConfState, CrashPoint, Disk, Snapshots};
use warren_types::{ClusterId, Id, Timestamp};

use super::*;
use crate::raft::snapshot::Bounds;
use crate::store::Store;

struct Rig {
    store: Store,
    end: oneshot::Receiver<Result<(), DriverError>>,
    stop: CancellationToken,
}

/// A driver over what `disk` holds; snapshots are due after `entries`.
fn rig(disk: &Disk, dir: &TempDir, entries: usize) -> Rig {
    let mut log = disk.open();
    let members = ConfState::of_voters(vec![1]);
    if log.load().unwrap().conf_state != members {
        log.append(&LogBatch { conf_state: Some(members.clone()), ..LogBatch::default() }).unwrap();
    }
    let loaded = log.load().unwrap();
    assert!(loaded.snapshot.is_none(), "these tests restore from the log alone");
    let files = Snapshots::open(dir.path().join("snapshots"), None).unwrap();
    let machine = Machine::new(Config::new(1, 7), disk::restored(loaded)).unwrap();
    let first = Published { state: State::new(), index: 0, role: Role::default(), log: LogCost::default() };
    let (store, publisher, proposals) = Store::new(first, 16, 16);
    let stop = CancellationToken::new();
    let snapshotter = Snapshotter::new(files, members, Bounds { bytes: usize::MAX, entries });
    let data_dir = DataDir::open(dir.path()).unwrap();
    let (log, state) = (Box::new(log), State::new());
    let parts = Parts { machine, log, snapshotter, state, publisher, proposals, data_dir };
    let end = spawn(parts, stop.clone()).unwrap();
    Rig { store, end, stop }
}

impl Rig {
    async fn leads(&self) {
        let mut watch = self.store.watch(0);
        while !self.store.read().role.may_plan {
            let _ = watch.next().await;
        }
    }

    async fn create(&self, id: u128) -> Result<(), ProposeError> {
        let (id, ranges) = (ClusterId(Id(id)), vec!["10.0.0.0/8".parse().unwrap()]);
        let command = Command::CreateCluster { id, ranges, at: Timestamp(1) };
        self.store.propose(command).await.map(drop)
    }
}

#[tokio::test]
async fn a_log_that_cannot_be_written_ends_the_driver_and_answers_everybody() {
    for point in [CrashPoint::Before, CrashPoint::After] {
        let (disk, dir) = (Disk::new(), tempfile::tempdir().unwrap());
        let rig = rig(&disk, &dir, usize::MAX);
        rig.leads().await;
        disk.crash_at(1, point);
        let asked = tokio::join!(rig.create(1), rig.create(1), rig.create(1));
        for answer in [asked.0, asked.1, asked.2] {
            let unknown = matches!(answer, Err(ProposeError::Log(_) | ProposeError::Stopping));
            assert!(unknown, "{answer:?}");
        }
        assert!(rig.store.read().state.cluster().is_none(), "what is not known to be durable is not shown");
        assert!(matches!(rig.end.await.unwrap(), Err(DriverError::Log(_))));
        DataDir::open(dir.path()).expect("the directory is given back");
    }
}

#[tokio::test]
async fn what_was_answered_is_there_after_a_crash_and_refusals_are_answers_too() {
    let (disk, dir) = (Disk::new(), tempfile::tempdir().unwrap());
    let first = rig(&disk, &dir, usize::MAX);
    first.leads().await;
    first.create(1).await.unwrap();
    let refused = first.create(2).await.unwrap_err();
    assert!(matches!(refused, ProposeError::Rejected(Refusal::OtherCluster { .. })));
    disk.power_off();
    first.stop.cancel();
    first.end.await.unwrap().unwrap();
    let second = rig(&disk, &dir, usize::MAX);
    second.leads().await;
    assert_eq!(second.store.read().state.cluster().unwrap().id, ClusterId(Id(1)));
    second.stop.cancel();
    second.end.await.unwrap().unwrap();
    assert!(matches!(second.store.read().role, Role { leader: true, .. }));
    assert!(matches!(
        second.store.propose(Command::DeleteTasks { term: 1, tasks: vec![] }).await,
        Err(ProposeError::Stopping)
    ));
}

#[tokio::test]
async fn a_snapshot_that_cannot_be_written_ends_the_driver() {
    let (disk, dir) = (Disk::new(), tempfile::tempdir().unwrap());
    let rig = rig(&disk, &dir, 3);
    rig.leads().await;
    std::fs::remove_dir_all(dir.path().join("snapshots")).unwrap();
    for _ in 0..3 {
        // The last of them may come after the end.
        let _ = rig.create(1).await;
    }
    assert!(matches!(rig.end.await.unwrap(), Err(DriverError::Log(_))));
}
