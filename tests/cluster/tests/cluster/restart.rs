//! Restarts of a manager after a shutdown or a crash, and the data on which it refuses to start.

use std::collections::BTreeSet;
use std::path::PathBuf;

use warren_manager::config::CERTIFICATE_CHECK_INTERVAL;
use warren_manager::manager::ManagerStartError;
use warren_manager::{Manager, ManagerTuning};
use warren_store::raft::open::ReplicaTuning;
use warren_store::raft::snapshot::SnapshotThresholds;

use crate::fixture::{ManagerFixture, new_id, spec};
use crate::worker::ScriptedWorker;

/// A snapshot after every few entries, and a short log after it.
const SMALL_SNAPSHOTS: ManagerTuning = ManagerTuning {
    replica: ReplicaTuning {
        snapshot_thresholds: SnapshotThresholds { bytes: 1 << 20, entries: 5 },
        kept_entries: 2,
        history_changes: 1 << 16,
    },
    certificate_check_interval: CERTIFICATE_CHECK_INTERVAL,
};

async fn create(world: &ManagerFixture, names: &[&str]) {
    for name in names {
        world.local().await.services().create(new_id(), &spec(name, 1)).await.unwrap();
    }
}

async fn names(world: &ManagerFixture) -> Vec<String> {
    let services = world.admin().await.services().list().await.unwrap();
    services.into_iter().map(|service| service.spec.unwrap().name).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_restart() {
    let mut world = ManagerFixture::new().await;
    let cluster = world.manager().cluster();
    create(&world, &["a", "b"]).await;
    let worker = ScriptedWorker::dial(&world).await;
    world.stop().await;
    worker.end_with_manager().await;
    world.start(false).await.unwrap();
    assert_eq!((names(&world).await, world.manager().cluster()), (vec!["a".into(), "b".into()], cluster));
    create(&world, &["c"]).await;
    world.drop_manager().await;
    world.start(true).await.unwrap();
    assert_eq!(names(&world).await, ["a", "b", "c"]);
    assert_eq!(ScriptedWorker::dial(&world).await.welcome.session, 2, "numbers of sessions rise for ever");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_replace_the_log_and_lose_nothing() {
    let mut world = ManagerFixture::tuned(SMALL_SNAPSHOTS).await;
    let mut expected = Vec::new();
    for round in 0..4 {
        for number in 0..10 {
            expected.push(format!("s{round}{number}"));
            create(&world, &[expected.last().unwrap()]).await;
        }
        if round % 2 == 0 {
            world.stop().await
        } else {
            world.drop_manager().await
        }
        // The current one, and one that the log did not know when the manager ended.
        assert!((1..=2).contains(&snapshots(&world).len()), "{:?}", snapshots(&world));
        world.start(false).await.unwrap();
        assert_eq!(names(&world).await, expected);
    }
}

/// The number of services that it created. A snapshot file is deleted once the log names the next one.
async fn create_until_log_names_snapshot(world: &ManagerFixture) -> usize {
    let mut seen = BTreeSet::new();
    for number in 0..1000 {
        create(world, &[&format!("s{number}")]).await;
        let files = snapshots(world);
        seen.extend(files.iter().cloned());
        if seen.len() > files.len() {
            return number + 1;
        }
    }
    panic!("no snapshot replaced another: {seen:?}");
}

fn snapshots(world: &ManagerFixture) -> Vec<PathBuf> {
    let files = std::fs::read_dir(world.data_dir().join("manager/snapshots")).unwrap();
    let files = files.map(|file| file.unwrap().path());
    files.filter(|path| path.extension().is_none()).collect()
}

/// The start fails, its error names the file, and the directory is unlocked for the next attempt.
pub async fn refuses(world: &ManagerFixture, create: bool, named: &str) -> ManagerStartError {
    let refused = || async { Manager::start(world.config(), create).await.err().expect("a refusal") };
    for _ in 0..2 {
        let error = refused().await;
        assert!(error.to_string().contains(named), "{error}");
    }
    refused().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_file_is_named() {
    let mut world = ManagerFixture::tuned(SMALL_SNAPSHOTS).await;
    let created = create_until_log_names_snapshot(&world).await;
    world.stop().await;
    let good: Vec<_> =
        snapshots(&world).into_iter().map(|path| (std::fs::read(&path).unwrap(), path)).collect();
    for (good, path) in &good {
        let mut bad = good.clone();
        bad[good.len() / 2] ^= 1;
        std::fs::write(path, bad).unwrap();
    }
    let directory = world.data_dir().join("manager/snapshots/snapshot-");
    refuses(&world, false, directory.to_str().unwrap()).await;
    good.iter().for_each(|(good, path)| std::fs::write(path, good).unwrap());
    let log = world.data_dir().join("manager/raft.redb");
    let good = std::fs::read(&log).unwrap();
    std::fs::write(&log, vec![7; good.len()]).unwrap();
    refuses(&world, false, log.to_str().unwrap()).await;
    std::fs::write(&log, good).unwrap();
    world.start(false).await.unwrap();
    assert_eq!(names(&world).await.len(), created);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_files_are_kept() {
    let mut world = ManagerFixture::new().await;
    create(&world, &["a"]).await;
    let error = refuses(&world, true, "is in use by process").await;
    assert!(matches!(error, ManagerStartError::Log(_)), "{error}");
    assert_eq!(names(&world).await, ["a"], "the one that runs is not disturbed");
    world.stop().await;

    let version = world.data_dir().join("version");
    let current = std::fs::read(&version).unwrap();
    std::fs::write(&version, "99\n").unwrap();
    refuses(&world, false, "format version 99").await;
    std::fs::write(&version, current).unwrap();

    let log = world.data_dir().join("manager/raft.redb");
    let aside = log.with_extension("aside");
    std::fs::rename(&log, &aside).unwrap();
    refuses(&world, false, "raft.redb is missing").await;
    std::fs::rename(&aside, &log).unwrap();
    world.start(false).await.unwrap();
    assert_eq!(names(&world).await, ["a"]);
    world.stop().await;
    std::fs::remove_file(world.data_dir().join("manager/ca.pem")).unwrap();
    refuses(&world, false, "manager/ca.pem is missing").await;
}
