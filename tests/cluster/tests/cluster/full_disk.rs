//! A disk that fills up while the manager runs: writers are told, everybody else is served, nothing that was
//! acknowledged is lost, and it goes on by itself when there is room.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::timeout;
use tonic::Code;
use warren_client::{Client, Error};
use warren_log::Engine;
use warren_manager::Tuning;
use warren_manager::config::CERTIFICATES;
use warren_manager::raft::snapshot::Bounds;
use warren_proto::v1;
use warren_testkit::scratch::Scratch;
use warren_testkit::tool;
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

#[track_caller]
fn refused_for_the_disk(error: &Error, words: &str) {
    let Error::Refused { problem } = error else { panic!("{error}") };
    assert_eq!((problem.code, problem.reason.as_str()), (Code::ResourceExhausted, "DISK_FULL"), "{problem}");
    assert!(problem.message.contains("the disk of this manager is full"), "{problem}");
    assert!(problem.message.contains(words), "{problem}");
}

/// Starts the manager with so little room that it cannot lead, and reads.
async fn start_on_full_disk(world: &mut World) -> (Client, Error) {
    // A start removes what an unfinished snapshot left, which may be room enough for the first entry of a term.
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
async fn a_manager_starts_on_a_full_disk_to_be_read_and_damages_nothing() {
    for engine in Engine::ALL {
        let mut world = World::on_small_disk(engine, EAGER, MEBIBYTES).await;
        let client = world.admin().await;
        for number in 0..20 {
            client.services().create(new_id(), &spec(&format!("before-{number}"), 0)).await.unwrap();
        }
        world.disk().fill();
        let (acknowledged, _) = fill_log(&client, "s").await;
        // What a process leaves that is killed.
        let left = Scratch::new();
        let (data, copy) = (world.data_dir(), left.path().join("data"));
        tool::run("cp", ["-a", data.to_str().unwrap(), copy.to_str().unwrap()]);
        world.drop_manager().await;
        world.disk().free();
        std::fs::remove_dir_all(&data).unwrap();
        tool::run("cp", ["-a", copy.to_str().unwrap(), data.to_str().unwrap()]);
        // sled writes when it opens its log, so that this manager says why it does not start.
        let rounds = if engine == Engine::Sled { 0 } else { 2 };
        if engine == Engine::Sled {
            world.disk().fill();
            let refused = world.start(false).await.unwrap_err().to_string();
            assert!(refused.contains("No space left on device"), "{refused}");
            assert!(refused.contains("Make room on that disk"), "{refused}");
            assert!(refused.contains(world.disk().path().to_str().unwrap()), "{refused}");
            world.disk().free();
            world.start(false).await.unwrap();
        }
        for round in 0..rounds {
            // It cannot lead, so it does not know whether its last entries are committed: it shows those that are.
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
        eventually_async(PATIENCE, "the manager to lead", || async {
            client.services().list().await.map(drop).map_err(|error| error.to_string())
        })
        .await;
        client.services().create(new_id(), &large("after")).await.unwrap();
        all_there(&acknowledged, &names(&client).await);
        world.stop().await;
        world.start(false).await.unwrap();
        all_there(&acknowledged, &names(&world.admin().await).await);
    }
}
