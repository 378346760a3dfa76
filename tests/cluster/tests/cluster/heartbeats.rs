//! Status reports of a worker besides its task reports, and the settings that it gets.

use std::time::{SystemTime, UNIX_EPOCH};

use warren_client::{Client, NodeChange};
use warren_proto::v1;
use warren_proto::v1::manager_frame::Frame;
use warren_proto::v1::worker_frame::Frame as Say;
use warren_testkit::wait::eventually_async;
use warren_types::{Health, HealthCheck, Probe};

use crate::fixture::{ManagerFixture, WAIT_DEADLINE, new_id, rollout_completed, spec};
use crate::worker::{ScriptedWorker, report};

fn heartbeat(kinds: &[v1::NodeCondition], tasks: Vec<v1::TaskStats>) -> Say {
    let kinds = kinds.iter().map(|kind| i32::from(*kind)).collect();
    let usage = v1::NodeUsage { conditions: kinds, ..Default::default() };
    Say::Heartbeat(v1::Heartbeat { usage: Some(usage), background_tasks: Vec::new(), tasks })
}

async fn conditions(client: &Client, expected: &[v1::NodeCondition]) {
    let expected: Vec<i32> = expected.iter().map(|kind| i32::from(*kind)).collect();
    eventually_async(WAIT_DEADLINE, "the node's conditions", || async {
        let node = client.nodes().get("n1").await.map_err(|error| error.to_string())?;
        if node.conditions == expected { Ok(()) } else { Err(format!("{:?}", node.conditions)) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_are_written_when_they_change_and_only_then() {
    use v1::NodeCondition::{ClockSkew, DiskPressure};
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    let mut worker = ScriptedWorker::dial(&world).await;
    worker.send(heartbeat(&[DiskPressure, ClockSkew], Vec::new())).await;
    conditions(&client, &[DiskPressure, ClockSkew]).await;
    worker.sync().await;
    let before = client.cluster().info().await.unwrap().applied_index;
    for _ in 0..20 {
        worker.send(heartbeat(&[ClockSkew, DiskPressure, DiskPressure], Vec::new())).await;
        worker.sync().await;
    }
    assert_eq!(client.cluster().info().await.unwrap().applied_index, before, "nothing changed");
    let mut newer = ScriptedWorker::dial_with(&world, worker.version).await;
    newer.sync().await;
    worker.send_if_open(heartbeat(&[], Vec::new())).await;
    drop(worker);
    newer.send(heartbeat(&[DiskPressure], Vec::new())).await;
    conditions(&client, &[DiskPressure]).await;
    newer.send(heartbeat(&[], Vec::new())).await;
    conditions(&client, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_and_checks_are_shown_and_not_stored() {
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    let mut expected = spec("web", 1);
    expected.task.health = Some(HealthCheck::new(Probe::Tcp { port: 80 }));
    client.services().create(new_id(), &expected).await.unwrap();
    let mut worker = ScriptedWorker::dial(&world).await;
    worker.has("a task", |tasks| tasks.len() == 1).await;
    let task = worker.tasks.keys().next().unwrap().clone();
    let running = |health: Health, ready| v1::TaskReport {
        health: v1::Health::from(health).into(),
        ready,
        ..report(&task, v1::TaskState::Running)
    };
    worker.report(vec![running(Health::Starting, false)]).await;
    worker.report(vec![running(Health::Healthy, true)]).await;
    worker.sync().await;
    rollout_completed(&client, "web").await;
    let before = client.cluster().info().await.unwrap().applied_index;
    let vitals = |at| {
        let usage = v1::TaskUsage { memory_bytes: at, ..Default::default() };
        let check = v1::CheckResult { at, ok: true, output: "200 OK".into(), ..Default::default() };
        v1::TaskStats { task_id: task.clone(), usage: Some(usage), checks: vec![check] }
    };
    for at in 1..=7 {
        worker.send(heartbeat(&[], vec![vitals(at)])).await;
        worker.report(vec![running(Health::Healthy, true)]).await;
        worker.sync().await;
    }
    let shown = client.tasks().get("web.1").await.unwrap();
    assert_eq!((shown.health(), shown.ready), (v1::Health::Healthy, true));
    assert_eq!(shown.checks.iter().map(|check| check.at).collect::<Vec<_>>(), [3, 4, 5, 6, 7]);
    assert_eq!(shown.usage.unwrap().memory_bytes, 7);
    assert_eq!(client.cluster().info().await.unwrap().applied_index, before, "none of it is written");
    worker.report(vec![running(Health::Unhealthy, false)]).await;
    let shown = client.tasks().get("web.1").await.unwrap();
    assert_eq!((shown.health(), shown.ready), (v1::Health::Unhealthy, false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn welcome_has_node_name_and_time() {
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    let mut worker = ScriptedWorker::dial(&world).await;
    let settings = worker.welcome.settings.clone().unwrap();
    assert_eq!((settings.name.as_str(), settings.labels.len()), ("n1", 0));
    let now = || u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();
    let near = |at: u64| assert!(at.abs_diff(now()) < 60_000, "{at} is another time than {}", now());
    near(worker.welcome.sent_at);
    worker.sync().await;
    let network_version = Some(worker.network.version.into());
    worker.send(Say::Sync(v1::SyncRequest { version: worker.version, network_version })).await;
    let Frame::Current(current) = worker.receive_other().await else { panic!("it has everything") };
    near(current.sent_at);

    let change = NodeChange { label_add: [("zone".to_owned(), "a".to_owned())].into(), ..Default::default() };
    client.nodes().update("n1", &change).await.unwrap();
    let received = async {
        loop {
            match worker.receive().await {
                Frame::Settings(settings) => return settings,
                // The answer to an earlier heartbeat; the network of the cluster.
                Frame::Current(_) | Frame::Network(_) => {}
                other => panic!("not settings: {other:?}"),
            }
        }
    };
    let received = tokio::time::timeout(WAIT_DEADLINE, received)
        .await
        .expect("the worker gets the settings without a request");
    assert_eq!(received.labels.get("zone").map(String::as_str), Some("a"));
    worker.sync().await;
    assert_eq!(worker.welcome.settings, Some(settings), "they are sent once");
}
