//! A disk that fills up while the manager runs: writers are told, everybody else is served, nothing that was
//! acknowledged is lost, and it goes on by itself when there is room.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::timeout;
use tonic::Code;
use warren_client::{Client, Error};
use warren_log::Engine;
use warren_manager::config::CERTIFICATES;
use warren_manager::raft::snapshot::Bounds;
use warren_manager::{Manager, Tuning};
use warren_proto::v1;
use warren_testkit::wait::eventually_async;
use warren_types::{EnvVar, ServiceSpec};

use crate::worker::Worker;
use crate::world::{PATIENCE, World, new_id, spec};

/// Room for the log and some snapshots; engines take some MiB before the first entry.
const MEBIBYTES: u64 = 24;
/// Snapshots are among what does not fit.
const EAGER: Tuning = Tuning {
    snapshots: Bounds { bytes: 64 << 10, entries: 16 },
    keep_entries: 4,
    history: 1 << 16,
    certificates: CERTIFICATES,
};

/// A write that waits for the disk is given up after this.
const GIVEN_UP: Duration = Duration::from_secs(3);

/// A service that takes some room in the log and none on nodes.
fn large(name: &str) -> ServiceSpec {
    let mut spec = spec(name, 0);
    spec.task.env = vec![EnvVar { name: "TEXT".into(), value: "x".repeat(4 << 10) }];
    spec
}

/// Creates services until one is refused; answers those that were acknowledged, and the refusal.
async fn fill_log(client: &Client, prefix: &str) -> (Vec<String>, warren_proto::Problem) {
    let mut acknowledged = Vec::new();
    for number in 0..10_000 {
        let name = format!("{prefix}-{number}");
        match timeout(GIVEN_UP, client.services().create(new_id(), &large(&name))).await {
            Ok(Ok(_)) => acknowledged.push(name),
            Ok(Err(Error::Refused { problem })) => return (acknowledged, problem),
            Ok(Err(error)) => panic!("{error}"),
            // The first one that does not fit waits for the disk, and may still be carried out.
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

/// An error and what caused it.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[track_caller]
fn all_there(acknowledged: &[String], found: &BTreeSet<String>) {
    let lost: Vec<_> = acknowledged.iter().filter(|name| !found.contains(*name)).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_told_and_got_over() {
    for engine in Engine::ALL {
        let mut world = World::on_small_disk(engine, EAGER, MEBIBYTES).await;
        let client = world.admin().await;
        let mut worker = Worker::dial(&world).await;
        client.services().create(new_id(), &spec("web", 1)).await.unwrap();
        worker.has("a task", |tasks| tasks.len() == 1).await;
        let mut acknowledged = Vec::new();
        for round in 0..2 {
            world.disk().fill();
            let (made, problem) = fill_log(&client, &format!("{engine}-{round}")).await;
            acknowledged.extend(made);
            assert_eq!((problem.code, problem.reason.as_str()), (Code::ResourceExhausted, "DISK_FULL"));
            let place = world.data_dir().join("manager").display().to_string();
            assert!(problem.message.contains("the disk of this manager is full"), "{}", problem.message);
            assert!(problem.message.contains(&place), "{}", problem.message);

            worker.heartbeat().await;
            // Whoever reads is served, and the worker's session goes on.
            let told = info(&client).await;
            assert!(told.leader && told.log_held.contains("full"), "{told:?}");
            assert!(told.log_held_since.is_some(), "{told:?}");
            all_there(&acknowledged, &names(&client).await);
            worker.sync().await;

            // A report waits for the disk instead of ending the session.
            let report = async {
                worker.run_all().await;
                worker
            };
            let freed = async {
                world.disk().free();
                eventually_async(PATIENCE, "the log to be written again", || async {
                    let held = info(&client).await.log_held;
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
        all_there(&acknowledged, &names(&client).await);
        world.stop().await;
        world.start(false).await.unwrap();
        all_there(&acknowledged, &names(&world.admin().await).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manager_does_not_start_on_a_full_disk_and_damages_nothing() {
    for engine in Engine::ALL {
        let mut world = World::on_small_disk(engine, EAGER, MEBIBYTES).await;
        let client = world.admin().await;
        world.disk().fill();
        let (acknowledged, _) = fill_log(&client, "s").await;
        world.drop_manager().await;
        world.disk().fill();
        for _ in 0..2 {
            let error = match Manager::start(world.config(), false).await {
                Err(error) => chain(&error),
                Ok(_) => panic!("it starts on a full disk"),
            };
            assert!(error.contains("No space left on device"), "{error}");
            assert!(error.contains(world.disk().path().to_str().unwrap()), "{error}");
        }
        world.disk().free();
        world.start(false).await.unwrap();
        all_there(&acknowledged, &names(&world.admin().await).await);
    }
}
