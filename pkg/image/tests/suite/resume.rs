//! Connections that break, stall, or carry wrong data.

use std::time::{Duration, Instant};

use warren_image::{Error, RegistryError};

use crate::scripted::{
    AfterBody, LONGER_THAN_TIMEOUT, SampleImage, ScriptedReply, ScriptedRequest, ScriptedServer,
    silent_server,
};
use crate::world::{ImageFixture, impatient};

const SIZE: usize = 2_000_000;

fn sample() -> SampleImage {
    SampleImage::new(1, &[SIZE])
}

/// A correct registry, except for the change of `bend` to its answers for the layer.
async fn faulty_registry(
    sample: &SampleImage,
    bend: impl Fn(&ScriptedRequest, ScriptedReply) -> ScriptedReply + Send + Sync + 'static,
) -> ScriptedServer {
    let (digest, sample) = (sample.layer(0).0, sample.clone());
    ScriptedServer::start(move |request| match request.path.ends_with(&digest) {
        true => bend(request, sample.answer(request)),
        false => sample.answer(request),
    })
    .await
}

fn name(server: &ScriptedServer) -> String {
    format!("{}/x:1", server.host())
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_connection_resumes_download() {
    // More breaks than consecutive retries: the pull continues while bytes arrive. Covers a broken
    // connection and a clean early end.
    let world = ImageFixture::start();
    let sample = sample();
    let (digest, bytes) = sample.layer(0);
    let server = faulty_registry(&sample, |request, reply| match request.before % 2 {
        0 => reply.cut(300_000),
        _ => reply.cut(300_000).without_length(),
    });
    let server = server.await;
    world.pull(&name(&server)).await.unwrap();
    let asked: Vec<_> = server.requests(&digest).iter().map(|request| request.from.unwrap_or(0)).collect();
    let want: Vec<_> = (0..).map(|each| each * 300_000).take_while(|from| *from < bytes.len()).collect();
    assert_eq!(asked, want, "no byte is fetched twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn registry_without_ranges_restarts_download() {
    let world = ImageFixture::start();
    let sample = sample();
    let whole = sample.layer(0).1;
    let server = faulty_registry(&sample, move |request, _| match request.before {
        0 => ScriptedReply::new(200, whole.clone()).cut(700_000),
        1 => ScriptedReply::new(200, whole.clone()).cut(1_500_000),
        _ => ScriptedReply::new(200, whole.clone()),
    });
    world.pull(&name(&server.await)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_connection_is_reopened() {
    let mut registries = impatient();
    // What was sent has arrived by then.
    registries.policy.stall_timeout = Duration::from_secs(3);
    let world = ImageFixture::with(registries);
    let sample = sample();
    let server = faulty_registry(&sample, |request, reply| match request.before {
        0 => reply.cut(500_000).after_body(AfterBody::Stall),
        1 => reply.cut(0).after_body(AfterBody::Stall),
        _ => reply,
    });
    let server = server.await;
    world.pull(&name(&server)).await.unwrap();
    let asked = server.requests(&sample.layer(0).0);
    assert_eq!(asked[1].from, Some(500_000));
    assert_eq!(asked[2].from, Some(500_000), "the second one got nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_registry_is_retried_with_bound() {
    let sample = sample();
    let world = ImageFixture::start();
    let busy = |status: u16| ScriptedReply::new(status, r#"{"errors":[{"message":"come later"}]}"#);
    for status in [429, 500, 502, 503, 504, 408] {
        let server = faulty_registry(&sample, move |request, reply| match request.before {
            0 => busy(status).header("Retry-After", "3600"),
            1 => busy(status),
            _ => reply,
        });
        let (server, begun) = (server.await, Instant::now());
        let pulled = world.pull(&name(&server)).await.unwrap();
        assert!(begun.elapsed() < LONGER_THAN_TIMEOUT, "what a registry asks for is bounded");
        world.images.remove(&pulled.reference).await.unwrap();
    }
    let server = faulty_registry(&sample, move |_, _| busy(503)).await;
    let error = world.pull(&name(&server)).await.unwrap_err();
    assert!(matches!(&error, Error::Registry(RegistryError::Busy { .. })), "{error}");
    assert!(error.to_string().contains("503") && error.to_string().contains("come later"), "{error}");
    assert!(error.is_transient());
    assert_eq!(server.requests(&sample.layer(0).0).len(), 3);
    world.assert_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn permanent_error_ends_pull() {
    let sample = sample();
    let (patient, impatient) = (ImageFixture::start(), ImageFixture::with(impatient()));
    let whole = sample.layer(0).1;
    let size = whole.len();
    let longer = [&whole[..], b"more"].concat();
    type ReplyFault = Box<dyn Fn(&ScriptedRequest, ScriptedReply) -> ScriptedReply + Send + Sync>;
    let constant = |reply: ScriptedReply| -> ReplyFault { Box::new(move |_, _| reply.clone()) };
    let cases: Vec<(&str, ReplyFault, usize)> = vec![
        ("stalled", constant(ScriptedReply::new(200, whole.clone()).cut(0).after_body(AfterBody::Stall)), 3),
        ("broke", constant(ScriptedReply::new(200, whole.clone()).cut(0)), 3),
        ("bytes, expected", constant(ScriptedReply::new(200, &whole[..1000])), 1),
        ("bytes, expected", constant(ScriptedReply::new(200, longer.clone())), 1),
        ("it is longer than", constant(ScriptedReply::new(200, longer).without_length()), 1),
        (
            "it is longer than",
            constant(ScriptedReply::new(200, whole.clone()).after_body(AfterBody::Repeat)),
            1,
        ),
        ("ended after 1000 of", constant(ScriptedReply::new(200, &whole[..1000]).without_length()), 3),
        (
            "expected bytes from 1000",
            Box::new(|request, reply| match request.before {
                0 => reply.cut(1000),
                _ => ScriptedReply::new(206, vec![0; 100]).header("Content-Range", "bytes 0-99/100"),
            }),
            2,
        ),
        (
            "it has 1000 bytes",
            Box::new(
                |request, reply| {
                    if request.before == 0 { reply.cut(1000) } else { ScriptedReply::new(416, "") }
                },
            ),
            2,
        ),
        ("digest or size mismatch", constant(ScriptedReply::new(200, vec![7; size])), 1),
        ("rejected blob", constant(ScriptedReply::new(400, "what?")), 1),
        ("rejected blob", constant(ScriptedReply::new(204, "")), 1),
        ("has no blob", constant(ScriptedReply::new(404, "")), 1),
        ("denies anonymous access to x:1: no", constant(ScriptedReply::new(403, "no")), 1),
        ("too many redirects", constant(ScriptedReply::new(307, "").header("Location", "/v2/x/round")), 1),
    ];
    for (want, bend, requests) in cases {
        let server = {
            let digest = sample.layer(0).0;
            let sample = sample.clone();
            ScriptedServer::start(move |request| match request.path.contains("round") {
                true => ScriptedReply::new(307, "").header("Location", "/v2/x/round"),
                false if request.path.ends_with(&digest) => bend(request, sample.answer(request)),
                false => sample.answer(request),
            })
            .await
        };
        let begun = Instant::now();
        let world = if want == "stalled" { &impatient } else { &patient };
        let error = world.pull(&name(&server)).await.expect_err(want);
        assert!(error.to_string().contains(want), "want {want:?}, found: {error}");
        assert!(begun.elapsed() < LONGER_THAN_TIMEOUT, "{want}: {:?}", begun.elapsed());
        assert_eq!(server.requests(&sample.layer(0).0).len(), requests, "{want}");
    }
    for world in [patient, impatient] {
        world.assert_nothing().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_registry_times_out() {
    let world = ImageFixture::with(impatient());
    let (host, _task) = silent_server().await;
    let begun = Instant::now();
    let error = world.pull(&format!("{host}/x:1")).await.unwrap_err();
    assert!(matches!(&error, Error::Registry(RegistryError::Stalled { .. })), "{error}");
    assert!(begun.elapsed() < LONGER_THAN_TIMEOUT);
}
