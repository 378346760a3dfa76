//! Shared pulls: concurrent callers, and callers that cancel.

use futures::FutureExt;
use tokio::sync::watch;
use warren_image::{Error, PullHandle, Reference, RegistryAccess, RegistryCredentials, RegistryError};

use crate::scripted::{AfterBody, LONGER_THAN_TIMEOUT, SampleImage, ScriptedReply, ScriptedServer};
use crate::world::{ImageFixture, impatient};

/// A registry that withholds the last byte of the layer until it is released.
struct GatedRegistry {
    server: ScriptedServer,
    open: watch::Sender<bool>,
    reference: Reference,
    layer: String,
}

impl GatedRegistry {
    async fn start() -> Self {
        let (open, is_open) = watch::channel(false);
        let sample = SampleImage::new(5, &[400_000]);
        let layer = sample.layer(0).0;
        let digest = layer.clone();
        let server = ScriptedServer::start(move |request| {
            let reply = sample.answer(request);
            match request.path.ends_with(&digest) && !*is_open.borrow() {
                true => reply.cut(300_000).closed_when(&is_open),
                false => reply,
            }
        })
        .await;
        let reference = format!("{}/x:1", server.host()).parse().unwrap();
        Self { server, open, reference, layer }
    }

    fn open(&self) {
        self.open.send_replace(true);
    }

    /// Waits until the pull has received some of what is before the gate.
    async fn wait_until_reached(&self, pull: &PullHandle) {
        let mut progress = pull.progress();
        let at_gate = progress.wait_for(|progress| progress.bytes().0 > 0);
        tokio::time::timeout(LONGER_THAN_TIMEOUT, at_gate).await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn same_image_is_pulled_once() {
    let (world, gate) = (ImageFixture::start(), GatedRegistry::start().await);
    let mut pulls: Vec<PullHandle> =
        (0..8).map(|_| world.images.clone().pull(&gate.reference, None)).collect();
    gate.wait_until_reached(&pulls[0]).await;
    // The first caller cancels, as do some others while they wait.
    drop(pulls.remove(0));
    assert!(pulls[0].outcome().now_or_never().is_none());
    pulls.truncate(4);
    let late = world.images.pull(&gate.reference, None);
    assert!(late.progress().borrow().bytes().0 > 0, "it has the progress of the others");
    gate.open();
    pulls.push(late);
    let outcomes = futures::future::join_all(pulls.iter().map(PullHandle::outcome)).await;
    for outcome in &outcomes {
        assert_eq!(outcome.as_ref().unwrap(), outcomes[0].as_ref().unwrap());
    }
    assert_eq!(gate.server.requests("manifests").len(), 1);
    let firsts = gate.server.requests(&gate.layer);
    assert_eq!(firsts.iter().filter(|request| request.from.is_none()).count(), 1);

    // The pull has ended: the next one asks again.
    world.images.pull(&gate.reference, None).outcome().await.unwrap();
    assert_eq!(gate.server.requests("manifests").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn abandoned_pull_ends_and_leaves_nothing() {
    let (world, gate) = (ImageFixture::start(), GatedRegistry::start().await);
    let pulls = [(); 3].map(|()| world.images.pull(&gate.reference, None));
    gate.wait_until_reached(&pulls[0]).await;
    assert!(!world.stored_objects().is_empty());
    let waiting = tokio::spawn({
        let pull = pulls[1].clone();
        async move { pull.outcome().await }
    });
    drop(pulls);
    assert!(!world.stored_objects().is_empty(), "one still waits");
    waiting.abort();
    world.assert_nothing().await;
    gate.open();
    world.images.pull(&gate.reference, None).outcome().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_of_active_pulls_are_kept() {
    let (world, gate) = (ImageFixture::start(), GatedRegistry::start().await);
    let pull = world.images.pull(&gate.reference, None);
    gate.wait_until_reached(&pull).await;
    world.ctr(&["leases", "create", "--id", "stray", "warren.import=1"]);
    assert_eq!(world.images.sweep_leases().await.unwrap(), ["stray"]);
    gate.open();
    pull.outcome().await.unwrap();
    assert_eq!(world.images.sweep_leases().await.unwrap(), Vec::<String>::new());
    assert!(world.images.get(&gate.reference).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_pull_is_not_cached() {
    let world = ImageFixture::start();
    let sample = SampleImage::new(6, &[1000]);
    let server = ScriptedServer::start(move |request| match request.path.contains("manifests") {
        true if request.before == 0 => ScriptedReply::new(404, ""),
        _ => sample.answer(request),
    });
    let server = server.await;
    let reference: Reference = format!("{}/x:1", server.host()).parse().unwrap();
    let failed = world.images.pull(&reference, None);
    let error = failed.outcome().await.unwrap_err();
    assert!(matches!(error, Error::Registry(RegistryError::UnknownImage { .. })), "{error}");
    // Although a caller still holds the failed pull.
    world.images.pull(&reference, None).outcome().await.unwrap();
    assert!(failed.outcome().await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn pulls_with_different_credentials_are_separate() {
    let world = ImageFixture::start();
    let sample = SampleImage::new(7, &[1000]);
    let server = ScriptedServer::start(move |request| match request.authorization.as_deref() {
        Some("Basic YW5uYTpzZWNyZXQ=") => sample.answer(request),
        _ => ScriptedReply::new(401, "who?").header("WWW-Authenticate", "Basic realm=\"x\""),
    })
    .await;
    let reference: Reference = format!("{}/x:1", server.host()).parse().unwrap();
    let anna = RegistryCredentials { user: "anna".into(), password: "secret".into() };
    let anna = RegistryAccess::Password(anna);
    let pulls = [Some(anna), None].map(|user| world.images.pull(&reference, user));
    assert!(pulls[0].outcome().await.is_ok());
    let error = pulls[1].outcome().await.unwrap_err();
    assert!(matches!(error, Error::Registry(RegistryError::NeedsCredentials { .. })), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pull_times_out() {
    // A registry that sends a few bytes just before each stall timeout.
    let mut registries = impatient();
    registries.policy.pull_timeout = std::time::Duration::from_secs(2);
    let world = ImageFixture::with(registries);
    let sample = SampleImage::new(8, &[1_000_000]);
    let layer = sample.layer(0).0;
    let server = ScriptedServer::start(move |request| match request.path.ends_with(&layer) {
        true => sample.answer(request).cut(10).after_body(AfterBody::Stall),
        false => sample.answer(request),
    });
    let server = server.await;
    let error = world.pull(&format!("{}/x:1", server.host())).await.unwrap_err();
    assert!(matches!(error, Error::TooSlow { .. }) && error.is_transient(), "{error}");
    world.assert_nothing().await;
}
