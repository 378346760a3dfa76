//! Removal of images that share parts, and with other users of the same containerd.

use std::time::Duration;

use tokio::sync::watch;
use warren_image::{ImagePart, LAST_USE_INTERVAL, LayerStage, Reference};
use warren_testkit::image::{ImageLayer, TestImage};
use warren_testkit::registry::TestRegistry;
use warren_testkit::scratch::ScratchDir;
use warren_types::Timestamp;

use crate::real::assert_requests;
use crate::scripted::{LONGER_THAN_TIMEOUT, SampleImage, ScriptedServer};
use crate::world::{ImageFixture, random_bytes};

/// busybox and a note that is unique to this image.
fn image_with_note(name: &str) -> TestImage {
    TestImage::busybox(name).layer(ImageLayer::new().file("/note", name, 0o644))
}

fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp(since.as_millis() as u64)
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_layers_survive_image_removal() {
    let world = ImageFixture::start();
    let names = ["warren.local/a:1", "warren.local/b:1", "warren.local/c:1"];
    for name in names {
        world.import(&image_with_note(name).oci_archive(), None).await.unwrap();
    }
    // A second name for the third image.
    world.import(&image_with_note(names[2]).oci_archive(), Some("warren.local/d:1")).await.unwrap();
    let rows = world.images.list().await.unwrap();
    assert_eq!(rows.iter().map(|row| row.reference.as_str()).collect::<Vec<_>>()[..3], names);
    let (a, b) = (&rows[0].parts, &rows[1].parts);
    let common = a.keys().filter(|part| b.contains_key(part)).count();
    assert_eq!((a.len(), common), (6, 2), "a manifest, a configuration and twice two layers: {a:?}");
    assert_eq!(rows[2].parts, rows[3].parts);
    let unpacked = |row: &(&ImagePart, &u64)| matches!(row.0, ImagePart::Layer(_)) && *row.1 > 500_000;
    assert_eq!(a.iter().filter(unpacked).count(), 1, "busybox: {a:?}");
    assert_eq!(rows[0].size(), a.values().sum::<u64>());

    let remove = async |name: &str| world.images.remove(&name.parse().unwrap()).await.unwrap();
    for name in [names[0], names[2]] {
        assert!(remove(name).await);
        assert!(!remove(name).await, "the second time there is nothing to remove");
    }
    world.images.collect_garbage().await.unwrap();
    assert_eq!(world.run_output(names[1], &["cat", "/note"]), names[1]);
    assert_eq!(world.run_output("warren.local/d:1", &["cat", "/note"]), names[2]);
    let stored = world.stored_objects();
    let is_stored = |part: &ImagePart| match part {
        ImagePart::Blob(digest) | ImagePart::Layer(digest) => {
            stored.iter().any(|line| line.starts_with(digest.as_str()))
        }
    };
    assert!(rows[1].parts.keys().chain(rows[3].parts.keys()).all(is_stored));
    assert_eq!(a.keys().filter(|part| is_stored(part)).count(), 2, "only what b has too: {stored:#?}");
    for last in [names[1], "warren.local/d:1"] {
        assert!(remove(last).await);
    }
    world.assert_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pull_protects_existing_blobs() {
    let world = ImageFixture::start();
    let sample = SampleImage::new(70, &[1000, 400_000]);
    let base = SampleImage::new(70, &[1000]);
    assert_eq!(base.layer(0), sample.layer(0));
    let server = ScriptedServer::start(move |request| base.answer(request)).await;
    let first = world.pull(&format!("{}/base:1", server.host())).await.unwrap();

    let (open, is_open) = watch::channel(false);
    let digest = sample.layer(1).0;
    let server = ScriptedServer::start(move |request| {
        let reply = sample.answer(request);
        match request.path.ends_with(&digest) && !*is_open.borrow() {
            true => reply.cut(300_000).closed_when(&is_open),
            false => reply,
        }
    });
    let server = server.await;
    let reference: Reference = format!("{}/above:1", server.host()).parse().unwrap();
    let pull = world.images.pull(&reference, None);
    let mut progress = pull.progress();
    let begun = progress.wait_for(|progress| progress.count_at_least(LayerStage::Unpacked) >= 1);
    tokio::time::timeout(LONGER_THAN_TIMEOUT, begun).await.unwrap().unwrap();
    assert!(world.images.remove(&first.reference).await.unwrap());
    world.images.collect_garbage().await.unwrap();
    open.send_replace(true);
    pull.outcome().await.unwrap();
    let info = world.images.get(&reference).await.unwrap().unwrap();
    assert!(world.stored_objects().iter().any(|line| line.starts_with(info.chain_id.as_str())));
    assert!(world.images.remove(&reference).await.unwrap());
    world.assert_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn images_of_other_tools_are_usable_and_removable() {
    let (world, registry) = (ImageFixture::start(), TestRegistry::start());
    let name = registry.push("team/web", "1", &image_with_note("pulled by another").oci_archive());
    world.ctr(&["images", "pull", "--plain-http", &name]);
    let reference: Reference = name.parse().unwrap();
    let info = world.images.get(&reference).await.unwrap().expect("it is here");
    let pinned = reference.with_digest(&info.digest);
    assert!(world.images.get(&pinned).await.unwrap().is_some());
    assert_eq!(world.pull(&name).await.unwrap().digest, info.digest, "and the registry says the same");

    // Names that this crate never creates.
    let scratch = ScratchDir::new();
    let path = scratch.path().join("plain.tar");
    image_with_note("busybox").oci_archive().write(&path).unwrap();
    world.ctr(&["images", "import", "--digests", path.to_str().unwrap()]);
    world.ctr(&["images", "tag", &name, "Odd Name"]);
    let names = world.names().await;
    assert!(names.contains(&name) && names.contains(&"Odd Name".to_owned()), "{names:?}");
    let rows = world.images.list().await.unwrap();
    assert!(rows.iter().all(|row| row.size() > 500_000 && row.last_used == row.created), "{rows:?}");

    assert!(world.images.remove(&reference).await.unwrap());
    assert!(world.images.get(&pinned).await.unwrap().is_none(), "another name is not this repository");
    for name in world.names().await {
        assert!(world.images.remove_listed(&name).await.unwrap(), "{name}");
    }
    world.assert_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_share_only_content() {
    let (world, mut registry) = (ImageFixture::start(), TestRegistry::start());
    let name = registry.push("team/web", "1", &image_with_note("shared").oci_archive());
    let neighbour = world.other_namespace();
    let reference: Reference = name.parse().unwrap();
    let theirs = neighbour.pull(&reference, None).outcome().await.unwrap();
    assert_eq!(world.images.get(&reference).await.unwrap(), None);
    assert_requests(&mut registry, "GET", "blobs", 3, "a configuration and two layers");
    assert_eq!(world.pull(&name).await.unwrap(), theirs);
    assert_requests(&mut registry, "GET", "blobs", 4, "only the configuration, which is read first");
    assert!(neighbour.remove(&reference).await.unwrap());
    assert_eq!(world.run_output(&name, &["cat", "/note"]), "shared");
    assert!(world.images.remove(&reference).await.unwrap());
    world.assert_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn last_use_is_saved_hourly_and_survives_restart() {
    let mut world = ImageFixture::start();
    let imported = world.import(&image_with_note("warren.local/used:1").oci_archive(), None).await.unwrap();
    let tag = imported.reference;
    let last_used = async |images: &warren_image::ImageStore| images.list().await.unwrap()[0].last_used;
    let made = world.images.list().await.unwrap()[0].created;
    assert!(now().saturating_since(made) < Duration::from_secs(60) && last_used(&world.images).await == made);

    let begun = now() + Duration::from_secs(1);
    assert!(world.images.mark_used(&tag, begun).await.unwrap());
    let later = begun + Duration::from_secs(1800);
    for reference in [&tag, &tag.with_digest(&imported.digest), &tag] {
        assert!(!world.images.mark_used(reference, later).await.unwrap(), "it was written just before");
    }
    // Not even a call is made: a start does not wait for it.
    world.process().pause();
    assert!(!world.images.mark_used(&tag, later).await.unwrap());
    world.process().resume();
    assert_eq!(last_used(&world.images).await, later, "this agent knows better than what is written");
    let restarted = world.reopened();
    assert_eq!(last_used(&restarted).await, begun);
    assert!(!restarted.mark_used(&tag, later).await.unwrap());
    assert!(restarted.mark_used(&tag, begun + LAST_USE_INTERVAL).await.unwrap());
    assert_eq!(last_used(&world.reopened()).await, begun + LAST_USE_INTERVAL);
    // A time of a wrong clock is corrected.
    assert!(world.reopened().mark_used(&tag, begun).await.unwrap());
    assert_eq!(last_used(&world.reopened()).await, begun);

    // It belongs to the digest: when the tag moves, the previous record keeps it.
    let other = image_with_note("warren.local/used:1").layer(ImageLayer::new().file(
        "/more",
        random_bytes(1, 10),
        0o644,
    ));
    world.import(&other.oci_archive(), None).await.unwrap();
    let rows = world.reopened().list().await.unwrap();
    assert_eq!((rows.len(), rows[1].last_used), (2, begun), "{rows:?}");

    let absent: Reference = "warren.local/absent:1".parse().unwrap();
    assert!(!world.images.mark_used(&absent, begun).await.unwrap());
    for row in rows {
        world.images.remove_listed(&row.reference).await.unwrap();
    }
    assert!(!world.reopened().mark_used(&tag, later).await.unwrap());
}
