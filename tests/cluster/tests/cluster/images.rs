//! Image transfers through a manager, and every point where they can fail.

use std::collections::BTreeMap;

use warren_client::{Error, PullOptions};
use warren_proto::v1;
use warren_proto::v1::images_client::ImagesClient;
use warren_proto::v1::import_progress::Event;
use warren_proto::v1::open_stream::Purpose;
use warren_proto::v1::pull_progress::Event as Pulled;
use warren_proto::v1::stream_frame::Frame;
use warren_proto::v1::worker_frame::Frame as Say;
use warren_testkit::wait::eventually_async;
use warren_types::spec::AWAITS_IMAGE_PIN;
use warren_types::{ImageResolver, ServiceMode};

use crate::events::{listed, of};
use crate::fixture::{ManagerFixture, WAIT_DEADLINE, new_id, spec};
use crate::joining::joined;
use crate::signatures::demand_signatures;
use crate::worker::{DIGEST, ScriptedStream, ScriptedWorker, report};

/// More than all the buffers on the way hold.
fn archive() -> Vec<u8> {
    (0..8u32 << 20).map(|n| (n / 7) as u8).collect()
}

/// An OCI layout with one image, of that name and [`DIGEST`].
fn oci_archive(name: &str) -> Vec<u8> {
    let manifest = serde_json::json!({
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": DIGEST,
        "size": 7,
        "annotations": { "io.containerd.image.name": name },
    });
    let index = serde_json::json!({ "manifests": [manifest] }).to_string();
    let mut header = tar::Header::new_ustar();
    header.set_size(index.len() as u64);
    header.set_mode(0o644);
    let mut archive = tar::Builder::new(Vec::new());
    archive.append_data(&mut header, "index.json", index.as_bytes()).unwrap();
    archive.into_inner().unwrap()
}

/// Serves an import, after which the worker says that it imported `images`.
async fn serve_import(worker: &mut ScriptedWorker, images: &[&str]) {
    let mut stream = worker.attach().await;
    stream.archive().await;
    for reference in images {
        let (reference, digest) = ((*reference).to_owned(), DIGEST.to_owned());
        stream.send(Frame::Imported(v1::ImportedImageFrame { reference, digest, size_bytes: 7 })).await;
    }
    stream.send(Frame::Done(v1::StreamDone {})).await;
    stream.wait_closed().await;
}

/// All events of an import.
async fn import_events(world: &ManagerFixture, archive: Vec<u8>) -> Result<Vec<Event>, Error> {
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
    let world = ManagerFixture::new().await;
    let mut worker = ScriptedWorker::dial(&world).await;
    let serve = async {
        let mut stream = worker.attach().await;
        let received = stream.archive().await;
        let image = v1::ImportedImageFrame { reference: "web:1".into(), ..Default::default() };
        stream.send(Frame::Imported(image)).await;
        stream.send(Frame::Done(v1::StreamDone {})).await;
        stream.wait_closed().await;
        received
    };
    let (reported, received) = tokio::join!(import_events(&world, archive()), serve);
    assert!(received == Some(archive()), "the archive is not the one that was sent");
    let [Event::Imported(image), Event::Done(_)] = &reported.unwrap()[..] else {
        panic!("unexpected events")
    };
    assert_eq!(image.reference, "web:1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_import_failure_is_reported() {
    let world = ManagerFixture::new().await;
    let mut worker = ScriptedWorker::dial(&world).await;
    let refuse = async {
        let stream_id = worker.open().await;
        worker.send(Say::Opened(v1::StreamOpened { stream_id, error: "no room".into() })).await;
    };
    let (refused, ()) = tokio::join!(import_events(&world, archive()), refuse);
    assert_eq!(refused.unwrap(), [Event::Error("no room".into())]);
    let fail = async {
        let mut stream = worker.attach().await;
        stream.receive().await.unwrap();
        stream.send(Frame::Error("the disk is full".into())).await;
        stream.wait_closed().await;
    };
    let (failed, ()) = tokio::join!(import_events(&world, archive()), fail);
    assert_eq!(failed.unwrap(), [Event::Error("the disk is full".into())]);
    let leave = async { drop(worker.attach().await) };
    let (left, ()) = tokio::join!(import_events(&world, archive()), leave);
    assert!(matches!(&left.unwrap()[..], [Event::Error(_)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_breaks_off_leaves_no_half_image() {
    let world = ManagerFixture::new().await;
    let mut worker = ScriptedWorker::dial(&world).await;
    let client = world.admin().await;
    let (near, far) = tokio::io::duplex(1 << 20);
    let import = client.images().import(Vec::new(), far).await.unwrap();
    let mut stream = worker.attach().await;
    drop((import, near));
    // The data arrived, but the end of the stream did not.
    let received = stream.archive().await;
    assert!(received.is_none() || received == Some(Vec::new()), "half an archive passed for a whole one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn import_without_ready_node_is_refused() {
    let world = ManagerFixture::new().await;
    let refused = import_events(&world, archive()).await.unwrap_err();
    assert!(refused.to_string().contains("no node is READY"), "{refused}");
    let client = world.admin().await;
    let unknown = client.images().import(vec!["n2".into()], std::io::Cursor::new(archive())).await;
    assert!(unknown.unwrap_err().is_not_found());
}

/// The next options of the manager to the worker, and its stream.
async fn next_request(worker: &mut ScriptedWorker) -> (Purpose, ScriptedStream) {
    let open = worker.next_stream_request().await;
    let purpose = open.purpose.expect("it is asked for something");
    (purpose, worker.attach_to(open.stream_id).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pull_progress_is_reported_per_node() {
    let world = ManagerFixture::new().await;
    let node = joined(&world, "n2").await;
    let (mut one, mut two) =
        (ScriptedWorker::dial(&world).await, ScriptedWorker::dial_as(&world, &node).await);
    let client = world.admin().await;
    let options = PullOptions { reference: "web:2".into(), always: true, ..PullOptions::default() };
    let mut pulls = client.images().pull(options).await.unwrap();
    let expected = Purpose::PullImage(v1::PullImage { reference: "web:2".into(), always: true });
    let (purpose, stream) = next_request(&mut one).await;
    assert_eq!(purpose, expected);
    stream.send(Frame::Progress("1 of 2 layers".into())).await;
    let image = v1::ImportedImageFrame { reference: "web:2".into(), digest: DIGEST.into(), size_bytes: 7 };
    stream.send(Frame::Imported(image)).await;
    stream.send(Frame::Done(v1::StreamDone {})).await;
    stream.wait_closed().await;
    let (purpose, stream) = next_request(&mut two).await;
    assert_eq!(purpose, expected);
    stream.send(Frame::Error("the registry does not know it".into())).await;
    let mut reported = Vec::new();
    while let Some(progress) = pulls.next().await.unwrap() {
        reported.push((progress.node, progress.event.unwrap()));
    }
    reported.sort_by(|(one, _), (other, _)| one.cmp(other));
    let image = v1::ImportedImage { reference: "web:2".into(), digest: DIGEST.into(), size_bytes: 7 };
    let expected = [
        ("n1".to_owned(), Pulled::Progress("1 of 2 layers".into())),
        ("n1".to_owned(), Pulled::Pulled(image)),
        ("n2".to_owned(), Pulled::Error("the registry does not know it".into())),
    ];
    assert_eq!(reported, expected);

    let wrong = PullOptions { reference: "Not An Image".into(), ..PullOptions::default() };
    let refused = client.images().pull(wrong).await.unwrap_err();
    assert!(matches!(&refused, Error::Refused { problem } if problem.violations.0[0].path == "reference"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoned_pull_is_cancelled() {
    let world = ManagerFixture::new().await;
    let mut worker = ScriptedWorker::dial(&world).await;
    let client = world.admin().await;
    let options = PullOptions { reference: "web:2".into(), nodes: vec!["n1".into()], always: false };
    let pulls = client.images().pull(options).await.unwrap();
    let (_, stream) = next_request(&mut worker).await;
    drop(pulls);
    tokio::time::timeout(WAIT_DEADLINE, stream.wait_closed()).await.expect("the worker sees the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn image_list_tolerates_an_unreachable_node() {
    let world = ManagerFixture::new().await;
    let node = joined(&world, "n2").await;
    let (mut one, two) = (ScriptedWorker::dial(&world).await, ScriptedWorker::dial_as(&world, &node).await);
    let client = world.admin().await;
    let image = |reference: &str| v1::ImageInfo { reference: reference.into(), ..Default::default() };
    let list = |references: &[&str]| {
        let images = references.iter().map(|reference| image(reference)).collect();
        Frame::Images(v1::ImageList { images })
    };
    let serve = async {
        let (purpose, stream) = next_request(&mut one).await;
        stream.send(list(&["a:1", "b:1"])).await;
        stream.send(list(&["c:1"])).await;
        stream.send(Frame::Done(v1::StreamDone {})).await;
        stream.wait_closed().await;
        purpose
    };
    let images = client.images();
    let (listed, purpose) = tokio::join!(images.list(Vec::new()), serve);
    assert_eq!(purpose, Purpose::ListImages(v1::ListImages {}));
    let [first, second] = &listed.unwrap()[..] else { panic!("two nodes") };
    assert_eq!((first.node.as_str(), first.error.as_str()), ("n1", ""));
    assert_eq!(first.images, [image("a:1"), image("b:1"), image("c:1")]);
    assert_eq!(second.node, "n2");
    assert!(second.error.contains("did not open the stream"), "{}", second.error);
    drop(two);

    let serve = async {
        let (purpose, stream) = next_request(&mut one).await;
        stream.send(list(&["b:1"])).await;
        stream.send(Frame::Done(v1::StreamDone {})).await;
        stream.wait_closed().await;
        purpose
    };
    let unused_for = std::time::Duration::from_secs(60);
    let (pruned, purpose) = tokio::join!(images.prune(vec!["n1".into()], unused_for), serve);
    assert_eq!(
        purpose,
        Purpose::PruneImages(v1::PruneImages { unused_for_ms: 60_000, reference: String::new() })
    );
    assert_eq!(pruned.unwrap()[0].images, [image("b:1")]);
    assert!(images.list(vec!["n7".into()]).await.unwrap_err().is_not_found());
}

const WEB: &str = "docker.io/library/web:1";

/// The worker reports that it has the image `web:1`, and the manager has read that.
async fn report_web(worker: &mut ScriptedWorker, digest: &str) {
    let held = v1::HeldImage { reference: WEB.into(), digest: digest.into() };
    worker.send(Say::Inventory(v1::NodeInventory { images: vec![held], ..Default::default() })).await;
    worker.sync().await;
}

fn wanted(digests: &[&str]) -> Frame {
    Frame::Wanted(v1::BlobRequest { digests: digests.iter().map(|digest| (*digest).to_owned()).collect() })
}

fn data(text: &'static str) -> Frame {
    Frame::Data(text.into())
}

fn end() -> Frame {
    Frame::End(v1::EndOfData {})
}

async fn expect(stream: &mut ScriptedStream, frames: &[Frame]) {
    for frame in frames {
        assert_eq!(stream.receive().await.unwrap().as_ref(), Some(frame));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn image_is_copied_and_each_blob_leaves_its_source_once() {
    let world = ManagerFixture::new().await;
    let (second, third) = (joined(&world, "n2").await, joined(&world, "n3").await);
    let mut one = ScriptedWorker::dial(&world).await;
    let mut two = ScriptedWorker::dial_as(&world, &second).await;
    let mut three = ScriptedWorker::dial_as(&world, &third).await;
    report_web(&mut one, DIGEST).await;
    let client = world.admin().await;
    let images = client.images();
    let nodes = ["n1", "n2", "n3"].map(str::to_owned).to_vec();
    let serve = async {
        let (purpose, mut to_two) = next_request(&mut two).await;
        let expected = v1::ReceiveImage { reference: WEB.into(), digest: DIGEST.into() };
        assert_eq!(purpose, Purpose::ReceiveImage(expected.clone()));
        let (purpose, mut to_three) = next_request(&mut three).await;
        assert_eq!(purpose, Purpose::ReceiveImage(expected));
        let (purpose, mut source) = next_request(&mut one).await;
        let expected = v1::ExportImage { reference: WEB.into(), digest: DIGEST.into() };
        assert_eq!(purpose, Purpose::ExportImage(expected));

        to_two.send(wanted(&["document"])).await;
        to_three.send(wanted(&["document"])).await;
        expect(&mut source, &[wanted(&["document"])]).await;
        source.send(data("{}")).await;
        source.send(end()).await;
        for target in [&mut to_two, &mut to_three] {
            expect(target, &[data("{}"), end()]).await;
        }
        // One of them has the first layer.
        to_two.send(wanted(&["upper"])).await;
        to_three.send(wanted(&["lower", "upper"])).await;
        expect(&mut source, &[wanted(&["lower", "upper"])]).await;
        for frame in [data("l1"), data("l2"), end(), data("u"), end()] {
            source.send(frame).await;
        }
        expect(&mut to_two, &[data("u"), end()]).await;
        expect(&mut to_three, &[data("l1"), data("l2"), end(), data("u"), end()]).await;
        to_two.send(Frame::Error("the disk is full".into())).await;
        let image = v1::ImportedImageFrame { reference: WEB.into(), digest: DIGEST.into(), size_bytes: 7 };
        to_three.send(Frame::Imported(image)).await;
        to_three.send(Frame::Done(v1::StreamDone {})).await;
        to_three.wait_closed().await;
    };
    let follow = async {
        let mut copy = images.copy("web:1".into(), nodes, String::new()).await.unwrap();
        let mut events = Vec::new();
        while let Some(progress) = copy.next().await.unwrap() {
            match progress.event.unwrap() {
                Event::ReceivedBytes(_) => {}
                event => events.push((progress.node, event)),
            }
        }
        events
    };
    let (events, ()) = tokio::join!(follow, serve);
    let image = v1::ImportedImage { reference: WEB.into(), digest: DIGEST.into(), size_bytes: 7 };
    let expected = [
        ("n2".to_owned(), Event::Error("the disk is full".into())),
        ("n3".to_owned(), Event::Imported(image)),
        ("n3".to_owned(), Event::Done(v1::NodeDone {})),
    ];
    assert_eq!(events, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_with_different_images_of_a_name_are_not_chosen_from() {
    let world = ManagerFixture::new().await;
    let second = joined(&world, "n2").await;
    let mut one = ScriptedWorker::dial(&world).await;
    let mut two = ScriptedWorker::dial_as(&world, &second).await;
    let other = DIGEST.replace("00", "ff");
    report_web(&mut one, DIGEST).await;
    report_web(&mut two, &other).await;
    let client = world.admin().await;
    let images = client.images();
    let refused = images.copy("web:1".into(), vec!["n1".into()], String::new()).await.unwrap_err();
    assert!(refused.to_string().contains("n1 has sha256:0011"), "{refused}");
    let refused = images.copy("web:1".into(), vec!["n3".into()], String::new()).await.unwrap_err();
    assert!(refused.is_not_found(), "{refused}");
    let refused = images.copy("web:1".into(), vec!["rack=1".into()], String::new()).await.unwrap_err();
    assert!(refused.to_string().contains("no node with the label rack=1 is READY"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_gets_holders_of_images_of_its_own_tasks() {
    let world = ManagerFixture::new().await;
    let second = joined(&world, "n2").await;
    let mut one = ScriptedWorker::dial(&world).await;
    let mut two = ScriptedWorker::dial_as(&world, &second).await;
    report_web(&mut one, DIGEST).await;
    let client = world.admin().await;
    let mut service = spec("web", 1);
    service.mode = warren_types::ServiceMode::Global;
    service.task.image = "web:1".parse().unwrap();
    client.services().create(new_id(), &service).await.unwrap();
    one.has("a task", |tasks| tasks.len() == 1).await;
    two.has("a task", |tasks| tasks.len() == 1).await;
    let mut images = ImagesClient::new(world.channel_as(Some(&second)).await);
    let (own, foreign) = (two.tasks.keys().next().unwrap(), one.tasks.keys().next().unwrap());
    let request = |task_id: &String| v1::FindHoldersRequest { task_id: task_id.clone() };
    let found = images.find_holders(request(own)).await.unwrap().into_inner();
    assert_eq!((found.nodes, found.this_node.as_str()), (vec!["n1".to_owned()], "n2"));
    let refused = images.find_holders(request(foreign)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_does_not_choose_the_image_of_a_tag() {
    let world = ManagerFixture::new().await;
    let second = joined(&world, "n2").await;
    let mut one = ScriptedWorker::dial(&world).await;
    let mut two = ScriptedWorker::dial_as(&world, &second).await;
    let client = world.admin().await;
    let mut service = spec("web", 1);
    service.mode = ServiceMode::Global;
    service.task.resolve_image = ImageResolver::Manager;
    client.services().create(new_id(), &service).await.unwrap();
    one.has("a task", |tasks| tasks.len() == 1).await;
    let (task, old) = (one.tasks.keys().next().unwrap().clone(), DIGEST.replace("00", "ff"));
    let says = |state| v1::TaskReport { image: old.clone(), ..report(&task, state) };
    one.report(vec![says(v1::TaskState::Preparing)]).await;
    let is_pinned =
        |tasks: &BTreeMap<String, v1::TaskAssignment>| tasks.values().any(|task| task.digest == DIGEST);
    two.has("the digest of the registry", is_pinned).await;
    one.has("the same", is_pinned).await;
    two.run_all().await;

    one.report(vec![says(v1::TaskState::Running)]).await;
    let rejected = eventually_async(WAIT_DEADLINE, "the rejection", || async {
        let (_, events) = listed(&client, of("service", "web")).await.map_err(|error| error.to_string())?;
        let found = events.iter().find(|(_, event)| event.reason.contains(&old));
        found.map(|(_, event)| event.clone()).ok_or_else(|| format!("{events:?}"))
    })
    .await;
    assert_eq!((rejected.node_name.as_str(), rejected.service_name.as_str()), ("n1", "web"));
    assert!(rejected.reason.contains("node n1") && rejected.reason.contains(DIGEST), "{}", rejected.reason);
    assert_eq!(client.tasks().get(&task).await.unwrap().state(), v1::TaskState::Rejected);
    let pinned = client.services().get("web").await.unwrap();
    assert_eq!(pinned.digest, DIGEST);
    two.sync().await;
    assert!(is_pinned(&two.tasks), "the other node runs what the registry has");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unresolved_image_has_a_reason_until_it_is_imported() {
    let world = ManagerFixture::new().await;
    let mut worker = ScriptedWorker::dial(&world).await;
    let client = world.admin().await;
    let mut service = spec("web", 1);
    service.task.image = "missing:1".parse().unwrap();
    service.task.resolve_image = ImageResolver::Manager;
    client.services().create(new_id(), &service).await.unwrap();
    worker.has("a task", |tasks| tasks.len() == 1).await;
    let task = worker.tasks.keys().next().unwrap().clone();
    let reason = AWAITS_IMAGE_PIN.to_owned();
    worker.report(vec![v1::TaskReport { reason, ..report(&task, v1::TaskState::Preparing) }]).await;
    eventually_async(WAIT_DEADLINE, "the reason", || async {
        let reason = client.tasks().get(&task).await.map_err(|error| error.to_string())?.reason;
        match reason.contains("has no image") && reason.contains("--resolve-image worker") {
            true => Ok(()),
            false => Err(reason),
        }
    })
    .await;
    let name = "docker.io/library/missing:1";
    hold_image(&mut worker, name).await;
    let names = [name];
    let serve = serve_import(&mut worker, &names);
    let (imported, ()) = tokio::join!(import_events(&world, oci_archive(name)), serve);
    imported.unwrap();
    worker.has("the digest", |tasks| tasks.values().any(|task| task.digest == DIGEST)).await;
}

/// The worker reports that it has the image with [`DIGEST`].
async fn hold_image(worker: &mut ScriptedWorker, name: &str) {
    let held = v1::HeldImage { reference: name.into(), digest: DIGEST.into() };
    worker.send(Say::Inventory(v1::NodeInventory { images: vec![held], ..Default::default() })).await;
    worker.sync().await;
}

/// Waits until the rollout of the service waits for something with this text.
async fn await_waiting_reason(client: &warren_client::Client, service: &str, text: &str) {
    eventually_async(WAIT_DEADLINE, "the reason of the rollout", || async {
        let service = client.services().get(service).await.map_err(|error| error.to_string())?;
        let reason = service.rollout.unwrap_or_default().waiting_reason;
        if reason.contains(text) { Ok(()) } else { Err(reason) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_reports_another_digest_of_an_import_is_named() {
    let world = ManagerFixture::new().await;
    let mut worker = ScriptedWorker::dial(&world).await;
    let name = "docker.io/library/missing:1";
    let serve = async {
        let mut stream = worker.attach().await;
        stream.archive().await;
        let (reference, digest) = (name.to_owned(), DIGEST.replace("00", "ff"));
        stream.send(Frame::Imported(v1::ImportedImageFrame { reference, digest, size_bytes: 7 })).await;
        stream.send(Frame::Done(v1::StreamDone {})).await;
        stream.wait_closed().await;
    };
    let (refused, ()) = tokio::join!(import_events(&world, oci_archive(name)), serve);
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("node n1") && refused.contains("does not contain"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn import_that_no_node_has_any_more_is_not_used() {
    let world = ManagerFixture::new().await;
    let mut worker = ScriptedWorker::dial(&world).await;
    let client = world.admin().await;
    let name = "docker.io/library/missing:1";
    let names = [name];
    let serve = serve_import(&mut worker, &names);
    let (imported, ()) = tokio::join!(import_events(&world, oci_archive(name)), serve);
    imported.unwrap();
    let mut service = spec("web", 1);
    service.task.image = "missing:1".parse().unwrap();
    service.task.resolve_image = ImageResolver::Manager;
    client.services().create(new_id(), &service).await.unwrap();
    // It is asked, since it reported nothing.
    let (purpose, stream) = next_request(&mut worker).await;
    assert_eq!(purpose, Purpose::ListImages(v1::ListImages {}));
    stream.send(Frame::Done(v1::StreamDone {})).await;
    stream.wait_closed().await;
    await_waiting_reason(&client, "web", "no node that is READY has its import").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn image_on_nodes_of_managers_is_used_while_the_registry_is_offline() {
    let world = ManagerFixture::new().await;
    let mut worker = ScriptedWorker::dial(&world).await;
    let client = world.admin().await;
    hold_image(&mut worker, "docker.io/library/offline:1").await;
    let mut service = spec("web", 1);
    service.task.image = "offline:1".parse().unwrap();
    service.task.resolve_image = ImageResolver::Manager;
    client.services().create(new_id(), &service).await.unwrap();
    worker.has("the digest", |tasks| tasks.values().any(|task| task.digest == DIGEST)).await;
    eventually_async(WAIT_DEADLINE, "the event", || async {
        let (_, events) = listed(&client, of("service", "web")).await.map_err(|error| error.to_string())?;
        let is_told = |reason: &str| reason.contains("nodes of managers have") && reason.contains("no route");
        let found = events.iter().any(|(_, event)| is_told(&event.reason));
        if found { Ok(()) } else { Err(format!("{events:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn digest_without_a_signature_is_not_pinned() {
    let world = ManagerFixture::new().await;
    let mut worker = ScriptedWorker::dial(&world).await;
    let client = world.admin().await;
    let name = "registry.example/missing:1";
    let mut service = spec("web", 1);
    service.task.image = name.parse().unwrap();
    service.task.resolve_image = ImageResolver::Manager;
    client.services().create(new_id(), &service).await.unwrap();
    await_waiting_reason(&client, "web", "has no image").await;
    demand_signatures(&client).await;
    hold_image(&mut worker, name).await;
    let names = [name];
    let serve = serve_import(&mut worker, &names);
    let (imported, ()) = tokio::join!(import_events(&world, oci_archive(name)), serve);
    imported.unwrap();
    let expected =
        format!("managers do not admit image {name}: its registry has no cosign signature of {DIGEST}");
    await_waiting_reason(&client, "web", &expected).await;
    assert_eq!(client.services().get("web").await.unwrap().digest, "");
}
