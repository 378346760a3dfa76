//! An image on its way through a manager, and every place where that can break.

use warren_client::{Error, PullWish};
use warren_proto::v1;
use warren_proto::v1::import_progress::Event;
use warren_proto::v1::open::Purpose;
use warren_proto::v1::pull_progress::Event as Pulled;
use warren_proto::v1::stream_frame::Frame;
use warren_proto::v1::worker_frame::Frame as Say;

use crate::joining::joined;
use crate::worker::{DIGEST, Stream, Worker};
use crate::world::{PATIENCE, World};

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

/// What the manager asks the worker for next, and the stream for it.
async fn asked(worker: &mut Worker) -> (Purpose, Stream) {
    let open = worker.asked().await;
    let purpose = open.purpose.expect("it is asked for something");
    (purpose, worker.attach_to(open.stream_id).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_is_passed_on_and_told_of_node_by_node() {
    let world = World::new().await;
    let node = joined(&world, "n2").await;
    let (mut one, mut two) = (Worker::dial(&world).await, Worker::dial_as(&world, &node).await);
    let client = world.admin().await;
    let wish = PullWish { reference: "web:2".into(), always: true, ..PullWish::default() };
    let mut pulls = client.images().pull(wish).await.unwrap();
    let wanted = Purpose::PullImage(v1::PullImage { reference: "web:2".into(), always: true });
    let (purpose, stream) = asked(&mut one).await;
    assert_eq!(purpose, wanted);
    stream.say(Frame::Progress("1 of 2 layers".into())).await;
    let image = v1::ImportedImageFrame { reference: "web:2".into(), digest: DIGEST.into(), size_bytes: 7 };
    stream.say(Frame::Imported(image)).await;
    stream.say(Frame::Done(v1::StreamDone {})).await;
    stream.ended().await;
    let (purpose, stream) = asked(&mut two).await;
    assert_eq!(purpose, wanted);
    stream.say(Frame::Failed("the registry does not know it".into())).await;
    let mut told = Vec::new();
    while let Some(progress) = pulls.next().await.unwrap() {
        told.push((progress.node, progress.event.unwrap()));
    }
    told.sort_by(|(one, _), (other, _)| one.cmp(other));
    let image = v1::ImportedImage { reference: "web:2".into(), digest: DIGEST.into(), size_bytes: 7 };
    let wanted = [
        ("n1".to_owned(), Pulled::Progress("1 of 2 layers".into())),
        ("n1".to_owned(), Pulled::Pulled(image)),
        ("n2".to_owned(), Pulled::Failed("the registry does not know it".into())),
    ];
    assert_eq!(told, wanted);

    let wrong = PullWish { reference: "Not An Image".into(), ..PullWish::default() };
    let refused = client.images().pull(wrong).await.unwrap_err();
    assert!(matches!(&refused, Error::Refused { problem } if problem.violations.0[0].path == "reference"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_that_nobody_waits_for_ends() {
    let world = World::new().await;
    let mut worker = Worker::dial(&world).await;
    let client = world.admin().await;
    let wish = PullWish { reference: "web:2".into(), nodes: vec!["n1".into()], always: false };
    let pulls = client.images().pull(wish).await.unwrap();
    let (_, stream) = asked(&mut worker).await;
    drop(pulls);
    tokio::time::timeout(PATIENCE, stream.ended()).await.expect("the worker is told");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_of_images_come_from_all_nodes_also_when_one_does_not_answer() {
    let world = World::new().await;
    let node = joined(&world, "n2").await;
    let (mut one, two) = (Worker::dial(&world).await, Worker::dial_as(&world, &node).await);
    let client = world.admin().await;
    let image = |reference: &str| v1::ImageInfo { reference: reference.into(), ..Default::default() };
    let list = |references: &[&str]| {
        let images = references.iter().map(|reference| image(reference)).collect();
        Frame::Images(v1::ImageList { images })
    };
    let serve = async {
        let (purpose, stream) = asked(&mut one).await;
        stream.say(list(&["a:1", "b:1"])).await;
        stream.say(list(&["c:1"])).await;
        stream.say(Frame::Done(v1::StreamDone {})).await;
        stream.ended().await;
        purpose
    };
    let images = client.images();
    let (listed, purpose) = tokio::join!(images.list(Vec::new()), serve);
    assert_eq!(purpose, Purpose::ListImages(v1::ListImages {}));
    let [first, second] = &listed.unwrap()[..] else { panic!("two nodes") };
    assert_eq!((first.node.as_str(), first.failed.as_str()), ("n1", ""));
    assert_eq!(first.images, [image("a:1"), image("b:1"), image("c:1")]);
    assert_eq!(second.node, "n2");
    assert!(second.failed.contains("did not open the stream"), "{}", second.failed);
    drop(two);

    let serve = async {
        let (purpose, stream) = asked(&mut one).await;
        stream.say(list(&["b:1"])).await;
        stream.say(Frame::Done(v1::StreamDone {})).await;
        stream.ended().await;
        purpose
    };
    let unused_for = std::time::Duration::from_secs(60);
    let (pruned, purpose) = tokio::join!(images.prune(vec!["n1".into()], unused_for), serve);
    assert_eq!(purpose, Purpose::PruneImages(v1::PruneImages { unused_for_ms: 60_000 }));
    assert_eq!(pruned.unwrap()[0].images, [image("b:1")]);
    assert!(images.list(vec!["n7".into()]).await.unwrap_err().is_not_found());
}
