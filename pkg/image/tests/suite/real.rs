//! Pulls from the reference registry implementation.

use std::time::Duration;

use serde_json::{Value, json};
use warren_image::{Error, LayerStage, Reference, RegistryCredentials, RegistryError, native_architecture};
use warren_registry::ResolveNames;
use warren_testkit::image::{ImageLayer, TestImage};
use warren_testkit::registry::{PASSWORD, TestRegistry, USER};
use warren_testkit::wait::eventually;

use crate::copies::StoreBlobs;
use crate::world::{ImageFixture, random_bytes};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// busybox below five more layers.
fn layered(note: &str) -> TestImage {
    (0..5).fold(TestImage::busybox("warren.local/web:1"), |image, number| {
        let layer = ImageLayer::new().file(&format!("/layer{number}"), random_bytes(number, 100_000), 0o644);
        image.layer(layer.file("/note", note, 0o644))
    })
}

/// There were so many requests for blobs or manifests, and no more. The registry writes its log after the answer.
#[track_caller]
pub fn assert_requests(registry: &mut TestRegistry, method: &str, kind: &str, count: usize, why: &str) {
    let line = format!("{method} /v2/team/web/{kind}");
    let logged = eventually(Duration::from_secs(60), &format!("{count} times {line}"), || {
        let logged = registry.process().log().matches(&line).count();
        if logged >= count { Ok(logged) } else { Err(format!("{logged} times")) }
    });
    assert_eq!(logged, count, "{line}: {why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn image_is_pulled_run_and_removed() {
    let (world, mut registry) = (ImageFixture::start(), TestRegistry::start());
    let archive = layered("first").oci_archive();
    let name = registry.push("team/web", "1", &archive);
    let reference = Reference::parse(&name).unwrap();
    assert_eq!(world.images.get(&reference).await.unwrap(), None);

    let pull = world.images.pull(&reference, None);
    let mut progress = pull.progress();
    let pulled = pull.outcome().await.unwrap();
    assert_eq!(Some(pulled.digest.to_string()), archive.manifest_digest);
    assert_eq!((&pulled.reference, &pulled.manifest), (&reference, &pulled.digest));
    let last = progress.borrow_and_update().clone();
    assert_eq!(
        (last.layers.len(), last.count_at_least(LayerStage::Unpacked), last.retry_reason.clone()),
        (6, 6, None)
    );
    let (received, total) = last.bytes();
    assert!(received == total && total < pulled.size && pulled.size < total + 10_000, "{pulled:?} {last:?}");
    let info = world.images.get(&reference).await.unwrap().expect("it was just pulled");
    assert_eq!((&info.digest, &info.manifest), (&pulled.digest, &pulled.manifest));
    assert_eq!((info.size(), &info.config.cmd[..]), (pulled.size, &["sh".to_owned()][..]));
    let output = world.run_output(&name, &["sh", "-c", "cat /note; ls -d /layer*"]);
    assert!(output.starts_with("first") && output.matches("/layer").count() == 5, "{output}");

    // A second pull fetches nothing that is present.
    let stored = world.stored_objects();
    assert_requests(&mut registry, "GET", "blobs", 7, "a configuration and six layers");
    assert_eq!(world.pull(&name).await.unwrap(), pulled);
    assert_eq!(world.stored_objects(), stored);
    assert_requests(&mut registry, "HEAD", "manifests", 1, "which it stands for is always asked");
    assert_requests(&mut registry, "GET", "blobs", 7, "all are present");
    assert_requests(&mut registry, "GET", "manifests", 1, "it is present");

    // The tag moves; layers in common are not fetched again.
    registry.push("team/web", "1", &layered("second").oci_archive());
    let moved = world.pull(&name).await.unwrap();
    assert_ne!(moved.digest, pulled.digest);
    assert_requests(&mut registry, "GET", "blobs", 7 + 1 + 5, "all but busybox have the note");
    let output = world.run_output(&name, &["cat", "/note"]);
    assert_eq!(output, "second");

    for _ in 0..2 {
        world.images.remove(&reference).await.unwrap();
        world.images.remove(&reference.with_digest(&pulled.digest)).await.unwrap();
    }
    world.assert_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn docker_media_types_are_supported() {
    let (world, registry) = (ImageFixture::start(), TestRegistry::start());
    let archive = layered("docker").oci_archive();
    registry.push("team/web", "oci", &archive);
    let stored = std::fs::read(registry.data(archive.manifest_digest.as_ref().unwrap())).unwrap();
    let text = String::from_utf8(stored).unwrap();
    let docker = text
        .replace(MANIFEST, "application/vnd.docker.distribution.manifest.v2+json")
        .replace("application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json")
        .replace(
            "application/vnd.oci.image.layer.v1.tar+gzip",
            "application/vnd.docker.image.rootfs.diff.tar.gzip",
        );
    assert_ne!(docker, text);
    let digest = registry.put_manifest("team/web", Some("docker"), docker.as_bytes());
    let pulled = world.pull(&format!("{}/team/web:docker", registry.host())).await.unwrap();
    assert_eq!(pulled.digest.to_string(), digest);
    let output = world.run_output(&pulled.reference.to_string(), &["cat", "/note"]);
    assert_eq!(output, "docker");
}

/// Stores an index of `(platform, manifest)` and returns its digest.
fn index(registry: &TestRegistry, tag: &str, listed: &[(Value, &str)]) -> String {
    let entry = |(platform, digest): &(Value, &str)| {
        let size = std::fs::metadata(registry.data(digest)).unwrap().len();
        json!({"mediaType": MANIFEST, "digest": digest, "size": size, "platform": platform})
    };
    let manifests: Vec<Value> = listed.iter().map(entry).collect();
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests});
    registry.put_json("team/web", Some(tag), &index)
}

#[tokio::test(flavor = "multi_thread")]
async fn matching_platform_is_pulled() {
    let (world, registry) = (ImageFixture::start(), TestRegistry::start());
    let archive = layered("ours").oci_archive();
    registry.push("team/web", "ours", &archive);
    let ours = archive.manifest_digest.as_deref().unwrap();
    let foreign = json!({"os": "linux", "architecture": "s390x"});
    let other = json!({"os": "linux", "architecture": "arm", "variant": "v7"});
    let native = json!({"os": "linux", "architecture": native_architecture()});
    // Only the manifest of this platform exists in the registry.
    let all = [
        (foreign.clone(), ours),
        (native, ours),
        (json!({"os": "unknown", "architecture": "unknown"}), ours),
    ];
    let digest = index(&registry, "all", &all);
    let host = registry.host();
    let pulled = world.pull(&format!("{host}/team/web:all")).await.unwrap();
    assert_eq!((pulled.digest.to_string(), pulled.manifest.as_str()), (digest.clone(), ours));

    // The digest identifies the same image on every node.
    let pinned = Reference::parse(&format!("{host}/team/web@{digest}")).unwrap();
    let again = world.pull(&pinned.to_string()).await.unwrap();
    assert_eq!((&again.digest, &again.manifest), (&pulled.digest, &pulled.manifest));
    assert_eq!(world.images.get(&pinned).await.unwrap().unwrap().manifest, pulled.manifest);
    let output = world.run_output(&pulled.reference.to_string(), &["cat", "/note"]);
    assert_eq!(output, "ours");
    // A copy has the index as well: a task that is bound to its digest finds it.
    let (copy, mut blobs) = (ImageFixture::start(), StoreBlobs::new(&world.images, &pinned));
    let received = copy.images.receive(&pulled.reference, &pulled.digest, &mut blobs).await.unwrap();
    assert_eq!(received.digest, pulled.digest);
    assert_eq!(copy.images.get(&pinned).await.unwrap().unwrap().manifest, pulled.manifest);
    copy.images.collect_garbage().await.unwrap();
    assert_eq!(copy.run_output(&pulled.reference.to_string(), &["cat", "/note"]), "ours");
    assert!(copy.images.remove(&pulled.reference).await.unwrap());
    copy.assert_nothing().await;
    assert!(world.images.remove(&pulled.reference).await.unwrap());
    world.assert_nothing().await;

    index(&registry, "none", &[(foreign, ours), (other, ours)]);
    let error = world.pull(&format!("{host}/team/web:none")).await.unwrap_err();
    let want = format!("no image for linux/{}, only for linux/arm/v7, linux/s390x", native_architecture());
    assert!(matches!(error, Error::NoMatchingPlatform { .. }) && !error.is_transient(), "{error}");
    assert!(error.to_string().ends_with(&want), "{error}");
    world.assert_nothing().await;
    index(&registry, "none", &all);
    assert_eq!(world.pull(&format!("{host}/team/web:none")).await.unwrap().digest.to_string(), digest);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_image_is_named() {
    let (world, registry) = (ImageFixture::start(), TestRegistry::start());
    let archive = layered("lost").oci_archive();
    let name = registry.push("team/web", "1", &archive);
    let host = registry.host();
    for (image, want) in [("team/web:2", "team/web:2"), ("nobody/has:this", "nobody/has:this")] {
        let error = world.pull(&format!("{host}/{image}")).await.unwrap_err();
        assert!(matches!(&error, Error::Registry(RegistryError::UnknownImage { .. })), "{error}");
        let text = error.to_string();
        assert!(text.contains(want) && text.contains(&host) && !error.is_transient(), "{text}");
    }
    let absent = format!("{host}/team/web@sha256:{}", "0".repeat(64));
    let error = world.pull(&absent).await.unwrap_err();
    assert!(error.to_string().contains("has no image team/web@sha256:000"), "{error}");
    std::fs::remove_file(registry.data(&archive.config_digest)).unwrap();
    let error = world.pull(&name).await.unwrap_err();
    assert!(matches!(&error, Error::Registry(RegistryError::UnknownBlob { .. })), "{error}");
    world.assert_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn corrupt_registry_layer_is_rejected() {
    let (world, registry) = (ImageFixture::start(), TestRegistry::start());
    let archive = layered("rotten").oci_archive();
    let name = registry.push("team/web", "1", &archive);
    let manifest = std::fs::read(registry.data(archive.manifest_digest.as_ref().unwrap())).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    let path = registry.data(manifest["layers"][3]["digest"].as_str().unwrap());
    let good = std::fs::read(&path).unwrap();
    let mut rotten = good.clone();
    rotten[good.len() / 2] ^= 1;
    std::fs::write(&path, rotten).unwrap();
    let error = world.pull(&name).await.unwrap_err();
    assert!(matches!(error, Error::DigestMismatch { .. }) && error.is_bad_input(), "{error}");
    world.assert_nothing().await;
    std::fs::write(&path, good).unwrap();
    world.pull(&name).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn private_registry_accepts_credentials() {
    let (world, registry) = (ImageFixture::start(), TestRegistry::start_private());
    let name = registry.push("team/web", "1", &layered("private").oci_archive());
    let as_user = |user: &str, password: &str| {
        Some(RegistryCredentials { user: user.to_owned(), password: password.to_owned() })
    };
    let error = world.pull(&name).await.unwrap_err();
    assert!(matches!(&error, Error::Registry(RegistryError::NeedsCredentials { .. })), "{error}");
    for (user, password) in [(USER, "guessed"), ("bob", PASSWORD)] {
        let error = world.pull_as(&name, as_user(user, password)).await.unwrap_err();
        assert!(matches!(&error, Error::Registry(RegistryError::Denied { .. })), "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("user \"{user}\"")) && !text.contains(password), "{text}");
        assert!(!error.is_transient());
    }
    world.assert_nothing().await;
    let pulled = world.pull_as(&name, as_user(USER, PASSWORD)).await.unwrap();
    let reference = Reference::parse(&name).unwrap();
    let error = world.registries.resolve(&reference, as_user(USER, "wrong")).await.unwrap_err();
    assert!(matches!(&error, RegistryError::Denied { .. }), "{error}");

    // A node with credentials for this registry needs none in the pull.
    let mut registries = crate::world::registries();
    registries.set_credentials(&registry.host(), as_user(USER, PASSWORD).unwrap()).unwrap();
    let world = ImageFixture::with(registries);
    assert_eq!(world.registries.resolve(&reference, None).await.unwrap().digest, pulled.digest);
    assert_eq!(world.pull(&name).await.unwrap(), pulled);
    world.pull_as(&name, as_user(USER, "wrong")).await.expect_err("what a pull says counts more");
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_registry_is_reported() {
    let (world, mut registry) = (ImageFixture::start(), TestRegistry::start());
    let name = registry.push("team/web", "1", &layered("away").oci_archive());
    registry.process().pause();
    let impatient = ImageFixture::with(crate::world::impatient());
    let error = impatient.pull(&name).await.unwrap_err();
    assert!(matches!(&error, Error::Registry(RegistryError::Stalled { .. })), "{error}");
    assert!(error.is_transient());
    impatient.assert_nothing().await;
    registry.process().resume();
    world.pull(&name).await.unwrap();
    registry.process().kill();
    let error = world.pull(&name).await.unwrap_err();
    assert!(matches!(&error, Error::Registry(RegistryError::Unreachable { .. })), "{error}");
    let text = error.to_string();
    assert!(text.contains(&registry.host()) && text.contains("refused") && error.is_transient(), "{text}");
    let reference = Reference::parse(&name).unwrap();
    assert!(world.images.get(&reference).await.unwrap().is_some(), "what was pulled before stays");
}
