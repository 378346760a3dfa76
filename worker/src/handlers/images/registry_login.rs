//! Access to registries: fetched from a manager for each pull, again when it has expired, and not stored.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use warren_image::{
    DelegatedTokens, Error, Reference, RegistryAccess, RegistryCredentials, RegistryError, RenewAccess,
    RenewalFailure, RepositoryToken,
};
use warren_proto::v1;
use warren_proto::v1::registry_access::Access;
use warren_types::SecretObjectKind;
use zeroize::Zeroizing;

use crate::handlers::secret_fetcher::{
    FetchPurpose, FetchedObject, ImagePuller, SecretFetchError, SecretFetcher,
};

/// Login at a registry.
#[derive(Debug)]
pub(crate) enum RegistryLogin {
    /// The cluster has a credential for the registry.
    Access(RegistryAccess),
    /// The cluster has none, or the registry demands none of managers.
    Anonymous(AccessSource),
    /// No manager could be asked; the pull is tried without.
    Unknown(SecretFetchError),
}

/// A failed pull.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImagePullError {
    #[error(transparent)]
    Store(#[from] Error),
    /// A credential that could not be fetched might have helped.
    #[error("{error}; registry credentials could not be fetched: {fetch_error}")]
    CredentialUnknown { error: RegistryError, fetch_error: SecretFetchError },
    /// A manager gives no access to the registry.
    #[error("{reason}")]
    NoAccess { reason: String, is_transient: bool },
}

impl ImagePullError {
    /// Whether a retry can help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.is_transient(),
            Self::CredentialUnknown { .. } => true,
            Self::NoAccess { is_transient, .. } => *is_transient,
        }
    }
}

impl RegistryLogin {
    /// Fetches access to the registry of `image`, which `puller` needs.
    ///
    /// # Errors
    /// [`ImagePullError::NoAccess`].
    pub async fn resolve(
        fetcher: &Arc<dyn SecretFetcher>,
        puller: ImagePuller,
        image: &Reference,
    ) -> Result<Self, ImagePullError> {
        let source = AccessSource { fetcher: Arc::clone(fetcher), puller, image: image.clone() };
        match source.fetch(false).await {
            Ok(Some(access)) => Ok(Self::Access(access)),
            Ok(None) => Ok(Self::Anonymous(source)),
            Err(SecretFetchError::NoRegistryAccess { reason, is_transient }) => {
                Err(ImagePullError::NoAccess { reason, is_transient })
            }
            Err(why) => {
                tracing::info!(%image, %why, "pulling without credentials");
                Ok(Self::Unknown(why))
            }
        }
    }

    pub fn access(&self) -> Option<RegistryAccess> {
        match self {
            Self::Access(access) => Some(access.clone()),
            Self::Anonymous(_) | Self::Unknown(_) => None,
        }
    }

    /// Other access for a pull that failed with `error`. If the registry demands a login after all, managers are asked
    /// again, once.
    ///
    /// # Errors
    /// There is no other access, so the pull has failed.
    pub async fn after_failure(self, error: Error) -> Result<Self, ImagePullError> {
        match (self, error) {
            (Self::Unknown(why), Error::Registry(refused @ RegistryError::NeedsCredentials { .. })) => {
                Err(ImagePullError::CredentialUnknown { error: refused, fetch_error: why })
            }
            (Self::Anonymous(source), Error::Registry(refused @ RegistryError::NeedsCredentials { .. })) => {
                match source.fetch(true).await {
                    Ok(Some(access)) => Ok(Self::Access(access)),
                    Ok(None) => Err(ImagePullError::Store(refused.into())),
                    Err(SecretFetchError::NoRegistryAccess { reason, is_transient }) => {
                        Err(ImagePullError::NoAccess { reason, is_transient })
                    }
                    Err(fetch_error) => {
                        Err(ImagePullError::CredentialUnknown { error: refused, fetch_error })
                    }
                }
            }
            (_, error) => Err(ImagePullError::Store(error)),
        }
    }
}

/// Fetches access for the pull of one image from managers.
#[derive(Clone)]
pub(crate) struct AccessSource {
    fetcher: Arc<dyn SecretFetcher>,
    puller: ImagePuller,
    image: Reference,
}

impl fmt::Debug for AccessSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fetcher: _, puller, image } = self;
        f.debug_struct("AccessSource").field("puller", puller).field("image", image).finish_non_exhaustive()
    }
}

impl AccessSource {
    async fn fetch(&self, is_renewal: bool) -> Result<Option<RegistryAccess>, SecretFetchError> {
        let need = FetchPurpose::RegistryAccess { puller: self.puller.clone(), is_renewal };
        let delivered = self.fetcher.fetch(need).await?;
        let sent = delivered.iter().find(|sent| sent.kind == SecretObjectKind::Credential);
        sent.map(|sent| self.parse(sent)).transpose()
    }

    /// Parses access, which is used for its own registry only, and a token for its own repository only.
    fn parse(&self, sent: &FetchedObject) -> Result<RegistryAccess, SecretFetchError> {
        let invalid = |message: String| Err(SecretFetchError::InvalidAnswer(message));
        let (registry, repository, name) = (self.image.domain(), self.image.path(), sent.name.as_str());
        if !registry.eq_ignore_ascii_case(name) {
            return invalid(format!("credential for {name} instead of {registry}"));
        }
        let access = v1::RegistryAccess::decode(sent.bytes.as_slice()).ok().and_then(|sent| sent.access);
        let (user, token, valid_for_ms) = match access {
            Some(Access::Login(v1::RegistryLogin { user, password })) => {
                return Ok(RegistryAccess::Password(RegistryCredentials { user, password }));
            }
            Some(Access::Token(v1::RepositoryToken {
                registry: of,
                repository: path,
                user,
                token,
                valid_for_ms,
            })) => {
                if !registry.eq_ignore_ascii_case(&of) || repository != path {
                    return invalid(format!("token for {of}/{path} instead of {registry}/{repository}"));
                }
                (user, token, valid_for_ms)
            }
            None => return invalid(format!("the credential for {name} is malformed")),
        };
        let token = RepositoryToken::new(Zeroizing::new(token), Duration::from_millis(valid_for_ms));
        let Some(token) = token else { return invalid(format!("the token for {name} is malformed")) };
        let (credential, source) = ((sent.id, sent.version), Arc::new(self.clone()));
        Ok(RegistryAccess::Tokens(DelegatedTokens { credential, user, token, source }))
    }
}

#[tonic::async_trait]
impl RenewAccess for AccessSource {
    async fn renew(&self) -> Result<Option<RegistryAccess>, RenewalFailure> {
        self.fetch(true).await.map_err(|error| RenewalFailure {
            reason: error.to_string(),
            is_transient: match error {
                SecretFetchError::NoRegistryAccess { is_transient, .. } => is_transient,
                // Others may wait for the pull of a task that has ended meanwhile.
                _ => true,
            },
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use warren_types::{Id, SecretObjectId};

    use super::*;
    use crate::fixtures::task_id;
    use crate::handlers::secret_fetcher::fake::FakeSecretFetcher;

    /// Access of the user `ann` to the registry `name`.
    pub fn sent(name: &str, access: Access) -> FetchedObject {
        let bytes = v1::RegistryAccess { access: Some(access) }.encode_to_vec();
        FetchedObject {
            kind: SecretObjectKind::Credential,
            name: name.parse().unwrap(),
            id: SecretObjectId(Id(9)),
            version: 1,
            bytes: Zeroizing::new(bytes),
        }
    }

    pub fn login(name: &str, password: &str) -> FetchedObject {
        let (user, password) = ("ann".to_owned(), password.to_owned());
        sent(name, Access::Login(v1::RegistryLogin { user, password }))
    }

    fn token(repository: &str, token: &str) -> FetchedObject {
        let (registry, repository) = repository.split_once('/').unwrap();
        let token = v1::RepositoryToken {
            registry: registry.to_owned(),
            repository: repository.to_owned(),
            user: "ann".to_owned(),
            token: token.to_owned(),
            valid_for_ms: 300_000,
        };
        sent(registry, Access::Token(token))
    }

    fn asked(is_renewal: bool) -> FetchPurpose {
        FetchPurpose::RegistryAccess { puller: ImagePuller::Task(task_id(1)), is_renewal }
    }

    async fn try_resolve(
        fake: &FakeSecretFetcher,
        answer: Result<Vec<FetchedObject>, SecretFetchError>,
        image: &str,
    ) -> Result<RegistryLogin, ImagePullError> {
        fake.set_answer(answer);
        let fetcher: Arc<dyn SecretFetcher> = Arc::new(fake.clone());
        let image = Reference::parse(image).unwrap();
        let login = RegistryLogin::resolve(&fetcher, ImagePuller::Task(task_id(1)), &image).await;
        assert_eq!(fake.requests(), [asked(false)]);
        login
    }

    async fn resolve(answer: Result<Vec<FetchedObject>, SecretFetchError>, image: &str) -> RegistryLogin {
        try_resolve(&FakeSecretFetcher::default(), answer, image).await.unwrap()
    }

    #[tokio::test]
    async fn only_credential_of_image_registry_is_used() {
        for (image, name) in [
            ("registry.lan:5000/app:1", "registry.lan:5000"),
            ("Registry.LAN/app", "registry.lan"),
            ("nginx", "docker.io"),
            ("index.docker.io/team/app", "docker.io"),
        ] {
            let login = resolve(Ok(vec![login(name, "hush")]), image).await;
            let Some(RegistryAccess::Password(credentials)) = &login.access() else { panic!("{image}") };
            assert_eq!((credentials.user.as_str(), credentials.password.as_str()), ("ann", "hush"));
            assert!(!format!("{login:?}").contains("hush"));
        }
        let other = resolve(Ok(vec![login("elsewhere.lan", "hush")]), "registry.lan/app").await;
        assert!(matches!(&other, RegistryLogin::Unknown(SecretFetchError::InvalidAnswer(_))), "{other:?}");
        assert!(other.access().is_none());
        let malformed = FetchedObject { bytes: b"hush".to_vec().into(), ..login("registry.lan", "") };
        let malformed = resolve(Ok(vec![malformed]), "registry.lan/app").await;
        assert!(malformed.access().is_none() && !format!("{malformed:?}").contains("hush"));
        assert!(matches!(resolve(Ok(Vec::new()), "nginx").await, RegistryLogin::Anonymous(_)));
    }

    #[tokio::test]
    async fn token_is_of_the_repository_and_renewed_for_the_same_pull() {
        for (image, repository) in
            [("nginx", "docker.io/library/nginx"), ("R.lan:5000/a/b@sha256:", "r.lan:5000/a/b")]
        {
            let image = image.replace("sha256:", &format!("sha256:{}", "a".repeat(64)));
            let fake = FakeSecretFetcher::default();
            let login = try_resolve(&fake, Ok(vec![token(repository, "hush-1")]), &image).await.unwrap();
            let Some(RegistryAccess::Tokens(tokens)) = login.access() else { panic!("{image}") };
            assert_eq!((tokens.user.as_str(), tokens.token.text()), ("ann", "hush-1"));
            assert!((290..=300).contains(&tokens.token.remaining().as_secs()), "{tokens:?}");
            assert!(!format!("{login:?}").contains("hush"));
            fake.set_answer(Ok(vec![token(repository, "hush-2")]));
            let renewed = tokens.source.renew().await.unwrap();
            assert_eq!(renewed, login.access(), "of the same credential");
            let Some(RegistryAccess::Tokens(renewed)) = renewed else { panic!("{image}") };
            assert_eq!(renewed.token.text(), "hush-2");
            // The manager may have lost its way to the registry.
            let (registry, _) = repository.split_once('/').unwrap();
            fake.set_answer(Ok(vec![self::login(registry, "hush")]));
            let renewed = renewed.source.renew().await.unwrap();
            assert!(matches!(renewed, Some(RegistryAccess::Password(_))), "{renewed:?}");
            for is_transient in [false, true] {
                let reason = "no tokens".to_owned();
                fake.set_answer(Err(SecretFetchError::NoRegistryAccess {
                    reason: reason.clone(),
                    is_transient,
                }));
                assert_eq!(tokens.source.renew().await, Err(RenewalFailure { reason, is_transient }));
            }
            fake.set_answer(Err(SecretFetchError::Refused("the task has ended".into())));
            assert!(tokens.source.renew().await.unwrap_err().is_transient);
            assert_eq!(fake.requests()[1..], [(); 5].map(|()| asked(true)));
        }
        for (foreign, text) in [
            (token("registry.lan/other", "hush"), "token for registry.lan/other instead of registry.lan/app"),
            (token("registry.lan/app", "hush hush"), "the token for registry.lan is malformed"),
        ] {
            let found = resolve(Ok(vec![foreign]), "registry.lan/app").await;
            let RegistryLogin::Unknown(error) = &found else { panic!("{found:?}") };
            assert!(error.to_string().contains(text) && !format!("{found:?}").contains("hush"), "{error}");
        }
    }

    #[tokio::test]
    async fn refusal_of_access_is_the_reason_and_nothing_is_pulled() {
        for is_transient in [false, true] {
            let reason = "registry r.lan has no tokens".to_owned();
            let refused = SecretFetchError::NoRegistryAccess { reason: reason.clone(), is_transient };
            let fake = FakeSecretFetcher::default();
            let error = try_resolve(&fake, Err(refused), "r.lan/app").await.unwrap_err();
            assert_eq!((error.to_string(), error.is_transient()), (reason, is_transient));
        }
    }

    #[tokio::test]
    async fn pull_refusal_is_permanent_unless_credential_is_unknown() {
        let (registry, image, output) = ("r.lan".to_owned(), "app:1".to_owned(), "no".to_owned());
        let needs = || {
            Error::from(RegistryError::NeedsCredentials {
                registry: registry.clone(),
                image: image.clone(),
                message: output.clone(),
            })
        };
        let user = "ann".to_owned();
        let denied = RegistryError::Denied {
            registry: registry.clone(),
            image: image.clone(),
            user,
            message: output.clone(),
        };
        let away = || Err(SecretFetchError::NoManager("not connected to a manager".into()));
        let unasked = resolve(away(), "r.lan/app").await.after_failure(needs()).await.unwrap_err();
        assert!(unasked.is_transient(), "{unasked}");
        for words in ["credentials", "could not be fetched", "not connected"] {
            assert!(unasked.to_string().contains(words), "{unasked}");
        }
        let none = resolve(Ok(Vec::new()), "r.lan/app").await.after_failure(needs()).await;
        let wrong = resolve(Ok(vec![login("r.lan", "x")]), "r.lan/app").await;
        let wrong = wrong.after_failure(denied.into()).await;
        for (failed, words) in [(none, "needs credentials"), (wrong, "user \"ann\"")] {
            let error = failed.unwrap_err();
            let text = error.to_string();
            assert!(!error.is_transient() && text.contains(words), "{text}");
            assert!(text.contains("`warren registry login r.lan`"), "{text}");
        }
        let other = Error::Unavailable { action: "pull".into(), reason: "down".into() };
        let failed = resolve(away(), "r.lan/app").await.after_failure(other).await;
        assert!(matches!(failed, Err(ImagePullError::Store(_))), "{failed:?}");
    }

    /// The manager may be told otherwise than this node.
    #[tokio::test]
    async fn managers_are_asked_again_if_the_registry_refuses_a_pull_without_login() {
        let needs = || {
            let (registry, image, message) = ("r.lan".to_owned(), "app:1".to_owned(), "no".to_owned());
            Error::from(RegistryError::NeedsCredentials { registry, image, message })
        };
        let nothing = |fake: FakeSecretFetcher| async move {
            try_resolve(&fake, Ok(Vec::new()), "r.lan/app").await.unwrap()
        };
        let fake = FakeSecretFetcher::default();
        let anonymous = nothing(fake.clone()).await;
        fake.set_answer(Ok(vec![token("r.lan/app", "hush")]));
        let other = anonymous.after_failure(needs()).await.unwrap();
        assert!(matches!(other.access(), Some(RegistryAccess::Tokens(_))), "{other:?}");
        other.after_failure(needs()).await.unwrap_err();
        assert_eq!(fake.requests(), [asked(false), asked(true)]);
        for (failure, words) in [
            (
                SecretFetchError::NoRegistryAccess { reason: "let both reach it".into(), is_transient: true },
                "let both reach it",
            ),
            (SecretFetchError::NoManager("not connected".into()), "could not be fetched: not connected"),
        ] {
            let fake = FakeSecretFetcher::default();
            let anonymous = nothing(fake.clone()).await;
            fake.set_answer(Err(failure));
            let error = anonymous.after_failure(needs()).await.unwrap_err();
            assert!(error.is_transient() && error.to_string().ends_with(words), "{error}");
        }
    }
}
