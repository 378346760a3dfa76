//! What stands on the disk of a manager tells nothing of what the cluster runs, and is of no use without its keys.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use warren_log::{Batch, ConfState, Engine, Entry, EntryKind, Owner, SnapshotMeta, Snapshots};
use warren_manager::Tuning;
use warren_manager::config::CERTIFICATES;
use warren_manager::raft::codec;
use warren_manager::raft::snapshot::Bounds;
use warren_types::{ClusterId, EnvVar, Id, ManagerId, ServiceSpec};

use crate::restart::refuses;
use crate::world::{World, new_id, spec};

/// A snapshot after some services, and hardly any log behind it.
const OFTEN: Tuning = Tuning {
    snapshots: Bounds { bytes: 1 << 20, entries: 60 },
    keep_entries: 10,
    history: 1 << 16,
    certificates: CERTIFICATES,
};
/// Stands in everything that a service here consists of.
pub const TELLS: &str = "telltale";

fn telling(number: usize) -> ServiceSpec {
    let mut spec = spec(&format!("{TELLS}-name-{number}"), 2);
    spec.labels = BTreeMap::from([(format!("{TELLS}-key"), format!("{TELLS}-label-{number}"))]);
    spec.task.image = format!("{TELLS}-image-{number}:1").parse().unwrap();
    spec.task.args = Some(vec![format!("{TELLS}-argument-{number}")]);
    spec.task.env = vec![EnvVar { name: "PASSWORD".into(), value: format!("{TELLS}-secret-{number}") }];
    spec
}

async fn create(world: &World, numbers: std::ops::Range<usize>) {
    let admin = world.admin().await;
    for number in numbers {
        admin.services().create(new_id(), &telling(number)).await.unwrap();
    }
}

async fn count(world: &World) -> usize {
    world.admin().await.services().list().await.unwrap().len()
}

/// Every file below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The files below a directory in which something tells. One that is replaced meanwhile is gone with what it held.
pub fn telling_files(directory: &Path) -> Vec<PathBuf> {
    let tells = |path: &PathBuf| {
        let content = match fs::read(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return false,
            content => content.unwrap(),
        };
        content.windows(TELLS.len()).any(|window| window == TELLS.as_bytes())
    };
    files(directory).into_iter().filter(tells).collect()
}

fn named(directory: &Path, part: &str) -> bool {
    files(directory).iter().any(|path| path.to_string_lossy().contains(part))
}

/// The same state and the same commands, written without being sealed: the search would have found them.
fn control(world: &World) {
    let directory = tempfile::tempdir().unwrap();
    let owner = Owner { cluster: ClusterId(Id(1)), manager: ManagerId(Id(2)), member: 1 };
    let mut log = warren_log::open(directory.path(), Engine::Redb, owner).unwrap();
    let command = warren_core::Command::CreateService {
        id: new_id(),
        spec: telling(0),
        at: warren_types::Timestamp(1),
    };
    let data = codec::encode(&command).into();
    let entries = vec![Entry { index: 1, term: 1, kind: EntryKind::Command, data }];
    let members = ConfState::of_voters(vec![1]);
    log.append(&Batch { entries, conf_state: Some(members.clone()), ..Batch::default() }).unwrap();
    drop(log);
    let state = &world.manager().store().read().state;
    let meta = SnapshotMeta { index: 1, term: 1, conf_state: members };
    let snapshots = Snapshots::open(directory.path().join("snapshots"), None).unwrap();
    snapshots.write(&meta, |out| codec::write_snapshot(state, out)).unwrap();
    let found = telling_files(directory.path());
    assert_eq!(found.len(), 2, "the log and the snapshot: {found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_tells_is_on_the_disk_over_many_starts() {
    let mut world = World::tuned(OFTEN).await;
    for start in 0..4 {
        create(&world, start * 80..(start + 1) * 80).await;
        assert_eq!(telling_files(&world.data_dir()), Vec::<PathBuf>::new(), "while it runs");
        if start % 2 == 0 {
            world.stop().await;
        } else {
            world.drop_manager().await;
        }
        assert_eq!(telling_files(&world.data_dir()), Vec::<PathBuf>::new(), "start {start}");
        assert!(named(&world.data_dir(), "snapshots/snapshot-") && named(&world.data_dir(), "raft."));
        world.start(false).await.unwrap();
        assert_eq!(count(&world).await, (start + 1) * 80);
    }
    control(&world);
}

/// Content of the files that must survive a refused start as they are.
fn kept(world: &World) -> BTreeMap<PathBuf, Vec<u8>> {
    let kept = files(&world.data_dir().join("manager")).into_iter().filter(|path| {
        let path = path.to_string_lossy();
        path.contains("/snapshots/") || path.ends_with("/keyring") || path.ends_with("/member.key")
    });
    kept.map(|path| (fs::read(&path).unwrap(), path)).map(|(content, path)| (path, content)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_keys_a_manager_refuses_and_changes_nothing() {
    let (mut world, mut stranger) = (World::tuned(OFTEN).await, World::new().await);
    create(&world, 0..80).await;
    world.stop().await;
    stranger.stop().await;
    let manager = world.data_dir().join("manager");
    for (file, refusal) in [("member.key", "is the member key"), ("keyring", "was written with")] {
        let path = manager.join(file);
        let good = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let before = kept(&world);
        refuses(&world, false, &format!("{file} is missing")).await;
        refuses(&world, true, &format!("{file} is missing")).await;
        assert_eq!(kept(&world), before);
        fs::copy(stranger.data_dir().join("manager").join(file), &path).unwrap();
        let before = kept(&world);
        refuses(&world, false, refusal).await;
        assert_eq!(kept(&world), before);
        fs::write(&path, &good).unwrap();
    }
    world.start(false).await.unwrap();
    assert_eq!(count(&world).await, 80);
}
