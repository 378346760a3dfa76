//! What watchers see, and how they come back.

use tonic::Streaming;
use warren_manager::Tuning;
use warren_proto::v1;
use warren_proto::v1::cluster_client::ClusterClient;
use warren_proto::v1::watch_event::Change;

use crate::worker::{Worker, report};
use crate::world::{Caller, PATIENCE, World, new_id, spec};

async fn watch(world: &World, service: &str, resume_index: u64) -> Streaming<v1::WatchEvent> {
    let request = v1::WatchRequest { service: service.into(), resume_index };
    ClusterClient::new(world.channel(Caller::Local).await).watch(request).await.unwrap().into_inner()
}

async fn next(stream: &mut Streaming<v1::WatchEvent>) -> (u64, Change) {
    let event = tokio::time::timeout(PATIENCE, stream.message()).await.expect("an event in time");
    let event = event.unwrap().expect("the stream goes on");
    (event.index, event.change.unwrap())
}

/// Reads until `wanted` says so of a change.
async fn until(stream: &mut Streaming<v1::WatchEvent>, wanted: impl Fn(&Change) -> bool) -> u64 {
    loop {
        let (index, change) = next(stream).await;
        if wanted(&change) {
            return index;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_come_in_order_and_a_watch_goes_on_where_it_was() {
    let world = World::new().await;
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
    client.services().remove("web", None).await.unwrap();
    let removed = until(&mut stream, is_gone).await;
    assert!(start < created && created <= planned && planned < removed);

    let mut again = watch(&world, "", start).await;
    assert_eq!(next(&mut again).await, (start, Change::Resync(v1::Resync {})));
    assert_eq!(until(&mut again, is_gone).await, removed, "as objects are now: only that it is gone");
    let mut beyond = watch(&world, "", removed + 1000).await;
    let (index, change) = next(&mut beyond).await;
    assert!(matches!(change, Change::Resync(_)) && index < removed + 1000, "of another life of the cluster");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_missed_too_much_lists_again() {
    let world = World::tuned(Tuning { history: 4, ..Tuning::default() }).await;
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
async fn progress_is_seen_although_it_is_not_written() {
    let world = World::new().await;
    let client = world.local().await;
    client.services().create(new_id(), &spec("web", 1)).await.unwrap();
    let mut worker = Worker::dial(&world).await;
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
