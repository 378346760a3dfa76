//! Who may pull: tokens, redirects, and what is told to whom.

use warren_image::{Credentials, Error, RegistryError};

use crate::scripted::{Reply, Request, Sample, Scripted};
use crate::world::World;

/// `anna:secret` as HTTP sends it.
const BASIC: &str = "Basic YW5uYTpzZWNyZXQ=";

fn anna() -> Option<Credentials> {
    Some(Credentials { user: "anna".into(), password: "secret".into() })
}

/// A token service that gives out `token-1`, `token-2`, ..., to those whom `knows` lets.
async fn tokens(knows: impl Fn(Option<&str>) -> bool + Send + Sync + 'static) -> Scripted {
    let given = std::sync::atomic::AtomicUsize::new(0);
    Scripted::start(move |request| match knows(request.authorization.as_deref()) {
        false => Reply::new(401, r#"{"errors":[{"message":"bad password"}]}"#),
        true => {
            let number = 1 + given.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let key = if number.is_multiple_of(2) { "token" } else { "access_token" };
            Reply::new(200, format!(r#"{{"{key}":"token-{number}","expires_in":60}}"#))
        }
    })
    .await
}

fn demand(tokens: &Scripted) -> Reply {
    let challenge = format!(r#"Bearer realm="http://{}/token",service="the registry""#, tokens.host());
    Reply::new(401, "authentication required").header("WWW-Authenticate", &challenge)
}

/// A registry that wants a token which `takes` likes.
async fn registry(
    sample: Sample,
    tokens: &Scripted,
    takes: impl Fn(&Request, &str) -> bool + Send + Sync + 'static,
) -> Scripted {
    let demand = demand(tokens);
    Scripted::start(move |request| match &request.authorization {
        Some(token) if takes(request, token) => sample.answer(request),
        _ => demand.clone(),
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_fetched_once_and_used_for_all() {
    let world = World::start();
    for (user, knows) in [(None, None), (anna(), Some(BASIC))] {
        let tokens = tokens(move |authorization| authorization == knows).await;
        let sample = Sample::new(20, &[1000, 2000, 3000]);
        let registry = registry(sample, &tokens, |_, token| token == "Bearer token-1").await;
        let pulled = world.pull_as(&format!("{}/team/x:1", registry.host()), user).await.unwrap();
        let asked = tokens.seen("");
        assert_eq!(asked.len(), 1, "{asked:?}");
        assert!(asked[0].path.contains("service=the+registry"), "{asked:?}");
        assert!(asked[0].path.contains("scope=repository%3Ateam%2Fx%3Apull"), "{asked:?}");
        let without = registry.seen("").iter().filter(|request| request.authorization.is_none()).count();
        assert_eq!(without, 1, "only the first request is made without the token");
        world.images.remove(&pulled.reference).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_ran_out_is_renewed() {
    let world = World::start();
    let tokens = tokens(|_| true).await;
    let sample = Sample::new(21, &[1000, 2000, 3000, 4000]);
    // The first token does for the manifest only.
    let registry = registry(sample, &tokens, |request, token| match request.path.contains("manifests") {
        true => token == "Bearer token-1",
        false => token == "Bearer token-2",
    });
    let registry = registry.await;
    world.pull(&format!("{}/x:1", registry.host())).await.unwrap();
    assert_eq!(tokens.seen("").len(), 2, "layers that are refused at the same time share a new token");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_say_who_was_refused() {
    let world = World::start();
    let nobody = tokens(|_| false).await;
    let everybody = tokens(|_| true).await;
    let garbage = Scripted::start(|_| Reply::new(200, "{\"expires_in\":3}")).await;
    let broken = Scripted::start(|_| Reply::new(500, "oh")).await;
    type Check = fn(&RegistryError) -> bool;
    let cases: [(&Scripted, _, Check, &str); 6] = [
        (&nobody, anna(), |e| matches!(e, RegistryError::Denied { .. }), "user \"anna\": bad password"),
        (&nobody, None, |e| matches!(e, RegistryError::NeedsCredentials { .. }), "bad password"),
        (&everybody, anna(), |e| matches!(e, RegistryError::Denied { .. }), "authentication required"),
        (&everybody, None, |e| matches!(e, RegistryError::NeedsCredentials { .. }), "needs credentials"),
        (&garbage, None, |e| matches!(e, RegistryError::Nonsense { .. }), "no token"),
        (&broken, None, |e| matches!(e, RegistryError::Busy { .. }), "the fetching of a token: oh"),
    ];
    for (tokens, user, check, want) in cases {
        let registry = registry(Sample::new(22, &[1000]), tokens, |_, _| false).await;
        let error = world.pull_as(&format!("{}/x:1", registry.host()), user).await.unwrap_err();
        let Error::Registry(refusal) = &error else { panic!("{error}") };
        assert!(check(refusal) && error.to_string().contains(want), "want {want}, found {error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    // A password is told to nobody who asks for it in a way that is not known.
    let odd = Scripted::start(|_| Reply::new(401, "?").header("WWW-Authenticate", "Negotiate")).await;
    let error = world.pull_as(&format!("{}/x:1", odd.host()), anna()).await.unwrap_err();
    assert!(matches!(error, Error::Registry(RegistryError::Denied { .. })), "{error}");
    assert!(odd.seen("").iter().all(|request| request.authorization.is_none()));
    world.assert_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_to_another_host_takes_no_credentials_along() {
    let world = World::start();
    let sample = Sample::new(23, &[1000, 2000]);
    let (blobs, manifest) = (sample.clone(), sample);
    let storage = Scripted::start(move |request| blobs.answer(request)).await;
    let elsewhere = storage.host();
    let registry = Scripted::start(move |request| match request.authorization.as_deref() {
        Some(BASIC) if request.path.contains("blobs") => {
            let there = format!("http://{elsewhere}{}", request.path);
            Reply::new(307, "").header("Location", &there)
        }
        Some(BASIC) => manifest.answer(request),
        _ => Reply::new(401, "").header("WWW-Authenticate", "Basic realm=\"x\""),
    });
    let registry = registry.await;
    world.pull_as(&format!("{}/x:1", registry.host()), anna()).await.unwrap();
    let asked = storage.seen("blobs");
    assert_eq!(asked.len(), 3);
    assert!(asked.iter().all(|request| request.authorization.is_none()), "{asked:?}");
}
