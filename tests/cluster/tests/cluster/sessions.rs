//! The session of a worker, frame by frame.

use std::time::{Duration, Instant};

use tonic::Code;
use warren_client::{Client, TaskFilter};
use warren_proto::v1;
use warren_proto::v1::manager_frame::Frame;
use warren_proto::v1::worker_frame::Frame as Say;
use warren_testkit::wait::eventually_async;

use crate::fixture::{ManagerFixture, WAIT_DEADLINE, new_id, rollout_completed, spec};
use crate::worker::{ScriptedWorker, report};

const RUNNING: v1::TaskState = v1::TaskState::Running;

/// All tasks of the service, as soon as `expected` is true for them.
async fn tasks(client: &Client, what: &str, expected: impl Fn(&[v1::Task]) -> bool) -> Vec<v1::Task> {
    eventually_async(WAIT_DEADLINE, what, || async {
        let tasks = client.tasks().list(TaskFilter::default()).await.map_err(|error| error.to_string())?;
        if expected(&tasks) { Ok(tasks) } else { Err(format!("{tasks:?}")) }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn assignments_reach_worker_and_reports_reach_api() {
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    let mut worker = ScriptedWorker::dial(&world).await;
    assert_eq!(worker.welcome.session, 1);
    assert_eq!(worker.welcome.settings.as_ref().unwrap().subnets, ["10.210.0.0/24"]);
    client.services().create(new_id(), &spec("web", 2)).await.unwrap();
    worker.has("two tasks", |tasks| tasks.len() == 2).await;

    let id = worker.tasks.keys().next().unwrap().clone();
    let writes = client.cluster().info().await.unwrap().log_writes;
    let starting =
        v1::TaskReport { reason: "its image is unpacked".into(), ..report(&id, v1::TaskState::Starting) };
    worker.report(vec![starting]).await;
    let shown = client.tasks().get(&id).await.unwrap();
    assert_eq!((shown.state(), shown.reason.as_str()), (v1::TaskState::Starting, "its image is unpacked"));
    assert_eq!(client.cluster().info().await.unwrap().log_writes, writes, "progress is not written");

    worker.run_all().await;
    let shown = client.tasks().get("web.1").await.unwrap();
    assert_eq!((shown.state(), shown.ready, shown.reason.as_str()), (RUNNING, true, ""));
    assert_eq!(client.services().get("web").await.unwrap().running, 2);
    rollout_completed(&client, "web").await;
    let writes = client.cluster().info().await.unwrap().log_writes;
    worker.run_all().await;
    assert_eq!(
        client.cluster().info().await.unwrap().log_writes,
        writes,
        "what is known is not written again"
    );

    client.services().scale("web", 3, None).await.unwrap();
    worker.has("a third task", |tasks| tasks.len() == 3).await;
    client.services().remove("web", None, false).await.unwrap();
    let stopping = |task: &v1::TaskAssignment| task.desired() > v1::DesiredTaskState::Running;
    worker.has("all to be stopped", |tasks| tasks.values().all(stopping)).await;
    let missing = |id: &String| v1::TaskReport { removed: true, ..report(id, v1::TaskState::Shutdown) };
    let reports = worker.tasks.keys().map(missing).collect();
    worker.report(reports).await;
    worker.has("nothing", |tasks| tasks.is_empty()).await;
    tasks(&client, "no record", |tasks| tasks.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_newest_session_counts() {
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    client.services().create(new_id(), &spec("web", 1)).await.unwrap();
    let mut first = ScriptedWorker::dial(&world).await;
    first.has("a task", |tasks| tasks.len() == 1).await;
    let mut second = ScriptedWorker::dial_with(&world, first.version).await;
    assert_eq!(second.welcome.session, 2);
    let mut answer = second.receive().await;
    while matches!(answer, Frame::Network(_)) {
        answer = second.receive().await;
    }
    assert!(matches!(answer, Frame::Current(_)), "it has everything of its earlier session");
    let failed = first.tasks.keys().map(|id| report(id, v1::TaskState::Failed)).collect();
    // The first session may have ended already; in both cases its reports must not be applied.
    let late = v1::ReportBatch { number: 1, reports: failed };
    first.send_if_open(Say::Reports(late)).await;
    assert_eq!(first.end().await.code(), Code::Aborted);
    second.sync().await;
    let [task] = client.tasks().list(TaskFilter::default()).await.unwrap().try_into().unwrap();
    assert_eq!(task.state(), v1::TaskState::Assigned);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_node_is_down_until_it_returns() {
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    client.services().create(new_id(), &spec("web", 1)).await.unwrap();
    let mut worker = ScriptedWorker::dial(&world).await;
    worker.has("a task", |tasks| tasks.len() == 1).await;
    worker.run_all().await;
    let version = worker.version;
    drop(worker);
    let down =
        tasks(&client, "a lost task", |tasks| tasks.iter().any(|task| task.lost_since.is_some())).await;
    let lost = down.iter().find(|task| task.lost_since.is_some()).unwrap();
    assert!(lost.reason.contains("node n1 has been down since"), "{}", lost.reason);
    assert_eq!(client.nodes().get("n1").await.unwrap().status(), v1::NodeStatus::Down);
    let worker = ScriptedWorker::dial_with(&world, version).await;
    worker.heartbeat().await;
    assert_eq!(client.nodes().get("n1").await.unwrap().status(), v1::NodeStatus::Ready);
    tasks(&client, "no task to be lost", |tasks| tasks.iter().all(|task| task.lost_since.is_none())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_cluster_writes_nothing() {
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    client.services().create(new_id(), &spec("web", 3)).await.unwrap();
    let mut worker = ScriptedWorker::dial(&world).await;
    worker.has("three tasks", |tasks| tasks.len() == 3).await;
    worker.run_all().await;
    worker.sync().await;
    rollout_completed(&client, "web").await;
    let before = client.cluster().info().await.unwrap();
    let (mut pace, begin) = (tokio::time::interval(Duration::from_millis(50)), Instant::now());
    while begin.elapsed() < Duration::from_secs(4) {
        pace.tick().await;
        worker.heartbeat().await;
        worker.sync().await;
    }
    let after = client.cluster().info().await.unwrap();
    assert_eq!((after.log_bytes_written, after.log_writes), (before.log_bytes_written, before.log_writes));
    assert_eq!(after.applied_index, before.applied_index);
    let usage = client.nodes().get("n1").await.unwrap().usage;
    assert_eq!(usage.map(|usage| usage.cpu_milli), Some(7), "heartbeats were received");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_worker_frame_ends_the_session() {
    let world = ManagerFixture::new().await;
    for (frame, code) in [
        (Some(Say::Hello(Box::default())), Code::InvalidArgument),
        (None, Code::Unimplemented),
        (
            Some(Say::Reports(v1::ReportBatch { number: 1, reports: vec![Default::default(); 4097] })),
            Code::InvalidArgument,
        ),
        (
            Some(Say::Reports(v1::ReportBatch { number: 1, reports: vec![Default::default()] })),
            Code::InvalidArgument,
        ),
    ] {
        let worker = ScriptedWorker::dial(&world).await;
        match frame {
            Some(frame) => worker.send(frame).await,
            None => worker.send_unknown_frame().await,
        }
        assert_eq!(worker.end().await.code(), code);
    }
}
