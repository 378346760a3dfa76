//! What stays and what goes when images have things in common, and when others use the same containerd.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use warren_image::{Part, Reference, Stage, TOUCH_EVERY};
use warren_testkit::image::{Image, Layer};
use warren_testkit::registry::Registry;
use warren_testkit::scratch::Scratch;
use warren_types::Timestamp;

use crate::scripted::{LONG, Sample, Scripted, Then};
use crate::world::{World, noise};

/// busybox and a note, which only this image has.
fn noted(name: &str) -> Image {
    Image::busybox(name).layer(Layer::new().file("/note", name, 0o644))
}

fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp(since.as_millis() as u64)
}

#[tokio::test(flavor = "multi_thread")]
async fn removing_one_image_keeps_the_layers_of_another() {
    let world = World::start();
    let names = ["warren.local/a:1", "warren.local/b:1", "warren.local/c:1"];
    for name in names {
        world.import(&noted(name).oci_archive(), None).await.unwrap();
    }
    // A second name for the third image.
    world.import(&noted(names[2]).oci_archive(), Some("warren.local/d:1")).await.unwrap();
    let rows = world.images.list().await.unwrap();
    assert_eq!(rows.iter().map(|row| row.reference.as_str()).collect::<Vec<_>>()[..3], names);
    let (a, b) = (&rows[0].parts, &rows[1].parts);
    let common = a.keys().filter(|part| b.contains_key(part)).count();
    assert_eq!((a.len(), common), (6, 2), "a manifest, a configuration and twice two layers: {a:?}");
    assert_eq!(rows[2].parts, rows[3].parts);
    let unpacked = |row: &(&Part, &u64)| matches!(row.0, Part::Layer(_)) && *row.1 > 500_000;
    assert_eq!(a.iter().filter(unpacked).count(), 1, "busybox: {a:?}");
    assert_eq!(rows[0].size(), a.values().sum::<u64>());

    let remove = async |name: &str| world.images.remove(&name.parse().unwrap()).await.unwrap();
    for gone in [names[0], names[2]] {
        assert!(remove(gone).await);
        assert!(!remove(gone).await, "the second time there is nothing to remove");
    }
    world.images.collect_garbage().await.unwrap();
    assert_eq!(world.says(names[1], &["cat", "/note"]), names[1]);
    assert_eq!(world.says("warren.local/d:1", &["cat", "/note"]), names[2]);
    let stored = world.stored();
    let is_stored = |part: &Part| match part {
        Part::Blob(digest) | Part::Layer(digest) => {
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
async fn a_pull_holds_what_it_found_here() {
    let world = World::start();
    let sample = Sample::new(70, &[1000, 400_000]);
    let base = Sample::new(70, &[1000]);
    assert_eq!(base.layer(0), sample.layer(0));
    let server = Scripted::start(move |request| base.answer(request)).await;
    let first = world.pull(&format!("{}/base:1", server.host())).await.unwrap();

    let open = Arc::new(AtomicBool::new(false));
    let (is_open, digest) = (open.clone(), sample.layer(1).0);
    let server = Scripted::start(move |request| {
        let reply = sample.answer(request);
        match request.path.ends_with(&digest) && !is_open.load(Ordering::SeqCst) {
            true => reply.cut(300_000).then(Then::Stall),
            false => reply,
        }
    });
    let server = server.await;
    let reference: Reference = format!("{}/above:1", server.host()).parse().unwrap();
    let pull = world.images.pull(&reference, None);
    let mut progress = pull.progress();
    let begun = progress.wait_for(|progress| progress.at(Stage::Unpacked) == 1);
    tokio::time::timeout(LONG, begun).await.unwrap().unwrap();
    assert!(world.images.remove(&first.reference).await.unwrap());
    world.images.collect_garbage().await.unwrap();
    open.store(true, Ordering::SeqCst);
    pull.outcome().await.unwrap();
    let info = world.images.get(&reference).await.unwrap().unwrap();
    assert!(world.stored().iter().any(|line| line.starts_with(info.chain_id.as_str())));
    assert!(world.images.remove(&reference).await.unwrap());
    world.assert_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_other_tools_stored_is_used_listed_and_removed() {
    let (world, registry) = (World::start(), Registry::start());
    let name = registry.push("team/web", "1", &noted("pulled by another").oci_archive());
    world.ctr(&["images", "pull", "--plain-http", &name]);
    let reference: Reference = name.parse().unwrap();
    let info = world.images.get(&reference).await.unwrap().expect("it is here");
    let pinned = reference.pinned(&info.digest);
    assert!(world.images.get(&pinned).await.unwrap().is_some());
    assert_eq!(world.pull(&name).await.unwrap().digest, info.digest, "and the registry says the same");

    // Names that no reference of ours would give.
    let scratch = Scratch::new();
    let path = scratch.path().join("plain.tar");
    noted("busybox").oci_archive().write(&path).unwrap();
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
async fn namespaces_share_bytes_and_nothing_else() {
    let (world, mut registry) = (World::start(), Registry::start());
    let name = registry.push("team/web", "1", &noted("shared").oci_archive());
    let neighbour = world.neighbour();
    let reference: Reference = name.parse().unwrap();
    let theirs = neighbour.pull(&reference, None).outcome().await.unwrap();
    assert_eq!(world.images.get(&reference).await.unwrap(), None);
    let blobs = |registry: &mut Registry| registry.process().log().matches("GET /v2/team/web/blobs").count();
    assert_eq!(blobs(&mut registry), 3);
    assert_eq!(world.pull(&name).await.unwrap(), theirs);
    assert_eq!(blobs(&mut registry), 4, "only the configuration, which is read first");
    assert!(neighbour.remove(&reference).await.unwrap());
    assert_eq!(world.says(&name, &["cat", "/note"]), "shared");
    assert!(world.images.remove(&reference).await.unwrap());
    world.assert_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_use_is_written_once_an_hour_and_outlives_the_agent() {
    let mut world = World::start();
    let imported = world.import(&noted("warren.local/used:1").oci_archive(), None).await.unwrap();
    let tag = imported.reference;
    let last_used = async |images: &warren_image::Images| images.list().await.unwrap()[0].last_used;
    let made = world.images.list().await.unwrap()[0].created;
    assert!(now().since(made) < Duration::from_secs(60) && last_used(&world.images).await == made);

    let begun = now() + Duration::from_secs(1);
    assert!(world.images.touch(&tag, begun).await.unwrap());
    let later = begun + Duration::from_secs(1800);
    for reference in [&tag, &tag.pinned(&imported.digest), &tag] {
        assert!(!world.images.touch(reference, later).await.unwrap(), "it was written just before");
    }
    // Nothing is even asked: a start does not wait for it.
    world.process().pause();
    assert!(!world.images.touch(&tag, later).await.unwrap());
    world.process().resume();
    assert_eq!(last_used(&world.images).await, later, "this agent knows better than what is written");
    let restarted = world.again();
    assert_eq!(last_used(&restarted).await, begun);
    assert!(!restarted.touch(&tag, later).await.unwrap());
    assert!(restarted.touch(&tag, begun + TOUCH_EVERY).await.unwrap());
    assert_eq!(last_used(&world.again()).await, begun + TOUCH_EVERY);
    // A clock that was wrong is corrected.
    assert!(world.again().touch(&tag, begun).await.unwrap());
    assert_eq!(last_used(&world.again()).await, begun);

    // It belongs to the content: when the tag moves, the one before keeps it.
    let other = noted("warren.local/used:1").layer(Layer::new().file("/more", noise(1, 10), 0o644));
    world.import(&other.oci_archive(), None).await.unwrap();
    let rows = world.again().list().await.unwrap();
    assert_eq!((rows.len(), rows[1].last_used), (2, begun), "{rows:?}");

    let absent: Reference = "warren.local/absent:1".parse().unwrap();
    assert!(!world.images.touch(&absent, begun).await.unwrap());
    for row in rows {
        world.images.remove_listed(&row.reference).await.unwrap();
    }
    assert!(!world.again().touch(&tag, later).await.unwrap());
}
