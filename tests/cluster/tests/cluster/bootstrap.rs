//! Bootstrap services: from the creation of the services over a node that joins to the loss of a node.

use std::collections::BTreeMap;

use warren_client::{Client, Error, NodeChange, TaskFilter};
use warren_proto::v1;
use warren_types::{ServiceMode, ServiceSpec};

use crate::fixture::{ManagerFixture, WAIT_DEADLINE, new_id, spec};
use crate::joining::joined;
use crate::worker::ScriptedWorker;

fn bootstrap(name: &str, per: Option<&str>) -> ServiceSpec {
    let per = per.map(|label| label.parse().unwrap());
    ServiceSpec { mode: ServiceMode::Global, bootstrap: true, per, ..spec(name, 0) }
}

async fn set_zone(client: &Client, node: &str) {
    let label_add = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
    client.nodes().update(node, &NodeChange { label_add, ..NodeChange::default() }).await.unwrap();
}

async fn tasks(client: &Client, service: &str) -> Vec<v1::Task> {
    let filter = TaskFilter { service: service.into(), current: true, ..TaskFilter::default() };
    client.tasks().list(filter).await.unwrap()
}

/// Lets `busy` workers execute their assignments, and others only keep contact, until the check succeeds.
async fn drive(
    what: &str,
    busy: &mut [ScriptedWorker],
    idle: &[ScriptedWorker],
    check: impl AsyncFn() -> Result<(), String>,
) {
    let mut last = String::new();
    let done = async {
        while let Err(why) = check().await {
            last = why;
            for worker in busy.iter_mut() {
                worker.apply_assignment().await;
            }
            for worker in idle {
                worker.heartbeat().await;
            }
        }
    };
    if tokio::time::timeout(WAIT_DEADLINE, done).await.is_err() {
        panic!("{what}: {last}");
    }
}

/// Whether a task of the service without a node has this reason.
async fn waits_for(client: &Client, service: &str, reason: &str) -> Result<(), String> {
    let tasks = tasks(client, service).await;
    let mut waiting = tasks.iter().filter(|task| task.node_id.is_empty());
    if waiting.any(|task| task.reason == reason) { Ok(()) } else { Err(format!("{tasks:?}")) }
}

/// Whether the node has ready tasks of exactly these services.
async fn runs(client: &Client, node: &str, expected: &[&str]) -> Result<(), String> {
    let all = client.tasks().list(TaskFilter { current: true, ..TaskFilter::default() }).await.unwrap();
    let here =
        all.into_iter().filter(|task| task.node_name == node && task.ready && task.lost_since.is_none());
    let mut found: Vec<String> = here.map(|task| task.service_name).collect();
    found.sort();
    if found == expected { Ok(()) } else { Err(format!("{node} runs {found:?}, not {expected:?}")) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bootstrap_services_start_first_and_survive_their_node() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    set_zone(&client, "n1").await;
    client.services().create(new_id(), &bootstrap("dns", None)).await.unwrap();
    client.services().create(new_id(), &bootstrap("cache", Some("node.labels.zone"))).await.unwrap();
    client
        .services()
        .create(new_id(), &ServiceSpec { mode: ServiceMode::Global, ..spec("agent", 0) })
        .await
        .unwrap();
    let mut first = ScriptedWorker::dial(&world).await;
    first.has("the bootstrap tasks", |tasks| tasks.len() == 2).await;
    let mut workers = vec![first];
    let all = ["agent", "cache", "dns"];
    drive("the first node", &mut workers, &[], async || runs(&client, "n1", &all).await).await;
    let [cache] = tasks(&client, "cache").await.try_into().unwrap();
    assert_eq!((cache.slot, cache.label_value.as_deref(), cache.bound_to.as_str()), (1, Some("a"), ""));

    // A node that joins gets the bootstrap service that is on every node before all others.
    let node = joined(&world, "n2").await;
    let mut second = [ScriptedWorker::dial_as(&world, &node).await];
    second[0].has("the first task", |tasks| tasks.len() == 1).await;
    let reason = "0 of 1 nodes fit: 1 waits for bootstrap service \"dns\"";
    let waits = async || waits_for(&client, "agent", reason).await;
    drive("the second node waits", &mut workers, &second, waits).await;
    set_zone(&client, "n2").await;
    workers.extend(second);
    let without_cache = ["agent", "dns"];
    drive("the second node", &mut workers, &[], async || runs(&client, "n2", &without_cache).await).await;
    runs(&client, "n1", &all).await.unwrap();

    // The node with the task of the zone is lost: the task moves, under the same slot.
    drop(workers.remove(0));
    drive("the takeover", &mut workers, &[], async || runs(&client, "n2", &all).await).await;
    let cache = tasks(&client, "cache").await;
    let here: Vec<&v1::Task> = cache.iter().filter(|task| task.node_name == "n2").collect();
    assert_eq!((here.len(), here[0].slot, here[0].label_value.as_deref()), (1, 1, Some("a")));

    let refused = client.services().remove("dns", None, false).await.unwrap_err();
    assert!(
        matches!(&refused, Error::Refused { problem } if problem.reason == "BOOTSTRAP_SERVICE"),
        "{refused}"
    );
    assert!(client.services().remove("dns", None, true).await.unwrap().removing);
    let without_dns = ["agent", "cache"];
    drive("the removal", &mut workers, &[], async || runs(&client, "n2", &without_dns).await).await;
}
