//! A disk that fills up while the manager runs: writes fail with a reason, reads and sessions work, no
//! acknowledged write is lost, and the manager recovers by itself when there is space.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::timeout;
use tonic::Code;
use warren_client::{Client, Error};
use warren_log::LogEngine;
use warren_manager::ManagerTuning;
use warren_manager::config::CERTIFICATE_CHECK_INTERVAL;
use warren_proto::v1;
use warren_store::raft::open::ReplicaTuning;
use warren_store::raft::snapshot::SnapshotThresholds;
use warren_testkit::scratch::ScratchDir;
use warren_testkit::tool;
use warren_testkit::wait::eventually_async;
use warren_types::{EnvVar, ServiceSpec};

use crate::fixture::{ManagerFixture, WAIT_DEADLINE, new_id, spec};
use crate::worker::ScriptedWorker;

/// Room for the log and some snapshots; engines take some MiB before the first entry.
const MEBIBYTES: u64 = 24;
/// Large enough that a snapshot does not fit.
const SMALL_SNAPSHOTS: ManagerTuning = ManagerTuning {
    replica: ReplicaTuning {
        snapshot_thresholds: SnapshotThresholds { bytes: 64 << 10, entries: 16 },
        kept_entries: 4,
        history_changes: 1 << 16,
    },
    certificate_check_interval: CERTIFICATE_CHECK_INTERVAL,
};

/// A write that waits for the disk fails after this time.
const WRITE_DEADLINE: Duration = Duration::from_secs(3);

/// A service that takes some space in the log and none on nodes.
fn large(name: &str) -> ServiceSpec {
    let mut spec = spec(name, 0);
    spec.task.env = vec![EnvVar { name: "TEXT".into(), value: "x".repeat(4 << 10) }];
    spec
}

/// Creates services until one is refused; returns the acknowledged ones, and the error.
async fn fill_log(client: &Client, prefix: &str) -> (Vec<String>, warren_proto::Problem) {
    let mut acknowledged = Vec::new();
    for number in 0..10_000 {
        let name = format!("{prefix}-{number}");
        match timeout(WRITE_DEADLINE, client.services().create(new_id(), &large(&name))).await {
            Ok(Ok(_)) => acknowledged.push(name),
            Ok(Err(Error::Refused { problem })) => return (acknowledged, problem),
            Ok(Err(error)) => panic!("{error}"),
            // The first one that does not fit waits for the disk, and may still be applied.
            Err(_) => {}
        }
    }
    panic!("a full disk takes everything");
}

async fn names(client: &Client) -> BTreeSet<String> {
    let services = client.services().list().await.unwrap();
    services.into_iter().map(|service| service.spec.unwrap().name).collect()
}

async fn info(client: &Client) -> v1::InfoResponse {
    client.cluster().info().await.unwrap()
}

#[track_caller]
fn assert_acknowledged_present(acknowledged: &[String], found: &BTreeSet<String>) {
    let lost: Vec<_> = acknowledged.iter().filter(|name| !found.contains(*name)).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_is_reported_and_recovered() {
    for engine in LogEngine::ALL {
        let mut world = ManagerFixture::on_small_disk(engine, SMALL_SNAPSHOTS, MEBIBYTES).await;
        let client = world.admin().await;
        let mut worker = ScriptedWorker::dial(&world).await;
        client.services().create(new_id(), &spec("web", 1)).await.unwrap();
        worker.has("a task", |tasks| tasks.len() == 1).await;
        let mut acknowledged = Vec::new();
        for round in 0..2 {
            let alive = worker.keep_alive();
            world.disk().fill();
            let (made, problem) = fill_log(&client, &format!("{engine}-{round}")).await;
            drop(alive);
            acknowledged.extend(made);
            assert_eq!((problem.code, problem.reason.as_str()), (Code::ResourceExhausted, "DISK_FULL"));
            let place = world.data_dir().join("manager").display().to_string();
            assert!(problem.message.contains("the disk of this manager is full"), "{}", problem.message);
            assert!(problem.message.contains(&place), "{}", problem.message);

            worker.heartbeat().await;
            // Reads are served, and the worker's session continues.
            let received = info(&client).await;
            assert!(received.leader && received.log_write_stall.contains("full"), "{received:?}");
            assert!(received.log_write_stalled_since.is_some(), "{received:?}");
            assert_acknowledged_present(&acknowledged, &names(&client).await);
            worker.sync().await;

            // A report waits for the disk instead of ending the session.
            let report = async {
                worker.run_all().await;
                worker
            };
            let freed = async {
                world.disk().free();
                eventually_async(WAIT_DEADLINE, "the log to be written again", || async {
                    let held = info(&client).await.log_write_stall;
                    if held.is_empty() { Ok(()) } else { Err(held) }
                })
                .await;
            };
            (worker, ()) = tokio::join!(report, freed);
            let name = format!("after-{round}");
            client.services().create(new_id(), &large(&name)).await.unwrap();
            acknowledged.push(name);
            assert_eq!(client.tasks().get("web.1").await.unwrap().state(), v1::TaskState::Running);
        }
        assert_eq!(worker.welcome.session, 1, "no session was lost");
        assert_acknowledged_present(&acknowledged, &names(&client).await);
        world.stop().await;
        world.start(false).await.unwrap();
        assert_acknowledged_present(&acknowledged, &names(&world.admin().await).await);
    }
}

#[track_caller]
fn refused_for_the_disk(error: &Error, words: &str) {
    let Error::Refused { problem } = error else { panic!("{error}") };
    assert_eq!((problem.code, problem.reason.as_str()), (Code::ResourceExhausted, "DISK_FULL"), "{problem}");
    assert!(problem.message.contains("the disk of this manager is full"), "{problem}");
    assert!(problem.message.contains(words), "{problem}");
}

/// Starts the manager with so little space that it cannot lead, and reads.
async fn start_on_full_disk(world: &mut ManagerFixture) -> (Client, Error) {
    // A start removes an unfinished snapshot, which may free enough space for the first entry of a term.
    for _ in 0..5 {
        world.disk().fill();
        world.start(false).await.unwrap();
        let client = world.admin().await;
        if let Err(error) = client.services().list().await {
            return (client, error);
        }
        world.drop_manager().await;
    }
    panic!("the manager leads, however often its disk is filled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manager_on_full_disk_starts_read_only() {
    for engine in LogEngine::ALL {
        let mut world = ManagerFixture::on_small_disk(engine, SMALL_SNAPSHOTS, MEBIBYTES).await;
        let client = world.admin().await;
        for number in 0..20 {
            client.services().create(new_id(), &spec(&format!("before-{number}"), 0)).await.unwrap();
        }
        world.disk().fill();
        let (acknowledged, _) = fill_log(&client, "s").await;
        // The leftovers of a killed process.
        let left = ScratchDir::new();
        let (data, copy) = (world.data_dir(), left.path().join("data"));
        tool::run("cp", ["-a", data.to_str().unwrap(), copy.to_str().unwrap()]);
        world.drop_manager().await;
        world.disk().free();
        std::fs::remove_dir_all(&data).unwrap();
        tool::run("cp", ["-a", copy.to_str().unwrap(), data.to_str().unwrap()]);
        // sled writes when it opens its log, so this manager reports why it does not start.
        let rounds = if engine == LogEngine::Sled { 0 } else { 2 };
        if engine == LogEngine::Sled {
            world.disk().fill();
            let refused = world.start(false).await.unwrap_err().to_string();
            assert!(refused.contains("No space left on device"), "{refused}");
            assert!(refused.contains("Make room on that disk"), "{refused}");
            assert!(refused.contains(world.disk().path().to_str().unwrap()), "{refused}");
            world.disk().free();
            world.start(false).await.unwrap();
        }
        for round in 0..rounds {
            // It cannot lead, so it does not know whether its last entries are committed: it shows the
            // committed ones.
            let (client, error) = start_on_full_disk(&mut world).await;
            refused_for_the_disk(&error, "nothing was read");
            let error = client.services().create(new_id(), &large("no")).await.unwrap_err();
            refused_for_the_disk(&error, "nothing was changed");
            let known = names(&client.clone().stale(true)).await;
            assert!(known.contains("before-0") && !known.contains("no"), "{known:?}");
            if round == 0 {
                world.drop_manager().await;
            }
        }
        world.disk().free();
        let client = world.admin().await;
        eventually_async(WAIT_DEADLINE, "the manager to lead", || async {
            client.services().list().await.map(drop).map_err(|error| error.to_string())
        })
        .await;
        client.services().create(new_id(), &large("after")).await.unwrap();
        assert_acknowledged_present(&acknowledged, &names(&client).await);
        world.stop().await;
        world.start(false).await.unwrap();
        assert_acknowledged_present(&acknowledged, &names(&world.admin().await).await);
    }
}
