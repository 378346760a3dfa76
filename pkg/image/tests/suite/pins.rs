//! References with a digest: the same content on every node, whatever its tag becomes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use warren_image::{Digest, Error, Reference};
use warren_testkit::image::{Image, Layer};
use warren_testkit::registry::Registry;

use crate::scripted::{Reply, Sample, Scripted};
use crate::world::World;

/// busybox and a note.
fn noted(name: &str, note: &str) -> Image {
    Image::busybox(name).layer(Layer::new().file("/note", note, 0o644))
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_bound_to_a_digest_runs_the_same_on_every_node() {
    let (first, second, registry) = (World::start(), World::start(), Registry::start());
    let name = registry.push("team/web", "1", &noted("warren.local/web:1", "first").oci_archive());
    let tag: Reference = name.parse().unwrap();
    let old = first.images.resolve(&tag, None).await.unwrap();
    assert!(first.stored().is_empty(), "nothing is fetched to know a digest");
    assert_eq!(first.pull(&name).await.unwrap().digest, old);
    registry.push("team/web", "1", &noted("warren.local/web:1", "second").oci_archive());
    let new = first.images.resolve(&tag, None).await.unwrap();
    assert_ne!(new, old);

    // The other node has never seen what the tag pointed to then.
    let pinned = tag.pinned(&old);
    assert_eq!(second.images.get(&pinned).await.unwrap(), None);
    assert_eq!(second.images.resolve(&pinned, None).await.unwrap(), old);
    let pulled = second.images.pull(&pinned, None).outcome().await.unwrap();
    assert_eq!((&pulled.digest, &pulled.reference), (&old, &pinned.canonical()));
    assert_eq!(second.says(&pulled.reference.to_string(), &["cat", "/note"]), "first");
    for text in [pinned.to_string(), pinned.record()] {
        let info = second.images.get(&text.parse().unwrap()).await.unwrap().expect("found by its digest");
        assert_eq!(info.digest, old);
    }
    assert_eq!(second.images.get(&tag).await.unwrap(), None, "no tag was pulled");

    // The first node keeps it when the tag moves on, and knows both.
    assert_eq!(first.pull(&name).await.unwrap().digest, new);
    for (reference, digest) in [(tag.clone(), &new), (tag.pinned(&new), &new), (pinned.clone(), &old)] {
        let info = first.images.get(&reference).await.unwrap().unwrap_or_else(|| panic!("{reference}"));
        assert_eq!(&info.digest, digest, "{reference}");
    }
    assert_eq!(first.names().await, [name.clone(), pinned.record()]);
    assert_eq!(first.says(&pinned.record(), &["cat", "/note"]), "first");
    let other_repository = format!("{}/team/other@{old}", registry.host()).parse().unwrap();
    for absent in [tag.pinned(&Digest::of(b"?")), other_repository] {
        assert_eq!(first.images.get(&absent).await.unwrap(), None, "{absent}");
    }
    for world in [&first, &second] {
        for reference in [&tag, &pinned, &tag, &pinned] {
            world.images.remove(reference).await.unwrap();
        }
        world.assert_nothing().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_imported_image_is_bound_without_any_registry() {
    let world = World::start();
    let name = "warren.local/web:1";
    for archive in [noted(name, "first").oci_archive(), noted(name, "second").docker_archive()] {
        let imported = world.import(&archive, None).await.unwrap();
        let info = world.images.get(&imported.reference).await.unwrap().unwrap();
        assert_eq!((&info.digest, &info.manifest), (&imported.digest, &imported.digest));
        assert_eq!(world.import(&archive, None).await.unwrap(), imported, "again, nothing changes");
    }
    let tag: Reference = name.parse().unwrap();
    let names = world.names().await;
    assert_eq!((names.len(), names[0].as_str()), (2, name), "the first one kept a name: {names:?}");
    let old: Reference = names[1].parse().unwrap();
    let new = world.images.get(&tag).await.unwrap().unwrap().digest.clone();
    for (reference, note) in [(old.clone(), "first"), (tag.clone(), "second")] {
        assert_eq!(world.says(&reference.to_string(), &["cat", "/note"]), note);
    }
    // Bound to the digest it is found under its tag, as the manager writes it, and without.
    for reference in [tag.pinned(&new), tag.pinned(&new).canonical(), tag.pinned(old.digest().unwrap())] {
        let info = world.images.get(&reference).await.unwrap().unwrap_or_else(|| panic!("{reference}"));
        assert_eq!(Some(&info.digest), reference.digest());
    }
    assert_eq!(world.images.get(&tag.pinned(&Digest::of(b"?"))).await.unwrap(), None);

    // Back to the first: both stay what they are.
    world.import(&noted(name, "first").oci_archive(), None).await.unwrap();
    assert_eq!(world.says(name, &["cat", "/note"]), "first");
    assert!(world.images.get(&tag.pinned(&new)).await.unwrap().is_some());
    for listed in world.names().await {
        assert!(world.images.remove_listed(&listed).await.unwrap());
        assert!(!world.images.remove_listed(&listed).await.unwrap());
    }
    world.assert_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_of_an_unchanged_image_is_mended() {
    let (world, registry) = (World::start(), Registry::start());
    let name = registry.push("team/web", "1", &noted("warren.local/web:1", "whole").oci_archive());
    let pulled = world.pull(&name).await.unwrap();
    let reference: Reference = name.parse().unwrap();
    let info = world.images.get(&reference).await.unwrap().unwrap();
    for _ in 0..2 {
        world.ctr(&["snapshots", "rm", info.chain_id.as_str()]);
        assert_eq!(world.pull(&name).await.unwrap(), pulled);
        assert_eq!(world.says(&name, &["cat", "/note"]), "whole");
    }
    let layer = world.stored().into_iter().find(|line| line.starts_with("sha256:")).unwrap();
    for _ in 0..2 {
        world.ctr(&["content", "rm", &layer]);
        assert_eq!(world.pull(&name).await.unwrap(), pulled);
        assert!(world.stored().contains(&layer));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn registries_that_do_not_say_a_digest_are_asked_for_the_manifest() {
    let world = World::start();
    let (sample, changed) = (Sample::new(40, &[1000]), Arc::new(AtomicBool::new(false)));
    let (other, is_changed) = (Sample::new(41, &[1000]), changed.clone());
    let server = Scripted::start(move |request| match (request.is_head, is_changed.load(Ordering::SeqCst)) {
        (true, false) => Reply::new(405, ""),
        // Nor is a digest believed that is none.
        (true, true) => Reply::new(200, "").header("Docker-Content-Digest", "sha256:../../x"),
        (false, false) => sample.answer(request),
        (false, true) => other.answer(request),
    });
    let server = server.await;
    let name = format!("{}/x:1", server.host());
    let tag: Reference = name.parse().unwrap();
    let first = world.pull(&name).await.unwrap();
    assert_eq!(world.images.resolve(&tag, None).await.unwrap(), first.digest);
    assert_eq!(world.pull(&name).await.unwrap(), first);
    changed.store(true, Ordering::SeqCst);
    let second = world.images.resolve(&tag, None).await.unwrap();
    assert_ne!(second, first.digest);
    assert_eq!(world.pull(&name).await.unwrap().digest, second);
    assert_eq!(server.seen("blobs").len(), 4, "a configuration and a layer of each");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_digest_that_is_a_lie_brings_nothing() {
    let world = World::start();
    let sample = Sample::new(42, &[1000]);
    let lie = Digest::of(b"a lie");
    let said = lie.clone();
    let server = Scripted::start(move |request| match request.is_head {
        true => Reply::new(200, "").header("Docker-Content-Digest", said.as_str()),
        false => sample.answer(request),
    });
    let server = server.await;
    let tag: Reference = format!("{}/x:1", server.host()).parse().unwrap();
    assert_eq!(world.images.resolve(&tag, None).await.unwrap(), lie, "who is bound to it pulls nothing");
    let error = world.images.pull(&tag.pinned(&lie), None).outcome().await.unwrap_err();
    assert!(matches!(error, Error::DigestMismatch { .. }), "{error}");
    assert_eq!(world.images.get(&tag.pinned(&lie)).await.unwrap(), None);
    world.assert_nothing().await;
}
