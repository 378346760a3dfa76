//! Registry credentials: fetched from a manager for each pull, and not stored.

use warren_image::{Error, Reference, RegistryCredentials, RegistryError};
use warren_types::SecretObjectKind;
use warren_types::secret_object::Login;

use crate::handlers::secret_fetcher::{FetchPurpose, FetchedObject, SecretFetchError, SecretFetcher};

/// Login at a registry.
#[derive(Debug)]
pub(crate) enum RegistryLogin {
    /// The cluster has a credential for the registry.
    Credential(RegistryCredentials),
    /// The cluster has none.
    Anonymous,
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
}

impl ImagePullError {
    /// Whether a retry can help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.is_transient(),
            Self::CredentialUnknown { .. } => true,
        }
    }
}

impl RegistryLogin {
    /// Fetches the credential for the registry of `image`.
    pub async fn resolve(secret_fetcher: &dyn SecretFetcher, need: FetchPurpose, image: &Reference) -> Self {
        match secret_fetcher.fetch(need).await {
            Ok(delivered) => match delivered.iter().find(|sent| sent.kind == SecretObjectKind::Credential) {
                None => Self::Anonymous,
                Some(sent) => parse_credential(sent, image).map_or_else(Self::Unknown, Self::Credential),
            },
            Err(why) => {
                tracing::info!(%image, %why, "pulling without credentials");
                Self::Unknown(why)
            }
        }
    }

    pub fn credentials(&self) -> Option<RegistryCredentials> {
        match self {
            Self::Credential(credentials) => Some(credentials.clone()),
            Self::Anonymous | Self::Unknown(_) => None,
        }
    }

    /// Classifies the error of a pull.
    pub fn classify_error(self, error: Error) -> ImagePullError {
        match (self, error) {
            (Self::Unknown(why), Error::Registry(refused @ RegistryError::NeedsCredentials { .. })) => {
                ImagePullError::CredentialUnknown { error: refused, fetch_error: why }
            }
            (_, error) => ImagePullError::Store(error),
        }
    }
}

/// Parses a credential, which is used for its own registry only.
fn parse_credential(
    sent: &FetchedObject,
    image: &Reference,
) -> Result<RegistryCredentials, SecretFetchError> {
    let (registry, name) = (image.domain(), sent.name.as_str());
    if !registry.eq_ignore_ascii_case(name) {
        return Err(SecretFetchError::InvalidAnswer(format!("credential for {name} instead of {registry}")));
    }
    let text = std::str::from_utf8(&sent.bytes).ok();
    let login = text.and_then(|text| text.parse().ok());
    let unreadable =
        || SecretFetchError::InvalidAnswer(format!("the credential for {name} is invalid; log in again"));
    let Login { user, password } = login.ok_or_else(unreadable)?;
    Ok(RegistryCredentials { user, password })
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroizing;

    use super::*;
    use crate::fixtures::task_id;
    use crate::handlers::secret_fetcher::fake::FakeSecretFetcher;

    fn credential(name: &str, text: &str) -> FetchedObject {
        let bytes = Zeroizing::new(text.as_bytes().to_vec());
        FetchedObject { kind: SecretObjectKind::Credential, name: name.parse().unwrap(), version: 1, bytes }
    }

    async fn resolve(answer: Result<Vec<FetchedObject>, SecretFetchError>, image: &str) -> RegistryLogin {
        let secret_fetcher = FakeSecretFetcher::default();
        secret_fetcher.set_answer(answer);
        let need = FetchPurpose::TaskCredential(task_id(1));
        let login =
            RegistryLogin::resolve(&secret_fetcher, need.clone(), &Reference::parse(image).unwrap()).await;
        assert_eq!(secret_fetcher.requests(), [need]);
        login
    }

    #[tokio::test]
    async fn only_credential_of_image_registry_is_used() {
        for (image, name) in [
            ("registry.lan:5000/app:1", "registry.lan:5000"),
            ("Registry.LAN/app", "registry.lan"),
            ("nginx", "docker.io"),
            ("index.docker.io/team/app", "docker.io"),
        ] {
            let login = resolve(Ok(vec![credential(name, "ann\nhush")]), image).await;
            let Some(RegistryCredentials { user, password }) = &login.credentials() else {
                panic!("{image}")
            };
            assert_eq!((user.as_str(), password.as_str()), ("ann", "hush"));
            assert!(!format!("{login:?}").contains("hush"));
        }
        let login = resolve(Ok(vec![credential("elsewhere.lan", "ann\nhush")]), "registry.lan/app").await;
        assert!(matches!(&login, RegistryLogin::Unknown(SecretFetchError::InvalidAnswer(_))), "{login:?}");
        assert!(login.credentials().is_none());
        let login = resolve(Ok(vec![credential("registry.lan", "hush")]), "registry.lan/app").await;
        assert!(login.credentials().is_none() && !format!("{login:?}").contains("hush"));
        assert!(matches!(resolve(Ok(Vec::new()), "nginx").await, RegistryLogin::Anonymous));
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
        let unasked = resolve(away(), "r.lan/app").await.classify_error(needs());
        assert!(unasked.is_transient(), "{unasked}");
        for words in ["credentials", "could not be fetched", "not connected"] {
            assert!(unasked.to_string().contains(words), "{unasked}");
        }
        let none = resolve(Ok(Vec::new()), "r.lan/app").await.classify_error(needs());
        let wrong =
            resolve(Ok(vec![credential("r.lan", "ann\nx")]), "r.lan/app").await.classify_error(denied.into());
        for (error, words) in [(none, "needs credentials"), (wrong, "user \"ann\"")] {
            let text = error.to_string();
            assert!(!error.is_transient() && text.contains(words), "{text}");
            assert!(text.contains("`warren registry login r.lan`"), "{text}");
        }
        let other = Error::Unavailable { action: "pull".into(), reason: "down".into() };
        assert!(matches!(resolve(away(), "r.lan/app").await.classify_error(other), ImagePullError::Store(_)));
    }
}
