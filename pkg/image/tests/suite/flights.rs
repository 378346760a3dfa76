//! Many who want the same, and some who no longer do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt;
use warren_image::{Credentials, Error, Pull, Reference, RegistryError};

use crate::scripted::{LONG, Reply, Sample, Scripted, Then};
use crate::world::{World, registries};

/// A registry that keeps the last byte of the layer back until it is let go.
struct Gate {
    server: Scripted,
    open: Arc<AtomicBool>,
    reference: Reference,
    layer: String,
}

impl Gate {
    async fn start() -> Self {
        let open = Arc::new(AtomicBool::new(false));
        let (sample, is_open) = (Sample::new(5, &[400_000]), open.clone());
        let layer = sample.layer(0).0;
        let digest = layer.clone();
        let server = Scripted::start(move |request| {
            let reply = sample.answer(request);
            match request.path.ends_with(&digest) && !is_open.load(Ordering::SeqCst) {
                true => reply.cut(300_000).then(Then::Stall),
                false => reply,
            }
        })
        .await;
        let reference = format!("{}/x:1", server.host()).parse().unwrap();
        Self { server, open, reference, layer }
    }

    fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }

    /// Waits until the pull has what comes before the gate.
    async fn reached(&self, pull: &Pull) {
        let mut progress = pull.progress();
        let at_gate = progress.wait_for(|progress| progress.bytes().0 > 0);
        tokio::time::timeout(LONG, at_gate).await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn those_who_want_the_same_share_one_pull() {
    let (world, gate) = (World::start(), Gate::start().await);
    let mut pulls: Vec<Pull> = (0..8).map(|_| world.images.clone().pull(&gate.reference, None)).collect();
    gate.reached(&pulls[0]).await;
    // The first one gives up, as do some others while they wait.
    drop(pulls.remove(0));
    assert!(pulls[0].outcome().now_or_never().is_none());
    pulls.truncate(4);
    let late = world.images.pull(&gate.reference, None);
    assert_eq!(*late.progress().borrow(), *pulls[0].progress().borrow());
    gate.open();
    pulls.push(late);
    let outcomes = futures::future::join_all(pulls.iter().map(Pull::outcome)).await;
    for outcome in &outcomes {
        assert_eq!(outcome.as_ref().unwrap(), outcomes[0].as_ref().unwrap());
    }
    assert_eq!(gate.server.seen("manifests").len(), 1);
    let firsts = gate.server.seen(&gate.layer);
    assert_eq!(firsts.iter().filter(|request| request.from.is_none()).count(), 1);

    // It is over: the next one asks again.
    world.images.pull(&gate.reference, None).outcome().await.unwrap();
    assert_eq!(gate.server.seen("manifests").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_nobody_waits_for_ends_and_leaves_nothing() {
    // On a busy machine the looks below take longer than a stall lasts before the pull asks again, and then it is done.
    let mut patient = registries();
    patient.patience.stall = LONG;
    let (world, gate) = (World::with(patient), Gate::start().await);
    let pulls = [(); 3].map(|()| world.images.pull(&gate.reference, None));
    gate.reached(&pulls[0]).await;
    assert!(!world.stored().is_empty());
    let waiting = tokio::spawn({
        let pull = pulls[1].clone();
        async move { pull.outcome().await }
    });
    drop(pulls);
    assert!(!world.stored().is_empty(), "one still waits");
    waiting.abort();
    world.assert_nothing().await;
    gate.open();
    world.images.pull(&gate.reference, None).outcome().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_of_pulls_under_way_are_not_swept() {
    let (world, gate) = (World::start(), Gate::start().await);
    let pull = world.images.pull(&gate.reference, None);
    gate.reached(&pull).await;
    world.ctr(&["leases", "create", "--id", "stray", "warren.import=1"]);
    assert_eq!(world.images.sweep_leases().await.unwrap(), ["stray"]);
    gate.open();
    pull.outcome().await.unwrap();
    assert_eq!(world.images.sweep_leases().await.unwrap(), Vec::<String>::new());
    assert!(world.images.get(&gate.reference).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_pull_is_not_remembered() {
    let world = World::start();
    let sample = Sample::new(6, &[1000]);
    let server = Scripted::start(move |request| match request.path.contains("manifests") {
        true if request.before == 0 => Reply::new(404, ""),
        _ => sample.answer(request),
    });
    let server = server.await;
    let reference: Reference = format!("{}/x:1", server.host()).parse().unwrap();
    let failed = world.images.pull(&reference, None);
    let error = failed.outcome().await.unwrap_err();
    assert!(matches!(error, Error::Registry(RegistryError::UnknownImage { .. })), "{error}");
    // Although somebody still holds the one that failed.
    world.images.pull(&reference, None).outcome().await.unwrap();
    assert!(failed.outcome().await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn users_do_not_share_a_pull() {
    let world = World::start();
    let sample = Sample::new(7, &[1000]);
    let server = Scripted::start(move |request| match request.authorization.as_deref() {
        Some("Basic YW5uYTpzZWNyZXQ=") => sample.answer(request),
        _ => Reply::new(401, "who?").header("WWW-Authenticate", "Basic realm=\"x\""),
    })
    .await;
    let reference: Reference = format!("{}/x:1", server.host()).parse().unwrap();
    let anna = Credentials { user: "anna".into(), password: "secret".into() };
    let pulls = [Some(anna), None].map(|user| world.images.pull(&reference, user));
    assert!(pulls[0].outcome().await.is_ok());
    let error = pulls[1].outcome().await.unwrap_err();
    assert!(matches!(error, Error::Registry(RegistryError::NeedsCredentials { .. })), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_has_an_end() {
    // A registry that gives a few bytes just before its silence is noticed, each time.
    let mut registries = registries();
    registries.patience.pull = std::time::Duration::from_secs(2);
    let world = World::with(registries);
    let sample = Sample::new(8, &[1_000_000]);
    let layer = sample.layer(0).0;
    let server = Scripted::start(move |request| match request.path.ends_with(&layer) {
        true => sample.answer(request).cut(10).then(Then::Stall),
        false => sample.answer(request),
    });
    let server = server.await;
    let error = world.pull(&format!("{}/x:1", server.host())).await.unwrap_err();
    assert!(matches!(error, Error::TooSlow { .. }) && error.is_transient(), "{error}");
    world.assert_nothing().await;
}
