//! Access control: tokens, redirects, and which server receives credentials.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use warren_image::{
    DelegatedTokens, Error, RegistryAccess, RegistryCredentials, RegistryError, RenewAccess, RenewalFailure,
    RepositoryToken,
};
use warren_types::{Id, SecretObjectId};

use crate::scripted::{SampleImage, ScriptedReply, ScriptedRequest, ScriptedServer};
use crate::world::ImageFixture;

/// `anna:secret` as HTTP sends it.
const BASIC: &str = "Basic YW5uYTpzZWNyZXQ=";

fn anna() -> Option<RegistryCredentials> {
    Some(RegistryCredentials { user: "anna".into(), password: "secret".into() })
}

/// A token service that issues `token-1`, `token-2`, ... to the users that `knows` accepts.
async fn tokens(knows: impl Fn(Option<&str>) -> bool + Send + Sync + 'static) -> ScriptedServer {
    let given = std::sync::atomic::AtomicUsize::new(0);
    ScriptedServer::start(move |request| match knows(request.authorization.as_deref()) {
        false => ScriptedReply::new(401, r#"{"errors":[{"message":"bad password"}]}"#),
        true => {
            let number = 1 + given.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let key = if number.is_multiple_of(2) { "token" } else { "access_token" };
            ScriptedReply::new(200, format!(r#"{{"{key}":"token-{number}","expires_in":60}}"#))
        }
    })
    .await
}

fn token_challenge(tokens: &ScriptedServer) -> ScriptedReply {
    let challenge = format!(r#"Bearer realm="http://{}/token",service="the registry""#, tokens.host());
    ScriptedReply::new(401, "authentication required").header("WWW-Authenticate", &challenge)
}

/// A registry that requires a token accepted by `takes`.
async fn registry(
    sample: SampleImage,
    tokens: &ScriptedServer,
    takes: impl Fn(&ScriptedRequest, &str) -> bool + Send + Sync + 'static,
) -> ScriptedServer {
    let demand = token_challenge(tokens);
    ScriptedServer::start(move |request| match &request.authorization {
        Some(token) if takes(request, token) => sample.answer(request),
        _ => demand.clone(),
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_fetched_once_and_used_for_all() {
    let world = ImageFixture::start();
    for (user, knows) in [(None, None), (anna(), Some(BASIC))] {
        let tokens = tokens(move |authorization| authorization == knows).await;
        let sample = SampleImage::new(20, &[1000, 2000, 3000]);
        let registry = registry(sample, &tokens, |_, token| token == "Bearer token-1").await;
        let pulled = world.pull_as(&format!("{}/team/x:1", registry.host()), user).await.unwrap();
        let asked = tokens.requests("");
        assert_eq!(asked.len(), 1, "{asked:?}");
        assert!(asked[0].path.contains("service=the+registry"), "{asked:?}");
        assert!(asked[0].path.contains("scope=repository%3Ateam%2Fx%3Apull"), "{asked:?}");
        let without = registry.requests("").iter().filter(|request| request.authorization.is_none()).count();
        assert_eq!(without, 1, "only the first request is made without the token");
        world.images.remove(&pulled.reference).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_token_is_renewed() {
    let world = ImageFixture::start();
    let tokens = tokens(|_| true).await;
    let sample = SampleImage::new(21, &[1000, 2000, 3000, 4000]);
    // The first token is valid for the manifest only.
    let registry = registry(sample, &tokens, |request, token| match request.path.contains("manifests") {
        true => token == "Bearer token-1",
        false => token == "Bearer token-2",
    });
    let registry = registry.await;
    world.pull(&format!("{}/x:1", registry.host())).await.unwrap();
    assert_eq!(tokens.requests("").len(), 2, "layers that are refused at the same time share a new token");
}

#[tokio::test(flavor = "multi_thread")]
async fn denial_names_user() {
    let world = ImageFixture::start();
    let nobody = tokens(|_| false).await;
    let everybody = tokens(|_| true).await;
    let garbage = ScriptedServer::start(|_| ScriptedReply::new(200, "{\"expires_in\":3}")).await;
    let broken = ScriptedServer::start(|_| ScriptedReply::new(500, "oh")).await;
    type Check = fn(&RegistryError) -> bool;
    let cases: [(&ScriptedServer, _, Check, &str); 6] = [
        (&nobody, anna(), |e| matches!(e, RegistryError::Denied { .. }), "user \"anna\": bad password"),
        (&nobody, None, |e| matches!(e, RegistryError::NeedsCredentials { .. }), "bad password"),
        (&everybody, anna(), |e| matches!(e, RegistryError::Denied { .. }), "authentication required"),
        (&everybody, None, |e| matches!(e, RegistryError::NeedsCredentials { .. }), "needs credentials"),
        (&garbage, None, |e| matches!(e, RegistryError::InvalidAnswer { .. }), "no token"),
        (&broken, None, |e| matches!(e, RegistryError::Busy { .. }), "for the token request: oh"),
    ];
    for (tokens, user, check, want) in cases {
        let registry = registry(SampleImage::new(22, &[1000]), tokens, |_, _| false).await;
        let error = world.pull_as(&format!("{}/x:1", registry.host()), user).await.unwrap_err();
        let Error::Registry(refusal) = &error else { panic!("{error}") };
        assert!(check(refusal) && error.to_string().contains(want), "want {want}, found {error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    // A password is not sent to a registry with an unknown authentication scheme.
    let odd =
        ScriptedServer::start(|_| ScriptedReply::new(401, "?").header("WWW-Authenticate", "Negotiate")).await;
    let error = world.pull_as(&format!("{}/x:1", odd.host()), anna()).await.unwrap_err();
    assert!(matches!(error, Error::Registry(RegistryError::Denied { .. })), "{error}");
    assert!(odd.requests("").iter().all(|request| request.authorization.is_none()));
    world.assert_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cross_host_redirect_drops_credentials() {
    let world = ImageFixture::start();
    let sample = SampleImage::new(23, &[1000, 2000]);
    let (blobs, manifest) = (sample.clone(), sample);
    let storage = ScriptedServer::start(move |request| blobs.answer(request)).await;
    let elsewhere = storage.host();
    let registry = ScriptedServer::start(move |request| match request.authorization.as_deref() {
        Some(BASIC) if request.path.contains("blobs") => {
            let there = format!("http://{elsewhere}{}", request.path);
            ScriptedReply::new(307, "").header("Location", &there)
        }
        Some(BASIC) => manifest.answer(request),
        _ => ScriptedReply::new(401, "").header("WWW-Authenticate", "Basic realm=\"x\""),
    });
    let registry = registry.await;
    world.pull_as(&format!("{}/x:1", registry.host()), anna()).await.unwrap();
    let asked = storage.requests("blobs");
    assert_eq!(asked.len(), 3);
    assert!(asked.iter().all(|request| request.authorization.is_none()), "{asked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn host_behind_a_redirect_gets_no_password() {
    let world = ImageFixture::start();
    let tokens = tokens(|_| true).await;
    let demand = token_challenge(&tokens);
    let storage = ScriptedServer::start(move |_| demand.clone()).await;
    let (elsewhere, sample) = (storage.host(), SampleImage::new(26, &[1000]));
    let registry = ScriptedServer::start(move |request| match request.authorization.as_deref() {
        Some(_) if request.path.contains("blobs") => {
            ScriptedReply::new(307, "").header("Location", &format!("http://{elsewhere}{}", request.path))
        }
        Some(_) => sample.answer(request),
        None => ScriptedReply::new(401, "").header("WWW-Authenticate", "Basic realm=\"x\""),
    });
    let (registry, manager) = (registry.await, FakeManager::new(0, true));
    let name = format!("{}/x:1", registry.host());
    for access in [anna().map(RegistryAccess::Password), Some(manager.access("first"))] {
        let error = world.pull_with(&name, access).await.unwrap_err();
        assert!(error.to_string().ends_with("it redirects to 127.0.0.1, which demands a login"), "{error}");
    }
    assert!(tokens.requests("").is_empty(), "the other host chose the token service");
    assert_eq!(manager.asked(), 0, "the registry did not refuse the token");
}

/// Gives tokens for one repository, after some failures.
#[derive(Clone, Debug)]
struct FakeManager {
    asked: Arc<AtomicU32>,
    failures: u32,
    is_transient: bool,
}

impl FakeManager {
    fn new(failures: u32, is_transient: bool) -> Self {
        Self { asked: Arc::default(), failures, is_transient }
    }

    fn asked(&self) -> u32 {
        self.asked.load(Ordering::SeqCst)
    }

    fn access(&self, token: &str) -> RegistryAccess {
        RegistryAccess::Tokens(DelegatedTokens {
            credential: (SecretObjectId(Id(1)), 1),
            user: "anna".to_owned(),
            token: RepositoryToken::new(token.to_owned().into(), Duration::from_secs(300)).unwrap(),
            source: Arc::new(self.clone()),
        })
    }
}

#[tonic::async_trait]
impl RenewAccess for FakeManager {
    async fn renew(&self) -> Result<Option<RegistryAccess>, RenewalFailure> {
        let number = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        if number <= self.failures {
            let reason = "the manager refuses".to_owned();
            return Err(RenewalFailure { reason, is_transient: self.is_transient });
        }
        Ok(Some(self.access("later")))
    }
}

/// A registry that accepts the token `first` for the manifest only, and `later` for the rest.
async fn forgetful_registry(
    sample: SampleImage,
    tokens: &ScriptedServer,
    blobs: impl Fn(&ScriptedRequest) -> ScriptedReply + Send + Sync + 'static,
) -> ScriptedServer {
    let demand = token_challenge(tokens);
    ScriptedServer::start(move |request| {
        match (request.authorization.as_deref(), request.path.contains("manifests")) {
            (Some("Bearer first"), true) => sample.answer(request),
            (Some("Bearer later"), false) => blobs(request),
            _ => demand.clone(),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn token_of_a_manager_is_renewed_and_sent_to_its_registry_only() {
    let world = ImageFixture::start();
    let tokens = tokens(|_| true).await;
    let sample = SampleImage::new(24, &[1000, 2000, 3000, 4000]);
    let stored = sample.clone();
    let storage = ScriptedServer::start(move |request| stored.answer(request)).await;
    let elsewhere = storage.host();
    let registry = forgetful_registry(sample, &tokens, move |request| {
        ScriptedReply::new(307, "").header("Location", &format!("http://{elsewhere}{}", request.path))
    });
    let (registry, manager) = (registry.await, FakeManager::new(0, true));
    world.pull_with(&format!("{}/x:1", registry.host()), Some(manager.access("first"))).await.unwrap();
    assert_eq!(manager.asked(), 1, "all layers use the second token");
    assert!(tokens.requests("").is_empty(), "there is no password to ask with");
    assert!(registry.requests("").iter().all(|request| request.authorization.is_some()));
    let redirected = storage.requests("blobs");
    assert_eq!(redirected.len(), 5);
    assert!(redirected.iter().all(|request| request.authorization.is_none()), "{redirected:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_of_tokens_of_a_manager_end_the_pull() {
    let world = ImageFixture::start();
    let tokens = tokens(|_| true).await;
    let sample = SampleImage::new(25, &[1000]);
    let blobs = sample.clone();
    let registry = forgetful_registry(sample, &tokens, move |request| blobs.answer(request)).await;
    let name = format!("{}/x:1", registry.host());
    let refusing = FakeManager::new(u32::MAX, false);
    let error = world.pull_with(&name, Some(refusing.access("first"))).await.unwrap_err();
    let text = error.to_string();
    assert!(!error.is_transient() && text.ends_with("was not renewed: the manager refuses"), "{text}");
    assert_eq!(refusing.asked(), 1);
    // A registry that accepts no token is asked once more, not forever.
    let manager = FakeManager::new(0, true);
    let error = world.pull_with(&name, Some(manager.access("forged"))).await.unwrap_err();
    assert!(matches!(error, Error::Registry(RegistryError::Denied { .. })), "{error}");
    assert!(error.to_string().contains("user \"anna\""), "{error}");
    assert_eq!(manager.asked(), 1);
    world.assert_nothing().await;
    // A manager that does not answer is asked again.
    let absent = FakeManager::new(2, true);
    world.pull_with(&name, Some(absent.access("first"))).await.unwrap();
    assert_eq!(absent.asked(), 3);
}
