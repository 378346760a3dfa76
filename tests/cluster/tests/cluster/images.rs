//! An image on its way through a manager, and every place where that can break.

use warren_client::Error;
use warren_proto::v1;
use warren_proto::v1::import_progress::Event;
use warren_proto::v1::stream_frame::Frame;
use warren_proto::v1::worker_frame::Frame as Say;

use crate::worker::Worker;
use crate::world::World;

/// More than all the buffers on the way hold.
fn archive() -> Vec<u8> {
    (0..8u32 << 20).map(|n| (n / 7) as u8).collect()
}

/// All that is told of an import.
async fn told(world: &World, archive: Vec<u8>) -> Result<Vec<Event>, Error> {
    let client = world.admin().await;
    let mut import = client.images().import(Vec::new(), std::io::Cursor::new(archive)).await?;
    let mut events = Vec::new();
    while let Some(progress) = import.next().await? {
        assert_eq!(progress.node, "n1");
        events.extend(progress.event);
    }
    Ok(events)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_archive_arrives_whole_and_the_answer_comes_back() {
    let world = World::new().await;
    let mut worker = Worker::dial(&world).await;
    let serve = async {
        let mut stream = worker.attach().await;
        let received = stream.archive().await;
        let image = v1::ImportedImageFrame { reference: "web:1".into(), ..Default::default() };
        stream.say(Frame::Imported(image)).await;
        stream.say(Frame::Done(v1::StreamDone {})).await;
        stream.ended().await;
        received
    };
    let (told, received) = tokio::join!(told(&world, archive()), serve);
    assert!(received == Some(archive()), "the archive is not the one that was sent");
    let [Event::Imported(image), Event::Done(_)] = &told.unwrap()[..] else { panic!("other words") };
    assert_eq!(image.reference, "web:1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_refuses_or_breaks_off_is_told_of() {
    let world = World::new().await;
    let mut worker = Worker::dial(&world).await;
    let refuse = async {
        let stream_id = worker.open().await;
        worker.say(Say::Opened(v1::Opened { stream_id, refused: "no room".into() })).await;
    };
    let (refused, ()) = tokio::join!(told(&world, archive()), refuse);
    assert_eq!(refused.unwrap(), [Event::Failed("no room".into())]);
    let fail = async {
        let mut stream = worker.attach().await;
        stream.hear().await.unwrap();
        stream.say(Frame::Failed("the disk is full".into())).await;
        stream.ended().await;
    };
    let (failed, ()) = tokio::join!(told(&world, archive()), fail);
    assert_eq!(failed.unwrap(), [Event::Failed("the disk is full".into())]);
    let leave = async { drop(worker.attach().await) };
    let (left, ()) = tokio::join!(told(&world, archive()), leave);
    assert!(matches!(&left.unwrap()[..], [Event::Failed(_)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_breaks_off_leaves_no_half_image() {
    let world = World::new().await;
    let mut worker = Worker::dial(&world).await;
    let client = world.admin().await;
    let (near, far) = tokio::io::duplex(1 << 20);
    let import = client.images().import(Vec::new(), far).await.unwrap();
    let mut stream = worker.attach().await;
    drop((import, near));
    // Whatever arrived before the end, the end did not.
    let received = stream.archive().await;
    assert!(received.is_none() || received == Some(Vec::new()), "half an archive passed for a whole one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_ready_node_there_is_nowhere_to_import() {
    let world = World::new().await;
    let refused = told(&world, archive()).await.unwrap_err();
    assert!(refused.to_string().contains("no node is READY"), "{refused}");
    let client = world.admin().await;
    let unknown = client.images().import(vec!["n2".into()], std::io::Cursor::new(archive())).await;
    assert!(unknown.unwrap_err().is_not_found());
}
