//! Labels, constraints and availability of nodes, and the resulting placement.

use std::collections::{BTreeMap, BTreeSet};

use warren_client::{Client, Error, NodeChange, TaskFilter};
use warren_proto::v1;
use warren_proto::v1::nodes_client::NodesClient;
use warren_types::{Availability, Placement, ServiceMode};

use crate::fixture::{CallerKind, ManagerFixture, WAIT_DEADLINE, new_id, spec};
use crate::joining::joined;
use crate::worker::ScriptedWorker;

/// Names of the nodes with the service's tasks.
async fn task_nodes(client: &Client) -> Vec<String> {
    let filter = TaskFilter { service: "web".into(), current: true, ..TaskFilter::default() };
    let tasks = client.tasks().list(filter).await.unwrap().into_iter();
    let mut names: Vec<String> = tasks.filter(|task| task.ready).map(|task| task.node_name).collect();
    names.sort();
    names
}

/// Lets the workers execute their assignments until the service's tasks run there.
async fn wait_placement(client: &Client, workers: &mut [ScriptedWorker], desired: &[&str]) {
    let done = async {
        while task_nodes(client).await != desired {
            for worker in workers.iter_mut() {
                worker.apply_assignment().await;
            }
        }
    };
    if tokio::time::timeout(WAIT_DEADLINE, done).await.is_err() {
        panic!("the tasks run on {:?}, expected {desired:?}", task_nodes(client).await);
    }
}

async fn labelled(client: &Client, node: &str, zone: &str) -> v1::Node {
    let label_add = BTreeMap::from([("zone".to_owned(), zone.to_owned())]);
    client.nodes().update(node, &NodeChange { label_add, ..NodeChange::default() }).await.unwrap()
}

pub async fn available(client: &Client, node: &str, availability: Availability) -> v1::Node {
    let change = NodeChange { availability: Some(availability), ..NodeChange::default() };
    client.nodes().update(node, &change).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_node_runs_nothing_once_others_have_taken_over() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let node = joined(&world, "n2").await;
    let mut workers = [ScriptedWorker::dial(&world).await, ScriptedWorker::dial_as(&world, &node).await];
    client.services().create(new_id(), &spec("web", 2)).await.unwrap();
    wait_placement(&client, &mut workers, &["n1", "n2"]).await;
    let drained = available(&client, "n1", Availability::Drain).await;
    assert_eq!(drained.availability(), v1::Availability::Drain);
    wait_placement(&client, &mut workers, &["n2", "n2"]).await;
    available(&client, "n1", Availability::Active).await;
    available(&client, "n2", Availability::Pause).await;
    client.services().scale("web", 3, None).await.unwrap();
    wait_placement(&client, &mut workers, &["n1", "n2", "n2"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_global_service_runs_where_its_constraints_say() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let node = joined(&world, "n2").await;
    let mut workers = [ScriptedWorker::dial(&world).await, ScriptedWorker::dial_as(&world, &node).await];
    let mut everywhere = spec("web", 1);
    everywhere.mode = ServiceMode::Global;
    client.services().create(new_id(), &everywhere).await.unwrap();
    wait_placement(&client, &mut workers, &["n1", "n2"]).await;
    assert_eq!(client.services().get("web").await.unwrap().desired_tasks, 2);

    labelled(&client, "n2", "a").await;
    let zone = "node.labels.zone == a".parse().unwrap();
    everywhere.placement = Placement { constraints: vec![zone], ..Placement::default() };
    client.services().update("web", &everywhere, None, false).await.unwrap();
    wait_placement(&client, &mut workers, &["n2"]).await;
    labelled(&client, "n1", "a").await;
    wait_placement(&client, &mut workers, &["n1", "n2"]).await;
    let label_rm = BTreeSet::from(["zone".to_owned()]);
    let change = NodeChange { label_rm, ..NodeChange::default() };
    assert!(client.nodes().update("n2", &change).await.unwrap().labels.is_empty());
    wait_placement(&client, &mut workers, &["n1"]).await;
    let task = client.tasks().list(TaskFilter::default()).await.unwrap().remove(0);
    assert_eq!(task.bound_to, task.node_id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_a_node_is_refused_field_by_field() {
    let world = ManagerFixture::new().await;
    let client = world.admin().await;
    let mut raw = NodesClient::new(world.channel(CallerKind::Local).await);
    let wrong = v1::UpdateNodeRequest {
        reference: "n1".into(),
        label_add: [("no key".to_owned(), "x".to_owned())].into(),
        availability: 9,
        ..Default::default()
    };
    let refused = warren_proto::Problem::from(&raw.update(wrong).await.unwrap_err());
    let paths: Vec<&str> = refused.violations.0.iter().map(|violation| violation.path.as_str()).collect();
    assert!(paths.len() == 2 && paths[0].starts_with("labelAdd") && paths[1] == "availability", "{paths:?}");
    let first = labelled(&client, "n1", "a").await;
    assert_eq!(labelled(&client, "n1", "a").await.version, first.version, "it is so already");
    labelled(&client, "n1", "b").await;
    let late = NodeChange {
        version: Some(first.version),
        availability: Some(Availability::Pause),
        ..NodeChange::default()
    };
    let refused = client.nodes().update("n1", &late).await.unwrap_err();
    assert!(
        matches!(&refused, Error::Refused { problem } if problem.reason == "VERSION_CONFLICT"),
        "{refused}"
    );
    assert!(client.nodes().update("n7", &NodeChange::default()).await.unwrap_err().is_not_found());
}
