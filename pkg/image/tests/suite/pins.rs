//! References with a digest: the same image on every node, independent of the tag.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use warren_image::{Digest, Error, Reference};
use warren_registry::ResolveNames;
use warren_testkit::image::{ImageLayer, TestImage};
use warren_testkit::registry::TestRegistry;

use crate::scripted::{SampleImage, ScriptedReply, ScriptedServer};
use crate::world::ImageFixture;

/// busybox and a note.
fn image_with_note(name: &str, note: &str) -> TestImage {
    TestImage::busybox(name).layer(ImageLayer::new().file("/note", note, 0o644))
}

#[tokio::test(flavor = "multi_thread")]
async fn digest_reference_gives_same_image_on_every_node() {
    let (first, second, registry) = (ImageFixture::start(), ImageFixture::start(), TestRegistry::start());
    let name = registry.push("team/web", "1", &image_with_note("warren.local/web:1", "first").oci_archive());
    let tag: Reference = name.parse().unwrap();
    let old = first.registries.resolve(&tag, None).await.unwrap().digest;
    assert!(first.stored_objects().is_empty(), "nothing is fetched to know a digest");
    assert_eq!(first.pull(&name).await.unwrap().digest, old);
    registry.push("team/web", "1", &image_with_note("warren.local/web:1", "second").oci_archive());
    let new = first.registries.resolve(&tag, None).await.unwrap().digest;
    assert_ne!(new, old);

    // The other node never pulled the previous target of the tag.
    let pinned = tag.with_digest(&old);
    assert_eq!(second.images.get(&pinned).await.unwrap(), None);
    assert_eq!(second.registries.resolve(&pinned, None).await.unwrap().digest, old);
    let pulled = second.images.pull(&pinned, None).outcome().await.unwrap();
    assert_eq!((&pulled.digest, &pulled.reference), (&old, &pinned.canonical()));
    assert_eq!(second.run_output(&pulled.reference.to_string(), &["cat", "/note"]), "first");
    for text in [pinned.to_string(), pinned.record_name()] {
        let info = second.images.get(&text.parse().unwrap()).await.unwrap().expect("found by its digest");
        assert_eq!(info.digest, old);
    }
    assert_eq!(second.images.get(&tag).await.unwrap(), None, "no tag was pulled");

    // The first node keeps it when the tag moves, and has both.
    assert_eq!(first.pull(&name).await.unwrap().digest, new);
    for (reference, digest) in [(tag.clone(), &new), (tag.with_digest(&new), &new), (pinned.clone(), &old)] {
        let info = first.images.get(&reference).await.unwrap().unwrap_or_else(|| panic!("{reference}"));
        assert_eq!(&info.digest, digest, "{reference}");
    }
    assert_eq!(first.names().await, [name.clone(), pinned.record_name()]);
    assert_eq!(first.run_output(&pinned.record_name(), &["cat", "/note"]), "first");
    let other_repository = format!("{}/team/other@{old}", registry.host()).parse().unwrap();
    for absent in [tag.with_digest(&Digest::of(b"?")), other_repository] {
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
async fn imported_image_is_found_by_digest_offline() {
    let world = ImageFixture::start();
    let name = "warren.local/web:1";
    for archive in
        [image_with_note(name, "first").oci_archive(), image_with_note(name, "second").docker_archive()]
    {
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
        assert_eq!(world.run_output(&reference.to_string(), &["cat", "/note"]), note);
    }
    // With the digest it is found under its tag, as the manager writes it, and without.
    for reference in
        [tag.with_digest(&new), tag.with_digest(&new).canonical(), tag.with_digest(old.digest().unwrap())]
    {
        let info = world.images.get(&reference).await.unwrap().unwrap_or_else(|| panic!("{reference}"));
        assert_eq!(Some(&info.digest), reference.digest());
    }
    assert_eq!(world.images.get(&tag.with_digest(&Digest::of(b"?"))).await.unwrap(), None);

    // Back to the first: both are unchanged.
    world.import(&image_with_note(name, "first").oci_archive(), None).await.unwrap();
    assert_eq!(world.run_output(name, &["cat", "/note"]), "first");
    assert!(world.images.get(&tag.with_digest(&new)).await.unwrap().is_some());
    for listed in world.names().await {
        assert!(world.images.remove_listed(&listed).await.unwrap());
        assert!(!world.images.remove_listed(&listed).await.unwrap());
    }
    world.assert_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_content_of_unchanged_image_is_repaired() {
    let (world, registry) = (ImageFixture::start(), TestRegistry::start());
    let name = registry.push("team/web", "1", &image_with_note("warren.local/web:1", "whole").oci_archive());
    let pulled = world.pull(&name).await.unwrap();
    let reference: Reference = name.parse().unwrap();
    let info = world.images.get(&reference).await.unwrap().unwrap();
    for _ in 0..2 {
        world.ctr(&["snapshots", "rm", info.chain_id.as_str()]);
        assert_eq!(world.pull(&name).await.unwrap(), pulled);
        assert_eq!(world.run_output(&name, &["cat", "/note"]), "whole");
    }
    let layer = world.stored_objects().into_iter().find(|line| line.starts_with("sha256:")).unwrap();
    for _ in 0..2 {
        world.ctr(&["content", "rm", &layer]);
        assert_eq!(world.pull(&name).await.unwrap(), pulled);
        assert!(world.stored_objects().contains(&layer));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_digest_header_falls_back_to_manifest() {
    let world = ImageFixture::start();
    let (sample, changed) = (SampleImage::new(40, &[1000]), Arc::new(AtomicBool::new(false)));
    let (other, is_changed) = (SampleImage::new(41, &[1000]), changed.clone());
    let server =
        ScriptedServer::start(move |request| match (request.is_head, is_changed.load(Ordering::SeqCst)) {
            (true, false) => ScriptedReply::new(405, ""),
            // A digest that does not match is not accepted either.
            (true, true) => ScriptedReply::new(200, "").header("Docker-Content-Digest", "sha256:../../x"),
            (false, false) => sample.answer(request),
            (false, true) => other.answer(request),
        });
    let server = server.await;
    let name = format!("{}/x:1", server.host());
    let tag: Reference = name.parse().unwrap();
    let first = world.pull(&name).await.unwrap();
    assert_eq!(world.registries.resolve(&tag, None).await.unwrap().digest, first.digest);
    assert_eq!(world.pull(&name).await.unwrap(), first);
    changed.store(true, Ordering::SeqCst);
    let second = world.registries.resolve(&tag, None).await.unwrap().digest;
    assert_ne!(second, first.digest);
    assert_eq!(world.pull(&name).await.unwrap().digest, second);
    assert_eq!(server.requests("blobs").len(), 4, "a configuration and a layer of each");
}

#[tokio::test(flavor = "multi_thread")]
async fn false_digest_is_rejected() {
    let world = ImageFixture::start();
    let sample = SampleImage::new(42, &[1000]);
    let lie = Digest::of(b"a lie");
    let header = lie.clone();
    let server = ScriptedServer::start(move |request| match request.is_head {
        true => ScriptedReply::new(200, "").header("Docker-Content-Digest", header.as_str()),
        false => sample.answer(request),
    });
    let server = server.await;
    let tag: Reference = format!("{}/x:1", server.host()).parse().unwrap();
    let resolved = world.registries.resolve(&tag, None).await.unwrap();
    assert_ne!(resolved.digest, lie, "the digest is that of the manifest, whatever the registry says");
    let error = world.images.pull(&tag.with_digest(&lie), None).outcome().await.unwrap_err();
    assert!(matches!(error, Error::DigestMismatch { .. }), "{error}");
    assert_eq!(world.images.get(&tag.with_digest(&lie)).await.unwrap(), None);
    world.assert_nothing().await;
}
