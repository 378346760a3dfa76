//! Files of a manager reveal nothing about the workload, and are useless without its keys.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use warren_log::{
    ConfState, EntryKind, LogEngine, LogOwner, RaftEntry, SnapshotDir, SnapshotMeta, WriteBatch,
};
use warren_manager::ManagerTuning;
use warren_manager::config::CERTIFICATE_CHECK_INTERVAL;
use warren_store::codec;
use warren_store::raft::open::ReplicaTuning;
use warren_store::raft::snapshot::SnapshotThresholds;
use warren_types::{ClusterId, EnvVar, Id, ManagerId, ServiceSpec};

use crate::fixture::{ManagerFixture, new_id, spec};
use crate::restart::refuses;

/// A snapshot after some services, and a short log after it.
const FREQUENT_SNAPSHOTS: ManagerTuning = ManagerTuning {
    replica: ReplicaTuning {
        snapshot_thresholds: SnapshotThresholds { bytes: 1 << 20, entries: 60 },
        kept_entries: 10,
        history_changes: 1 << 16,
    },
    certificate_check_interval: CERTIFICATE_CHECK_INTERVAL,
};
/// A marker in every field of these services.
pub const PLAINTEXT_MARK: &str = "telltale";

fn spec_with_mark(number: usize) -> ServiceSpec {
    let mut spec = spec(&format!("{PLAINTEXT_MARK}-name-{number}"), 2);
    spec.labels =
        BTreeMap::from([(format!("{PLAINTEXT_MARK}-key"), format!("{PLAINTEXT_MARK}-label-{number}"))]);
    spec.task.image = format!("{PLAINTEXT_MARK}-image-{number}:1").parse().unwrap();
    spec.task.args = Some(vec![format!("{PLAINTEXT_MARK}-argument-{number}")]);
    spec.task.env =
        vec![EnvVar { name: "PASSWORD".into(), value: format!("{PLAINTEXT_MARK}-secret-{number}") }];
    spec
}

async fn create(world: &ManagerFixture, numbers: std::ops::Range<usize>) {
    let admin = world.admin().await;
    for number in numbers {
        admin.services().create(new_id(), &spec_with_mark(number)).await.unwrap();
    }
}

async fn count(world: &ManagerFixture) -> usize {
    world.admin().await.services().list().await.unwrap().len()
}

/// Every file below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The files below a directory that contain a marker. A file that is replaced meanwhile is skipped. Audit lines have
/// the names of objects, and nothing else of them.
pub fn files_with_mark(directory: &Path) -> Vec<PathBuf> {
    let name = format!("{PLAINTEXT_MARK}-name-");
    let tells = |path: &PathBuf| {
        let content = match fs::read(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return false,
            content => content.unwrap(),
        };
        let has_names = path.parent().is_some_and(|parent| parent.ends_with("manager/audit"));
        let found = |content: &[u8]| {
            content.windows(PLAINTEXT_MARK.len()).any(|window| window == PLAINTEXT_MARK.as_bytes())
        };
        match has_names {
            true => found(String::from_utf8(content).unwrap().replace(&name, "").as_bytes()),
            false => found(&content),
        }
    };
    files(directory).into_iter().filter(tells).collect()
}

fn named(directory: &Path, part: &str) -> bool {
    files(directory).iter().any(|path| path.to_string_lossy().contains(part))
}

/// The same state and the same commands, written without encryption: the search finds the markers there.
fn control(world: &ManagerFixture) {
    let directory = tempfile::tempdir().unwrap();
    let owner = LogOwner { cluster: ClusterId(Id(1)), manager: ManagerId(Id(2)), member: 1 };
    let mut log = warren_log::open(directory.path(), LogEngine::Redb, owner).unwrap();
    let command = warren_core::Command::CreateService {
        id: new_id(),
        spec: spec_with_mark(0),
        at: warren_types::Timestamp(1),
    };
    let data = codec::encode(&command).into();
    let entries = vec![RaftEntry { index: 1, term: 1, kind: EntryKind::Command, data }];
    let members = ConfState::of_voters(vec![1]);
    log.append(&WriteBatch { entries, conf_state: Some(members.clone()), ..WriteBatch::default() }).unwrap();
    drop(log);
    let state = &world.manager().store().read().state;
    let meta = SnapshotMeta { index: 1, term: 1, conf_state: members };
    let snapshots = SnapshotDir::open(directory.path().join("snapshots"), None).unwrap();
    snapshots.write(&meta, |out| codec::write_snapshot(state, out)).unwrap();
    let found = files_with_mark(directory.path());
    assert_eq!(found.len(), 2, "the log and the snapshot: {found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_plaintext_on_disk_across_starts() {
    let mut world = ManagerFixture::tuned(FREQUENT_SNAPSHOTS).await;
    for start in 0..4 {
        create(&world, start * 80..(start + 1) * 80).await;
        assert_eq!(files_with_mark(&world.data_dir()), Vec::<PathBuf>::new(), "while it runs");
        if start % 2 == 0 {
            world.stop().await;
        } else {
            world.drop_manager().await;
        }
        assert_eq!(files_with_mark(&world.data_dir()), Vec::<PathBuf>::new(), "start {start}");
        assert!(named(&world.data_dir(), "snapshots/snapshot-") && named(&world.data_dir(), "raft."));
        world.start(false).await.unwrap();
        assert_eq!(count(&world).await, (start + 1) * 80);
    }
    control(&world);
}

/// Content of the files that a refused start must not change.
fn directory_content(world: &ManagerFixture) -> BTreeMap<PathBuf, Vec<u8>> {
    let kept = files(&world.data_dir().join("manager")).into_iter().filter(|path| {
        let path = path.to_string_lossy();
        path.contains("/snapshots/") || path.ends_with("/keyring") || path.ends_with("/member.key")
    });
    kept.map(|path| (fs::read(&path).unwrap(), path)).map(|(content, path)| (path, content)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manager_without_keys_refuses_to_start() {
    let (mut world, mut foreign) =
        (ManagerFixture::tuned(FREQUENT_SNAPSHOTS).await, ManagerFixture::new().await);
    create(&world, 0..80).await;
    world.stop().await;
    foreign.stop().await;
    let manager = world.data_dir().join("manager");
    for (file, refusal) in [("member.key", "is the member key"), ("keyring", "was written with")] {
        let path = manager.join(file);
        let good = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let before = directory_content(&world);
        refuses(&world, false, &format!("{file} is missing")).await;
        refuses(&world, true, &format!("{file} is missing")).await;
        assert_eq!(directory_content(&world), before);
        fs::copy(foreign.data_dir().join("manager").join(file), &path).unwrap();
        let before = directory_content(&world);
        refuses(&world, false, refusal).await;
        assert_eq!(directory_content(&world), before);
        fs::write(&path, &good).unwrap();
    }
    world.start(false).await.unwrap();
    assert_eq!(count(&world).await, 80);
}
