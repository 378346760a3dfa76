//! Events of watches, and how watches resume.

use tonic::Streaming;
use warren_manager::ManagerTuning;
use warren_proto::v1;
use warren_proto::v1::cluster_client::ClusterClient;
use warren_proto::v1::watch_event::Change;
use warren_store::raft::open::ReplicaTuning;

use crate::fixture::{CallerKind, ManagerFixture, WAIT_DEADLINE, new_id, spec};
use crate::worker::{ScriptedWorker, report};

async fn watch(world: &ManagerFixture, service: &str, resume_index: u64) -> Streaming<v1::WatchEvent> {
    let request = v1::WatchRequest { service: service.into(), resume_index };
    ClusterClient::new(world.channel(CallerKind::Local).await).watch(request).await.unwrap().into_inner()
}

async fn next(stream: &mut Streaming<v1::WatchEvent>) -> (u64, Change) {
    let event = tokio::time::timeout(WAIT_DEADLINE, stream.message()).await.expect("an event in time");
    let event = event.unwrap().expect("the stream continues");
    (event.index, event.change.unwrap())
}

/// Reads until `expected` is true for a change.
async fn until(stream: &mut Streaming<v1::WatchEvent>, expected: impl Fn(&Change) -> bool) -> u64 {
    loop {
        let (index, change) = next(stream).await;
        if expected(&change) {
            return index;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_is_ordered_and_resumable() {
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    let mut stream = watch(&world, "", 0).await;
    let (start, first) = next(&mut stream).await;
    assert!(matches!(first, Change::Resync(_)));
    let made = client.services().create(new_id(), &spec("web", 1)).await.unwrap();
    let is_web = |change: &Change| matches!(change, Change::Service(service) if service.id == made.id);
    let is_task = |change: &Change| matches!(change, Change::Task(task) if task.service_id == made.id);
    let is_gone = |change: &Change| *change == Change::RemovedService(made.id.clone());
    let created = until(&mut stream, is_web).await;
    let planned = until(&mut stream, is_task).await;
    client.services().remove("web", None, false).await.unwrap();
    let removed = until(&mut stream, is_gone).await;
    assert!(start < created && created <= planned && planned < removed);

    let mut again = watch(&world, "", start).await;
    assert_eq!(next(&mut again).await, (start, Change::Resync(v1::Resync {})));
    assert_eq!(until(&mut again, is_gone).await, removed, "the current state: only the removal");
    let mut beyond = watch(&world, "", removed + 1000).await;
    let (index, change) = next(&mut beyond).await;
    assert!(matches!(change, Change::Resync(_)) && index < removed + 1000, "of another incarnation");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compacted_watch_resyncs() {
    let replica = ReplicaTuning { history_changes: 4, ..ReplicaTuning::default() };
    let world = ManagerFixture::tuned(ManagerTuning { replica, ..ManagerTuning::default() }).await;
    let client = world.local().await;
    let (start, _) = next(&mut watch(&world, "", 0).await).await;
    for number in 0..8 {
        client.services().create(new_id(), &spec(&format!("s{number}"), 0)).await.unwrap();
    }
    let mut late = watch(&world, "", start).await;
    assert_eq!(next(&mut late).await, (start, Change::Resync(v1::Resync {})));
    let (index, change) = next(&mut late).await;
    assert!(matches!(change, Change::Resync(_)) && index >= start + 8);
    client.services().create(new_id(), &spec("after", 0)).await.unwrap();
    assert!(matches!(next(&mut late).await.1, Change::Service(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreplicated_progress_is_watched() {
    let world = ManagerFixture::new().await;
    let client = world.local().await;
    client.services().create(new_id(), &spec("web", 1)).await.unwrap();
    let mut worker = ScriptedWorker::dial(&world).await;
    worker.has("a task", |tasks| tasks.len() == 1).await;
    let mut stream = watch(&world, "web", 0).await;
    next(&mut stream).await;
    let id = worker.tasks.keys().next().unwrap().clone();
    worker.report(vec![report(&id, v1::TaskState::Preparing)]).await;
    until(
        &mut stream,
        |change| matches!(change, Change::Task(task) if task.state() == v1::TaskState::Preparing),
    )
    .await;
}
