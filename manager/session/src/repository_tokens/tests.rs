use std::sync::atomic::{AtomicUsize, Ordering};

use warren_registry::{Digest, ImageSignature, RepositoryToken, ResolvedName};
use warren_types::Id;

use super::*;

/// Gives `token-1`, `token-2`, ... for the repository `tokens`, with the lifetime in seconds, and other answers for
/// others.
#[derive(Debug, Default)]
struct FakeRegistry {
    asked: AtomicUsize,
    lifetime: u64,
}

#[tonic::async_trait]
impl ResolveNames for FakeRegistry {
    async fn resolve(
        &self,
        _: &Reference,
        _: Option<RegistryCredentials>,
    ) -> Result<ResolvedName, RegistryError> {
        panic!("nothing is resolved")
    }

    async fn signatures(
        &self,
        _: &Reference,
        _: &Digest,
        _: Option<RegistryCredentials>,
    ) -> Result<Vec<ImageSignature>, RegistryError> {
        panic!("no signature is asked for")
    }

    async fn pull_grant(&self, reference: &Reference, credentials: RegistryCredentials) -> Answer {
        let number = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        assert_eq!((credentials.user.as_str(), credentials.password.as_str()), ("ann", "hush"));
        let (registry, reason) = (reference.domain().to_owned(), "no route".to_owned());
        match reference.path() {
            "public" => Ok(PullGrant::NotNeeded),
            "basic" => Ok(PullGrant::PasswordOnly),
            "offline" => Err(RegistryError::Unreachable { registry, reason }),
            "foreign" => Err(RegistryError::Tls { registry, reason, advice: "" }),
            "silent" => std::future::pending().await,
            "denied" => {
                let (image, user, message) = ("denied:1".to_owned(), credentials.user.clone(), reason);
                Err(RegistryError::Denied { registry, image, user, message })
            }
            path => {
                tokio::task::yield_now().await;
                let text = format!("{path}-{number}");
                let lifetime = Duration::from_secs(self.lifetime);
                Ok(PullGrant::Token(RepositoryToken::new(text.into(), lifetime).unwrap()))
            }
        }
    }
}

fn credential(image: &str, version: u64, is_token_only: bool) -> PullCredential {
    PullCredential {
        version: (SecretObjectId(Id(9)), version),
        credentials: RegistryCredentials { user: "ann".to_owned(), password: "hush".to_owned() },
        is_token_only,
        reference: Reference::parse(&format!("r.lan/{image}:1")).unwrap(),
    }
}

/// A registry whose tokens have this lifetime in seconds.
fn registry(lifetime: u64) -> (Arc<FakeRegistry>, RepositoryTokens) {
    let registry = Arc::new(FakeRegistry { lifetime, ..FakeRegistry::default() });
    (registry.clone(), RepositoryTokens::new(registry))
}

async fn fetch(
    tokens: &RepositoryTokens,
    credential: &PullCredential,
    is_renewal: bool,
) -> Result<Option<Access>, Problem> {
    let bytes = tokens.access(NodeId(Id(1)), credential, is_renewal).await?;
    Ok(bytes.and_then(|bytes| v1::RegistryAccess::decode(bytes.as_slice()).unwrap().access))
}

/// The token that a node gets, and how many seconds it is valid.
async fn token(tokens: &RepositoryTokens, credential: &PullCredential, is_renewal: bool) -> (String, u64) {
    match fetch(tokens, credential, is_renewal).await {
        Ok(Some(Access::Token(token))) => (token.token, token.valid_for_ms / 1000),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn node_gets_a_token_of_its_repository_and_no_password() {
    let (_, tokens) = registry(300);
    let expected = v1::RepositoryToken {
        registry: "r.lan".to_owned(),
        repository: "shop/app".to_owned(),
        user: "ann".to_owned(),
        token: "shop/app-1".to_owned(),
        valid_for_ms: 300_000,
    };
    let found = fetch(&tokens, &credential("shop/app", 1, false), false).await.unwrap().unwrap();
    assert_eq!(found, Access::Token(expected));
    assert_eq!(fetch(&tokens, &credential("public", 1, false), false).await, Ok(None));
    let login = v1::RegistryLogin { user: "ann".to_owned(), password: "hush".to_owned() };
    for path in ["basic", "offline", "foreign", "silent"] {
        let found = fetch(&tokens, &credential(path, 1, false), false).await;
        assert_eq!(found, Ok(Some(Access::Login(login.clone()))), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn password_of_a_credential_for_tokens_only_is_never_given() {
    let (_, tokens) = registry(300);
    let found = fetch(&tokens, &credential("shop/app", 1, true), false).await.unwrap();
    assert!(matches!(found, Some(Access::Token(_))));
    assert_eq!(fetch(&tokens, &credential("public", 1, true), false).await, Ok(None));
    for (path, code, words) in [
        ("basic", Code::FailedPrecondition, "has no tokens for single repositories"),
        (
            "offline",
            Code::Unavailable,
            "tokens only: cannot reach registry r.lan: no route; let managers reach",
        ),
        ("foreign", Code::FailedPrecondition, "TLS connection to registry r.lan failed"),
        ("silent", Code::Unavailable, "registry r.lan stalled: no data for the token request in 10s"),
    ] {
        let refused = fetch(&tokens, &credential(path, 1, true), false).await.unwrap_err();
        assert_eq!((refused.code, refused.reason.as_str()), (code, NO_REGISTRY_ACCESS), "{refused}");
        assert!(refused.message.contains(words) && !refused.message.contains("hush"), "{refused}");
        assert!(refused.message.contains("`warren registry login r.lan` without --token-only"), "{refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn wrong_password_is_refused_and_not_tried_by_every_node() {
    let (registry, tokens) = registry(300);
    for is_token_only in [false, true] {
        let refused = fetch(&tokens, &credential("denied", 1, is_token_only), false).await.unwrap_err();
        assert_eq!((refused.code, refused.reason.as_str()), (Code::FailedPrecondition, NO_REGISTRY_ACCESS));
        let expected = "registry r.lan denies denied:1 to user \"ann\": no route; correct the credentials with \
                        `warren registry login r.lan`, or grant the user access";
        assert_eq!(refused.message, expected);
    }
    assert_eq!(registry.asked.load(Ordering::SeqCst), 1);
    // Another password is another version.
    fetch(&tokens, &credential("denied", 2, false), false).await.unwrap_err();
    assert_eq!(registry.asked.load(Ordering::SeqCst), 2);
    tokio::time::advance(ANSWER_TTL).await;
    fetch(&tokens, &credential("denied", 2, false), false).await.unwrap_err();
    assert_eq!(registry.asked.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn tokens_are_shared_until_shortly_before_they_expire() {
    for (lifetime, shared) in [(300, 240), (60, 30), (3600, 3540)] {
        let (registry, tokens) = registry(lifetime);
        let app = credential("app", 1, false);
        let first = tokio::join!(token(&tokens, &app, false), token(&tokens, &app, false));
        assert_eq!(first, (("app-1".to_owned(), lifetime), ("app-1".to_owned(), lifetime)));
        tokio::time::advance(Duration::from_secs(shared - 1)).await;
        assert_eq!(token(&tokens, &app, false).await, ("app-1".to_owned(), lifetime - shared + 1));
        assert_eq!(token(&tokens, &credential("other", 1, false), false).await.0, "other-2");
        assert_eq!(
            token(&tokens, &credential("app", 2, false), false).await.0,
            "app-3",
            "of another version"
        );
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(token(&tokens, &app, false).await, ("app-4".to_owned(), lifetime));
        assert_eq!(registry.asked.load(Ordering::SeqCst), 4);
    }
}

#[tokio::test(start_paused = true)]
async fn refused_token_is_replaced_unless_it_is_new() {
    let (_, tokens) = registry(300);
    let app = credential("app", 1, false);
    assert_eq!(token(&tokens, &app, false).await.0, "app-1");
    assert_eq!(token(&tokens, &app, true).await.0, "app-1");
    tokio::time::advance(MIN_TOKEN_AGE).await;
    assert_eq!(token(&tokens, &app, true).await.0, "app-2");
    assert_eq!(token(&tokens, &app, true).await.0, "app-2");
    assert_eq!(token(&tokens, &app, false).await.0, "app-2");
}

#[tokio::test(start_paused = true)]
async fn number_of_answers_is_bounded() {
    let (_, tokens) = registry(300);
    let count = || tokens.answers.lock().unwrap().len();
    for number in 0..MAX_ANSWERS {
        token(&tokens, &credential(&format!("app{number}"), 1, false), false).await;
    }
    assert_eq!(count(), MAX_ANSWERS);
    token(&tokens, &credential("more", 1, false), false).await;
    assert_eq!(count(), 1);
    tokio::time::advance(Duration::from_secs(300)).await;
    token(&tokens, &credential("again", 1, false), false).await;
    assert_eq!(count(), 1, "expired tokens are not kept");
}
