//! Connections that break, stall and lie about what they carry.

use std::time::Instant;

use warren_image::{Error, RegistryError};

use crate::scripted::{LONG, Reply, Request, Sample, Scripted, Then, mute};
use crate::world::World;

const SIZE: usize = 2_000_000;

fn sample() -> Sample {
    Sample::new(1, &[SIZE])
}

/// A registry that is honest except for what `bend` makes of its answers about the layer.
async fn bent(sample: &Sample, bend: impl Fn(&Request, Reply) -> Reply + Send + Sync + 'static) -> Scripted {
    let (digest, sample) = (sample.layer(0).0, sample.clone());
    Scripted::start(move |request| match request.path.ends_with(&digest) {
        true => bend(request, sample.answer(request)),
        false => sample.answer(request),
    })
    .await
}

fn name(server: &Scripted) -> String {
    format!("{}/x:1", server.host())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_connection_is_gone_on_from_where_it_broke() {
    // More breaks than tries in a row: as long as bytes come it goes on. Both as a break in the middle of
    // what was promised and as an early end in order.
    let world = World::start();
    let sample = sample();
    let (digest, bytes) = sample.layer(0);
    let server = bent(&sample, |request, reply| match request.before % 2 {
        0 => reply.cut(300_000),
        _ => reply.cut(300_000).untold(),
    });
    let server = server.await;
    world.pull(&name(&server)).await.unwrap();
    let asked: Vec<_> = server.seen(&digest).iter().map(|request| request.from.unwrap_or(0)).collect();
    let want: Vec<_> = (0..).map(|each| each * 300_000).take_while(|from| *from < bytes.len()).collect();
    assert_eq!(asked, want, "no byte is fetched twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_cannot_resume_begins_again() {
    let world = World::start();
    let sample = sample();
    let whole = sample.layer(0).1;
    let server = bent(&sample, move |request, _| match request.before {
        0 => Reply::new(200, whole.clone()).cut(700_000),
        1 => Reply::new(200, whole.clone()).cut(1_500_000),
        _ => Reply::new(200, whole.clone()),
    });
    world.pull(&name(&server.await)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_connection_is_made_anew() {
    let world = World::start();
    let sample = sample();
    let server = bent(&sample, |request, reply| match request.before {
        0 => reply.cut(500_000).then(Then::Stall),
        1 => reply.cut(0).then(Then::Stall),
        _ => reply,
    });
    let server = server.await;
    world.pull(&name(&server)).await.unwrap();
    assert_eq!(server.seen(&sample.layer(0).0).last().unwrap().from, Some(500_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_with_troubles_is_asked_again_and_not_for_ever() {
    let sample = sample();
    let world = World::start();
    let busy = |status: u16| Reply::new(status, r#"{"errors":[{"message":"come later"}]}"#);
    for status in [429, 500, 502, 503, 504, 408] {
        let server = bent(&sample, move |request, reply| match request.before {
            0 => busy(status).header("Retry-After", "3600"),
            1 => busy(status),
            _ => reply,
        });
        let (server, begun) = (server.await, Instant::now());
        let pulled = world.pull(&name(&server)).await.unwrap();
        assert!(begun.elapsed() < LONG, "what a registry asks for is bounded");
        world.images.remove(&pulled.reference).await.unwrap();
    }
    let server = bent(&sample, move |_, _| busy(503)).await;
    let error = world.pull(&name(&server)).await.unwrap_err();
    assert!(matches!(&error, Error::Registry(RegistryError::Busy { .. })), "{error}");
    assert!(error.to_string().contains("503") && error.to_string().contains("come later"), "{error}");
    assert!(error.is_transient());
    assert_eq!(server.seen(&sample.layer(0).0).len(), 3);
    world.assert_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_second_try_mends_ends_the_pull() {
    let sample = sample();
    let world = World::start();
    let whole = sample.layer(0).1;
    let size = whole.len();
    let longer = [&whole[..], b"more"].concat();
    type Bend = Box<dyn Fn(&Request, Reply) -> Reply + Send + Sync>;
    let constant = |reply: Reply| -> Bend { Box::new(move |_, _| reply.clone()) };
    let cases: Vec<(&str, Bend, usize)> = vec![
        ("stalled", constant(Reply::new(200, whole.clone()).cut(0).then(Then::Stall)), 3),
        ("broke", constant(Reply::new(200, whole.clone()).cut(0)), 3),
        ("its manifest says", constant(Reply::new(200, &whole[..1000])), 1),
        ("its manifest says", constant(Reply::new(200, longer.clone())), 1),
        ("goes on after", constant(Reply::new(200, longer).untold()), 1),
        ("goes on after", constant(Reply::new(200, whole.clone()).then(Then::Repeat)), 1),
        ("ended after 1000 of", constant(Reply::new(200, &whole[..1000]).untold()), 3),
        (
            "bytes from 1000 on were wanted",
            Box::new(|request, reply| match request.before {
                0 => reply.cut(1000),
                _ => Reply::new(206, vec![0; 100]).header("Content-Range", "bytes 0-99/100"),
            }),
            2,
        ),
        (
            "it has 1000 bytes",
            Box::new(
                |request, reply| if request.before == 0 { reply.cut(1000) } else { Reply::new(416, "") },
            ),
            2,
        ),
        ("another digest", constant(Reply::new(200, vec![7; size])), 1),
        ("refuses blob", constant(Reply::new(400, "what?")), 1),
        ("refuses blob", constant(Reply::new(204, "")), 1),
        ("lacks blob", constant(Reply::new(404, "")), 1),
        ("does not give x:1 to the public: no", constant(Reply::new(403, "no")), 1),
        ("again and again", constant(Reply::new(307, "").header("Location", "/v2/x/round")), 1),
    ];
    for (want, bend, requests) in cases {
        let server = {
            let digest = sample.layer(0).0;
            let sample = sample.clone();
            Scripted::start(move |request| match request.path.contains("round") {
                true => Reply::new(307, "").header("Location", "/v2/x/round"),
                false if request.path.ends_with(&digest) => bend(request, sample.answer(request)),
                false => sample.answer(request),
            })
            .await
        };
        let begun = Instant::now();
        let error = world.pull(&name(&server)).await.expect_err(want);
        assert!(error.to_string().contains(want), "want {want:?}, found: {error}");
        assert!(begun.elapsed() < LONG, "{want}: {:?}", begun.elapsed());
        assert_eq!(server.seen(&sample.layer(0).0).len(), requests, "{want}");
    }
    world.assert_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_never_speaks_is_given_up() {
    let world = World::start();
    let (host, _task) = mute().await;
    let begun = Instant::now();
    let error = world.pull(&format!("{host}/x:1")).await.unwrap_err();
    assert!(matches!(&error, Error::Registry(RegistryError::Stalled { .. })), "{error}");
    assert!(begun.elapsed() < LONG);
}
