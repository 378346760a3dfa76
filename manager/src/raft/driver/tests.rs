//! The driver on a disk that fails when it is told to.

mod faulty;
mod group;
mod holding;

use std::collections::BTreeMap;

use tempfile::TempDir;
use warren_consensus::Config;
use warren_core::{Answer, Command, Refusal};
use warren_log::{Batch as LogBatch, ConfState, CrashPoint, Disk, LogStore, Snapshots};
use warren_types::{Bytes, ClusterId, Id, NodeDescription, NodeId, NodeRole, Resources, Timestamp};

use self::faulty::{Faulty, Mood};
use super::*;
use crate::raft::disk;
use crate::raft::snapshot::{Bounds, SnapshotFiles};
use crate::raft::wire::Nowhere;
use crate::store::Store;

const NODE: NodeId = NodeId(Id(7));
/// The snapshotter and the rig have one clone each while no snapshot is being written.
const IDLE_CLONES: usize = 2;

struct Rig {
    store: Store,
    end: oneshot::Receiver<Result<(), DriverError>>,
    stop: CancellationToken,
    snapshots: SnapshotFiles,
}

/// A driver over what `disk` holds; snapshots are due after `entries`.
fn rig(disk: &Faulty, dir: &TempDir, entries: usize) -> Rig {
    let mut log = disk.disk.open();
    let members = ConfState::of_voters(vec![1]);
    if log.load().unwrap().conf_state != members {
        log.append(&LogBatch { conf_state: Some(members.clone()), ..LogBatch::default() }).unwrap();
    }
    let log = disk.open().unwrap();
    let loaded = log.load().unwrap();
    assert!(loaded.snapshot.is_none(), "these tests restore from the log alone");
    let files = Snapshots::open(dir.path().join("snapshots"), None).unwrap();
    let opener = disk.clone();
    let keyring = Arc::new(Keyring::open(dir.path(), &disk::keys(&loaded).unwrap()).unwrap());
    let log = Keeper::new(log, &loaded, dir.path().to_owned(), Box::new(move || opener.open()));
    let machine = Machine::new(
        Config { keep_entries: 2, ..Config::new(1, 7) },
        disk::restored(loaded, &keyring).unwrap(),
    )
    .unwrap();
    let (store, publisher, inbox) = Store::new(Published::first(State::new()), 16, 16);
    let stop = CancellationToken::new();
    let files = SnapshotFiles::new(files, keyring.clone());
    let snapshotter = Snapshotter::new(files.clone(), Bounds { bytes: usize::MAX, entries }, 0);
    let (data_dir, state) = (DataDir::open(dir.path()).unwrap(), State::new());
    let wire = Box::new(Nowhere);
    let parts = Parts { own: 1, machine, log, keyring, snapshotter, state, publisher, inbox, wire, data_dir };
    let end = spawn(parts, stop.clone()).unwrap();
    Rig { store, end, stop, snapshots: files }
}

fn description() -> NodeDescription {
    NodeDescription {
        resources: Resources::default(),
        disk: Bytes(0),
        os: String::new(),
        labels: BTreeMap::new(),
        architecture: "amd64".into(),
        kernel: "6.1".into(),
        runtime: "none".into(),
        version: "0.1.0".into(),
        address: "127.0.0.1".into(),
    }
}

impl Rig {
    /// Waits until what is published is as wanted.
    async fn until(&self, wanted: impl Fn(&Published) -> bool) {
        let mut watch = self.store.watch(0);
        while !wanted(&self.store.read()) {
            let _ = watch.next().await;
        }
    }

    async fn leads(&self) {
        self.until(|published| published.role.may_plan).await;
    }

    async fn create(&self, id: u128) -> Result<(), ProposeError> {
        let (id, ranges) = (ClusterId(Id(id)), vec!["10.0.0.0/8".parse().unwrap()]);
        let command = Command::CreateCluster { id, ranges, level: warren_core::LEVEL, at: Timestamp(1) };
        self.store.propose(command).await.map(drop)
    }

    /// A cluster with the node that [`Rig::count`] counts with.
    async fn prepare(&self) {
        self.leads().await;
        self.create(1).await.unwrap();
        let (name, description) = ("n1".parse().unwrap(), description());
        let command =
            Command::RegisterNode { id: NODE, name, role: NodeRole::Worker, description, at: Timestamp(1) };
        self.store.propose(command).await.unwrap();
    }

    /// A command that cannot be applied twice, or not at all, without being noticed: the answer is how often it was.
    async fn count(&self) -> Result<u64, ProposeError> {
        count(&self.store).await
    }
}

async fn count(store: &Store) -> Result<u64, ProposeError> {
    let command =
        Command::OpenSession { node: NODE, description: description(), manager: 1, at: Timestamp(1) };
    match store.propose(command).await? {
        Answer::Session { number } => Ok(number),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_was_answered_is_there_after_a_crash_and_refusals_are_answers_too() {
    let (disk, dir) = (Faulty::new(Disk::new()), tempfile::tempdir().unwrap());
    let first = rig(&disk, &dir, usize::MAX);
    first.leads().await;
    first.create(1).await.unwrap();
    let refused = first.create(2).await.unwrap_err();
    assert!(matches!(refused, ProposeError::Rejected(Refusal::OtherCluster { .. })));
    disk.disk.power_off();
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
async fn a_power_cut_that_only_the_log_feels_is_got_over() {
    for point in [CrashPoint::Before, CrashPoint::After] {
        let (disk, dir) = (Faulty::new(Disk::new()), tempfile::tempdir().unwrap());
        let rig = rig(&disk, &dir, usize::MAX);
        rig.prepare().await;
        for round in 0..5 {
            disk.disk.crash_at(1, point);
            assert_eq!(rig.count().await.unwrap(), round + 1, "{point:?}");
        }
        rig.stop.cancel();
        rig.end.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_snapshot_that_cannot_be_written_is_tried_again() {
    let (disk, dir) = (Faulty::new(Disk::new()), tempfile::tempdir().unwrap());
    let rig = rig(&disk, &dir, 3);
    std::fs::remove_dir_all(dir.path().join("snapshots")).unwrap();
    rig.prepare().await;
    for number in 1..=20 {
        assert_eq!(rig.count().await.unwrap(), number);
    }
    // The first try is over, so it has failed: its thread may begin late, when the directory is there again.
    let failed = async {
        while rig.snapshots.clones() > IDLE_CLONES {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), failed).await.unwrap();
    let writes = disk.disk.durable_writes();
    std::fs::create_dir(dir.path().join("snapshots")).unwrap();
    // Nothing is proposed meanwhile: it is time that brings the next try, which is recorded and cuts the log.
    let recorded = async {
        while disk.disk.durable_writes() < writes + 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), recorded).await.unwrap();
    assert_eq!(rig.count().await.unwrap(), 21);
    rig.stop.cancel();
    rig.end.await.unwrap().unwrap();
    let loaded = disk.loaded();
    assert!(loaded.snapshot.is_some() && loaded.entries.len() < 10, "{loaded:?}");
}
