use std::sync::atomic::{AtomicUsize, Ordering};

use warren_registry::{Digest, ImageSignature, RepositoryToken, ResolvedName};
use warren_types::Id;

use super::*;

/// Gives tokens such as `app-1` and `app-2` for the repository `app`, with the lifetime in seconds, while there is no
/// failure, and other answers for some repositories.
#[derive(Debug, Default)]
struct FakeRegistry {
    asked: AtomicUsize,
    lifetime: u64,
    failure: Mutex<Option<Answer>>,
}

impl FakeRegistry {
    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn fail(&self, failure: Option<Answer>) {
        *self.failure.lock().unwrap() = failure;
    }
}

fn busy() -> RegistryError {
    let (registry, what) = ("r.lan".to_owned(), "the token request".to_owned());
    let message = "slow down".to_owned();
    RegistryError::Busy { registry, what, status: http::StatusCode::TOO_MANY_REQUESTS, message }
}

fn silent() -> RegistryError {
    let (registry, what) = ("r.lan".to_owned(), "the token request".to_owned());
    RegistryError::Stalled { registry, what, silence: GRANT_TIMEOUT }
}

fn unreachable() -> RegistryError {
    let (registry, reason) = ("r.lan".to_owned(), "no route".to_owned());
    RegistryError::Unreachable { registry, reason, is_own_host: true }
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
        if let Some(failure) = &*self.failure.lock().unwrap() {
            return failure.clone();
        }
        match reference.path() {
            "public" if reference.tag() == Some("typo") => {
                Err(RegistryError::UnknownImage { registry, image: "public:typo".to_owned() })
            }
            "public" => Ok(PullGrant::NotNeeded),
            "basic" => Ok(PullGrant::PasswordOnly),
            "offline" => Err(unreachable()),
            "foreign" => Err(RegistryError::Tls { registry, reason, advice: "", is_own_host: true }),
            "silent" => Err(silent()),
            "busy" => Err(busy()),
            "denied" => {
                let (image, user, message) = ("denied:1".to_owned(), credentials.user.clone(), reason);
                Ok(PullGrant::NoToken(RegistryError::Denied { registry, image, user, message }))
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
        reference: Reference::parse(&match image.contains(':') {
            true => format!("r.lan/{image}"),
            false => format!("r.lan/{image}:1"),
        })
        .unwrap(),
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
    for (path, version) in [("basic", 2), ("offline", 3), ("foreign", 4), ("silent", 5)] {
        let found = fetch(&tokens, &credential(path, version, false), false).await;
        assert_eq!(found, Ok(login()), "{path}");
    }
}

/// The password.
fn login() -> Option<Access> {
    Some(Access::Login(v1::RegistryLogin { user: "ann".to_owned(), password: "hush".to_owned() }))
}

#[tokio::test(start_paused = true)]
async fn registry_that_answers_or_had_tokens_gives_no_password() {
    // It answers, but nobody knows yet what it demands.
    let (_, tokens) = registry(300);
    let refused = fetch(&tokens, &credential("busy", 1, false), false).await.unwrap_err();
    assert_eq!((refused.code, refused.reason.as_str()), (Code::Unavailable, NO_REGISTRY_ACCESS));
    assert!(
        refused.message.contains("nodes get no password") && refused.message.contains("slow down"),
        "{refused}"
    );

    // It has demanded a token, or has given one before.
    for (failure, is_first) in [
        (Ok(PullGrant::NoToken(busy())), true),
        (Ok(PullGrant::NoToken(silent())), true),
        (Err(busy()), false),
        (Err(unreachable()), false),
        (Err(silent()), false),
    ] {
        let (registry, tokens) = registry(300);
        if !is_first {
            token(&tokens, &credential("app", 1, false), false).await;
        }
        registry.fail(Some(failure.clone()));
        for is_renewal in [false, true] {
            let refused = fetch(&tokens, &credential("other", 1, false), is_renewal).await.unwrap_err();
            assert_eq!(refused.code, Code::Unavailable, "{failure:?}");
            assert!(!refused.message.contains("hush"), "{refused}");
        }
    }
    // It demanded a token before it was silent.
    let (demanding, tokens) = registry(300);
    demanding.fail(Some(Ok(PullGrant::NoToken(busy()))));
    fetch(&tokens, &credential("app", 1, false), false).await.unwrap_err();
    demanding.fail(Some(Err(silent())));
    let refused = fetch(&tokens, &credential("other", 1, false), false).await.unwrap_err();
    assert_eq!(refused.code, Code::Unavailable);

    // Another version may be of another registry by the same name.
    let (registry, tokens) = registry(300);
    token(&tokens, &credential("app", 1, false), false).await;
    registry.fail(Some(Err(unreachable())));
    assert_eq!(fetch(&tokens, &credential("app", 2, false), false).await, Ok(login()));
}

#[tokio::test(start_paused = true)]
async fn failed_renewal_leaves_the_token_to_others() {
    let (registry, tokens) = registry(300);
    let app = credential("app", 1, false);
    for failure in [Err(busy()), Ok(PullGrant::NoToken(busy())), Err(unreachable())] {
        registry.fail(None);
        let (known, _) = token(&tokens, &app, true).await;
        tokio::time::advance(MIN_TOKEN_AGE).await;
        registry.fail(Some(failure.clone()));
        let asked = registry.asked();
        for _ in 0..2 {
            let refused = fetch(&tokens, &app, true).await.unwrap_err();
            assert_eq!(refused.code, Code::Unavailable, "{failure:?}");
            assert_eq!(token(&tokens, &app, false).await.0, known, "{failure:?}");
        }
        assert_eq!(registry.asked(), asked + 1, "the failure is kept as well");
        tokio::time::advance(ANSWER_TTL).await;
    }
}

#[tokio::test(start_paused = true)]
async fn node_that_is_refused_is_not_told_again_that_it_needs_nothing() {
    let (registry, tokens) = registry(300);
    let (good, typo) = (credential("public:good", 1, false), credential("public:typo", 1, false));
    // What is not there says nothing of other images.
    assert_eq!(fetch(&tokens, &typo, false).await, Ok(None));
    assert_eq!(fetch(&tokens, &good, false).await, Ok(None));
    assert_eq!(registry.asked(), 2);
    assert_eq!(fetch(&tokens, &good, false).await, Ok(None));
    assert_eq!(registry.asked(), 2);
    let refused = fetch(&tokens, &good, true).await.unwrap_err();
    assert_eq!((registry.asked(), refused.code), (3, Code::Unavailable), "it is asked again");
    assert!(refused.message.contains("gives r.lan/public:good to managers without credentials"), "{refused}");
    let refused = fetch(&tokens, &typo, true).await.unwrap_err();
    assert!(refused.message.contains("has no image public:typo"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn silent_registry_delays_one_pull_and_not_one_of_each_repository() {
    let (registry, tokens) = registry(300);
    registry.fail(Some(Err(silent())));
    for number in 0..20 {
        let found = fetch(&tokens, &credential(&format!("app{number}"), 1, false), false).await;
        assert_eq!(found, Ok(login()));
    }
    assert_eq!(registry.asked(), 1);
    // Later one asks again, and the others do not wait for that.
    tokio::time::advance(ANSWER_TTL).await;
    assert!(tokens.known_failure((SecretObjectId(Id(9)), 1), Instant::now()).is_none());
    fetch(&tokens, &credential("app1", 1, false), false).await.unwrap();
    assert_eq!(registry.asked(), 1);
    // The asker was cancelled.
    tokio::time::advance(GRANT_TIMEOUT).await;
    registry.fail(None);
    assert_eq!(token(&tokens, &credential("app1", 1, false), false).await.0, "app1-2");
    assert_eq!(token(&tokens, &credential("app2", 1, false), false).await.0, "app2-3");
}

#[tokio::test(start_paused = true)]
async fn password_of_a_credential_for_tokens_only_is_never_given() {
    let (_, tokens) = registry(300);
    let found = fetch(&tokens, &credential("shop/app", 1, true), false).await.unwrap();
    assert!(matches!(found, Some(Access::Token(_))));
    assert_eq!(fetch(&tokens, &credential("public", 1, true), false).await, Ok(None));
    for (path, version, code, words) in [
        ("basic", 2, Code::FailedPrecondition, "has no tokens for single repositories"),
        (
            "offline",
            3,
            Code::Unavailable,
            "tokens only: cannot reach registry r.lan: no route; let managers reach",
        ),
        ("foreign", 4, Code::FailedPrecondition, "TLS connection to registry r.lan failed"),
        ("silent", 5, Code::Unavailable, "registry r.lan stalled: no data for the token request in 10s"),
    ] {
        let refused = fetch(&tokens, &credential(path, version, true), false).await.unwrap_err();
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
    assert_eq!(registry.asked(), 1);
    // Another password is another version.
    fetch(&tokens, &credential("denied", 2, false), false).await.unwrap_err();
    assert_eq!(registry.asked(), 2);
    tokio::time::advance(ANSWER_TTL).await;
    fetch(&tokens, &credential("denied", 2, false), false).await.unwrap_err();
    assert_eq!(registry.asked(), 3);
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
        assert_eq!(registry.asked(), 4);
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
