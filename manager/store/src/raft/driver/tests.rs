//! The driver on a disk with injected faults.

mod faulty;
mod group;
mod renewal;
mod write_stall;

use std::collections::BTreeMap;

use tempfile::TempDir;
use warren_consensus::RaftConfig;
use warren_core::{Command, CommandResponse, Refusal};
use warren_log::{ConfState, CrashPoint, LogStore, MemoryDisk, SnapshotDir, WriteBatch as LogBatch};
use warren_types::{Bytes, ClusterId, Id, NodeDescription, NodeId, NodeRole, Resources, Timestamp};

use self::faulty::{DiskFault, FaultyDisk};
use super::*;
use crate::raft::sealing;
use crate::raft::snapshot::{SnapshotFiles, SnapshotThresholds};
use crate::store::NoTransport;
use crate::store::{IndeterminateReason, ReplicaRole, Store};

/// No step takes longer, however busy the machine is.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const NODE: NodeId = NodeId(Id(7));
/// The snapshotter and the rig have one clone each while no snapshot is being written.
const IDLE_CLONES: usize = 2;

struct DriverFixture {
    store: Store,
    end: oneshot::Receiver<Result<(), DriverError>>,
    stop: CancellationToken,
    snapshots: SnapshotFiles,
}

/// The parts of a driver of member 1 with the content of `disk`; snapshots are due after `entries`.
fn driver_parts(
    disk: &FaultyDisk,
    dir: &TempDir,
    entries: usize,
    members: ConfState,
) -> (Store, SnapshotFiles, DriverParts) {
    let mut log = disk.disk.open();
    if log.load().unwrap().conf_state != members {
        log.append(&LogBatch { conf_state: Some(members.clone()), ..LogBatch::default() }).unwrap();
    }
    let log = disk.open().unwrap();
    let loaded = log.load().unwrap();
    assert!(loaded.snapshot.is_none(), "these tests restore from the log alone");
    let files = SnapshotDir::open(dir.path().join("snapshots"), None).unwrap();
    let opener = disk.clone();
    let keyring = Arc::new(Keyring::open(dir.path(), &sealing::required_keys(&loaded).unwrap()).unwrap());
    let log = LogWriter::new(log, &loaded, dir.path().to_owned(), Box::new(move || opener.open()));
    let machine = RaftMachine::new(
        RaftConfig { keep_entries: 2, ..RaftConfig::new(1, 7) },
        sealing::open_loaded(loaded, &keyring).unwrap(),
    )
    .unwrap();
    let (store, publisher, inbox) = Store::new(PublishedState::initial(State::new()), 16, 16);
    let files = SnapshotFiles::new(files, keyring.clone());
    let snapshotter = Snapshotter::new(files.clone(), SnapshotThresholds { bytes: usize::MAX, entries }, 0);
    let (data_dir, state) = (DataDir::open(dir.path()).unwrap(), State::new());
    let wire = Box::new(NoTransport);
    let parts = DriverParts {
        own_id: 1,
        machine,
        log_writer: log,
        keyring,
        snapshotter,
        state,
        publisher,
        inbox,
        transport: wire,
        data_dir,
    };
    (store, files, parts)
}

/// A driver of a single member with the content of `disk`; snapshots are due after `entries`.
fn fixture(disk: &FaultyDisk, dir: &TempDir, entries: usize) -> DriverFixture {
    let (store, snapshots, parts) = driver_parts(disk, dir, entries, ConfState::of_voters(vec![1]));
    let stop = CancellationToken::new();
    let end = spawn(parts, stop.clone()).unwrap();
    DriverFixture { store, end, stop, snapshots }
}

fn create_cluster(id: u128) -> Command {
    let (id, ranges) = (ClusterId(Id(id)), vec!["10.0.0.0/8".parse().unwrap()]);
    Command::CreateCluster { id, ranges, feature_level: warren_core::FEATURE_LEVEL, at: Timestamp(1) }
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
        data_address: None,
        wireguard_key: None,
        apparmor_missing: false,
    }
}

impl DriverFixture {
    /// Waits until the published state satisfies the condition.
    async fn until(&self, expected: impl Fn(&PublishedState) -> bool) {
        let mut watch = self.store.watch(0);
        while !expected(&self.store.read()) {
            let _ = watch.next().await;
        }
    }

    async fn wait_leader(&self) {
        self.until(|published| published.role.can_plan).await;
    }

    async fn create(&self, id: u128) -> Result<(), ProposeError> {
        self.store.propose(create_cluster(id)).await.map(drop)
    }

    /// A cluster with the node that [`DriverFixture::count`] counts with.
    async fn prepare(&self) {
        self.wait_leader().await;
        self.create(1).await.unwrap();
        let (name, description) = ("n1".parse().unwrap(), description());
        let command = Command::RegisterNode {
            id: NODE,
            name,
            role: NodeRole::Worker,
            description,
            taints: Default::default(),
            at: Timestamp(1),
        };
        self.store.propose(command).await.unwrap();
    }

    /// A command whose repeated or lost application is detected: the response is the number of applications.
    async fn count(&self) -> Result<u64, ProposeError> {
        count(&self.store).await
    }
}

async fn count(store: &Store) -> Result<u64, ProposeError> {
    let command =
        Command::OpenSession { node: NODE, description: description(), manager: 1, at: Timestamp(1) };
    match store.propose(command).await? {
        CommandResponse::Session { number } => Ok(number),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn acknowledged_write_survives_crash() {
    let (disk, dir) = (FaultyDisk::new(MemoryDisk::new()), tempfile::tempdir().unwrap());
    let first = fixture(&disk, &dir, usize::MAX);
    first.wait_leader().await;
    first.create(1).await.unwrap();
    let refused = first.create(2).await.unwrap_err();
    assert!(matches!(refused, ProposeError::Rejected(Refusal::ClusterMismatch { .. })));
    disk.disk.power_off();
    first.stop.cancel();
    first.end.await.unwrap().unwrap();
    let second = fixture(&disk, &dir, usize::MAX);
    second.wait_leader().await;
    assert_eq!(second.store.read().state.cluster().unwrap().id, ClusterId(Id(1)));
    second.stop.cancel();
    second.end.await.unwrap().unwrap();
    assert!(matches!(second.store.read().role, ReplicaRole { is_leader: true, .. }));
    assert!(matches!(
        second.store.propose(Command::DeleteTasks { term: 1, tasks: vec![] }).await,
        Err(ProposeError::Stopping)
    ));
}

#[tokio::test]
async fn log_power_cut_is_recovered() {
    for point in [CrashPoint::Before, CrashPoint::After] {
        let (disk, dir) = (FaultyDisk::new(MemoryDisk::new()), tempfile::tempdir().unwrap());
        let rig = fixture(&disk, &dir, usize::MAX);
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
async fn failed_snapshot_is_retried() {
    let (disk, dir) = (FaultyDisk::new(MemoryDisk::new()), tempfile::tempdir().unwrap());
    let rig = fixture(&disk, &dir, 3);
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
    tokio::time::timeout(TEST_TIMEOUT, failed).await.unwrap();
    let writes = disk.disk.durable_writes();
    std::fs::create_dir(dir.path().join("snapshots")).unwrap();
    // Nothing is proposed meanwhile: the timer starts the next attempt, which is recorded and compacts the
    // log.
    let recorded = async {
        while disk.disk.durable_writes() < writes + 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, recorded).await.unwrap();
    assert_eq!(rig.count().await.unwrap(), 21);
    rig.stop.cancel();
    rig.end.await.unwrap().unwrap();
    let loaded = disk.loaded();
    assert!(loaded.snapshot.is_some() && loaded.entries.len() < 10, "{loaded:?}");
}
