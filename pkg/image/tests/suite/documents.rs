//! Malformed manifests, indexes and configurations.

use std::time::Instant;

use serde_json::{Value, json};

use crate::scripted::{
    AfterBody, LONGER_THAN_TIMEOUT, SampleImage, ScriptedReply, ScriptedRequest, ScriptedServer,
};
use crate::world::ImageFixture;

fn sample() -> SampleImage {
    SampleImage::new(2, &[1000, 2000])
}

/// Pulls from a registry that serves `sample` and returns the error text.
async fn refusal(world: &ImageFixture, sample: SampleImage) -> String {
    let server = ScriptedServer::start(move |request| sample.answer(request)).await;
    let begun = Instant::now();
    let error = world.pull(&format!("{}/x:1", server.host())).await.expect_err("the image must be rejected");
    assert!(begun.elapsed() < LONGER_THAN_TIMEOUT, "{error}");
    assert!(!error.is_transient(), "another try cannot help: {error}");
    error.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_manifests_are_rejected() {
    let world = ImageFixture::start();
    const SIGNED: &str = "application/vnd.docker.distribution.manifest.v1+prettyjws";
    const CHART: &str = "application/vnd.cncf.helm.config.v1+json";
    const FOREIGN: &str = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip";
    type Change = fn(&mut Value);
    let cases: [(&str, Change); 20] = [
        ("schema version 1", |m| {
            m["schemaVersion"] = 1.into();
            m["mediaType"] = SIGNED.into();
        }),
        ("schema version 3", |m| m["schemaVersion"] = 3.into()),
        ("missing field `schemaVersion`", |m| drop(m.as_object_mut().unwrap().remove("schemaVersion"))),
        ("manifest media type \"text/plain\"", |m| m["mediaType"] = "text/plain".into()),
        ("missing field `config`", |m| drop(m.as_object_mut().unwrap().remove("config"))),
        ("use a container image", |m| m["config"]["mediaType"] = CHART.into()),
        ("64 hexadecimal digits", |m| m["config"]["digest"] = "sha256:../../../etc/passwd".into()),
        ("at most 4194304", |m| m["config"]["size"] = 5_000_000_000u64.into()),
        ("invalid value: integer `-1`", |m| m["config"]["size"] = (-1).into()),
        ("expected 7", |m| m["config"]["size"] = 7.into()),
        ("lists 2 layers, the manifest 0", |m| m["layers"] = json!([])),
        ("lists 2 layers, the manifest 0", |m| drop(m.as_object_mut().unwrap().remove("layers"))),
        ("lists 2 layers, the manifest 1", |m| drop(m["layers"].as_array_mut().unwrap().pop())),
        ("invalid value: integer `-5`", |m| m["layers"][1]["size"] = (-5).into()),
        ("missing field `size`", |m| drop(m["layers"][1].as_object_mut().unwrap().remove("size"))),
        ("missing field `digest`", |m| drop(m["layers"][0].as_object_mut().unwrap().remove("digest"))),
        ("larger than the limit", |m| m["layers"][1]["size"] = (u64::MAX - 5).into()),
        ("invalid type: floating point", |m| m["layers"][1]["size"] = json!(1e30)),
        ("foreign.diff", |m| m["layers"][1]["mediaType"] = FOREIGN.into()),
        ("invalid type: string", |m| m["layers"] = "none".into()),
    ];
    for (want, change) in cases {
        let mut sample = sample();
        change(&mut sample.manifest);
        let found = refusal(&world, sample).await;
        assert!(found.contains(want), "want {want:?}, found: {found}");
    }
    world.assert_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_configurations_are_rejected() {
    let world = ImageFixture::start();
    type Change = fn(&mut Value);
    let cases: [(&str, Change); 6] = [
        ("only for linux/s390x", |c| c["architecture"] = "s390x".into()),
        ("only for windows/", |c| c["os"] = "windows".into()),
        ("lists 0 layers, the manifest 2", |c| c["rootfs"]["diff_ids"] = Value::Null),
        ("64 hexadecimal digits", |c| c["rootfs"]["diff_ids"][0] = "sha256:x".into()),
        ("missing field `rootfs`", |c| drop(c.as_object_mut().unwrap().remove("rootfs"))),
        ("digest or size mismatch", |c| {
            c["rootfs"]["diff_ids"][1] = format!("sha256:{}", "0".repeat(64)).into()
        }),
    ];
    for (want, change) in cases {
        let mut sample = sample();
        sample.reconfigure(change);
        let found = refusal(&world, sample).await;
        assert!(found.contains(want), "want {want:?}, found: {found}");
    }
    let mut many = sample();
    let (layer, id) = (many.manifest["layers"][0].clone(), format!("sha256:{}", "1".repeat(64)));
    many.manifest["layers"] = vec![layer; 128].into();
    many.reconfigure(|c| c["rootfs"]["diff_ids"] = vec![id; 128].into());
    let found = refusal(&world, many).await;
    assert!(found.contains("128 layers; expected 1 to 127"), "{found}");
    world.assert_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_indexes_are_rejected() {
    let world = ImageFixture::start();
    let good = sample();
    let text = good.manifest.to_string();
    let platform = json!({"os": "linux", "architecture": warren_image::native_architecture()});
    let nested = json!({"schemaVersion": 2, "manifests": [],
        "mediaType": "application/vnd.oci.image.index.v1+json"});
    let listed = |bytes: &str, media_type: &str, digest: Option<&str>| {
        let own = warren_image::Digest::of(bytes.as_bytes()).to_string();
        json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [{
            "mediaType": media_type, "digest": digest.unwrap_or(&own), "size": bytes.len(),
            "platform": platform}]})
    };
    const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    let zero = format!("sha256:{}", "0".repeat(64));
    let cases = [
        ("only for nothing", nested.clone()),
        ("a manifest for each", listed(&text, "application/json", None)),
        ("a manifest for each", listed(&nested.to_string(), "application/vnd.oci.image.index.v1+json", None)),
        ("the index sha256:", listed(&nested.to_string(), MANIFEST, None)),
        // The registry answers an unknown digest with its one manifest.
        ("digest or size mismatch for the manifest", listed(&text, MANIFEST, Some(&zero))),
    ];
    for (want, index) in cases {
        let mut sample = good.clone();
        sample.add(text.as_bytes());
        sample.add(nested.to_string().as_bytes());
        let server =
            ScriptedServer::start(move |request: &ScriptedRequest| match request.path.ends_with("/1") {
                true => ScriptedReply::new(200, index.to_string())
                    .header("Content-Type", "application/vnd.oci.image.index.v1+json"),
                false => sample.answer(request),
            });
        let server = server.await;
        let error = world.pull(&format!("{}/x:1", server.host())).await.expect_err(want).to_string();
        let want = want.replace("a manifest for each", "use an image manifest for each platform");
        assert!(error.contains(&want), "want {want:?}, found: {error}");
    }
    world.assert_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn non_manifest_answers_are_rejected_in_bounded_memory() {
    let world = ImageFixture::start();
    let json = "application/vnd.oci.image.manifest.v1+json";
    let chunk = vec![b' '; 1 << 20];
    for (want, reply) in [
        ("more than 4194304 bytes", ScriptedReply::new(200, chunk).after_body(AfterBody::Repeat)),
        ("more than 4194304 bytes", ScriptedReply::new(200, vec![b'['; 5 << 20])),
        ("is invalid", ScriptedReply::new(200, "<html>welcome to our hotel</html>")),
        ("is invalid", ScriptedReply::new(200, "")),
        ("is invalid", ScriptedReply::new(200, "[".repeat(1 << 20))),
        ("rejected the manifest with 418", ScriptedReply::new(418, "\u{1b}[2Jtea\r\n".repeat(10_000))),
    ] {
        let server = ScriptedServer::start(move |_| reply.clone().header("Content-Type", json)).await;
        let error = world.pull(&format!("{}/x:1", server.host())).await.expect_err(want).to_string();
        assert!(error.contains(want), "want {want:?}, found: {error}");
        assert!(error.len() < 600 && !error.contains(['\u{1b}', '\n']), "{error:?}");
    }
    let lying = sample();
    let server = ScriptedServer::start(move |request| match request.path.contains("manifests") {
        true => {
            ScriptedReply::new(200, lying.manifest.to_string()).header("Content-Type", "text/html; charset=x")
        }
        false => lying.answer(request),
    });
    let server = server.await;
    let error = world.pull(&format!("{}/x:1", server.host())).await.unwrap_err().to_string();
    assert!(error.contains("the registry reports \"text/html\""), "{error}");
    world.assert_nothing().await;
}
