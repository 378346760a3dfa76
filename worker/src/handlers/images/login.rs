//! As whom this node asks a registry: a manager knows, and is asked each time. Nothing is kept.

use warren_image::{Credentials, Error, Reference, RegistryError};
use warren_types::ContentKind;
use warren_types::content::Login;

use crate::handlers::contents::courier::{Courier, Delivered, FetchError, Need};

/// As whom a registry is asked.
#[derive(Debug)]
pub(crate) enum Standing {
    /// The cluster has a credential for it.
    Known(Credentials),
    /// It has none.
    Anybody,
    /// Nobody could be asked, so that it is tried without.
    Unasked(FetchError),
}

/// A pull that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PullError {
    #[error(transparent)]
    Store(#[from] Error),
    /// A credential that no manager could be asked for might have helped.
    #[error("{refused} (no manager could be asked for them: {why})")]
    Unasked { refused: RegistryError, why: FetchError },
}

impl PullError {
    /// Whether trying again can help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.is_transient(),
            Self::Unasked { .. } => true,
        }
    }
}

impl Standing {
    /// What the registry of `image` is told, by what the cluster knows of it.
    pub async fn ask(courier: &dyn Courier, need: Need, image: &Reference) -> Self {
        match courier.fetch(need).await {
            Ok(delivered) => match delivered.iter().find(|sent| sent.kind == ContentKind::Credential) {
                None => Self::Anybody,
                Some(sent) => login(sent, image).map_or_else(Self::Unasked, Self::Known),
            },
            Err(why) => {
                tracing::info!(%image, %why, "pulling without credentials");
                Self::Unasked(why)
            }
        }
    }

    pub fn credentials(&self) -> Option<Credentials> {
        match self {
            Self::Known(credentials) => Some(credentials.clone()),
            Self::Anybody | Self::Unasked(_) => None,
        }
    }

    /// What it means that a pull failed.
    pub fn judge(self, error: Error) -> PullError {
        match (self, error) {
            (Self::Unasked(why), Error::Registry(refused @ RegistryError::NeedsCredentials { .. })) => {
                PullError::Unasked { refused, why }
            }
            (_, error) => PullError::Store(error),
        }
    }
}

/// Reads a credential, which is told to no other registry than its own.
fn login(sent: &Delivered, image: &Reference) -> Result<Credentials, FetchError> {
    let (registry, name) = (image.domain(), sent.name.as_str());
    if !registry.eq_ignore_ascii_case(name) {
        return Err(FetchError::Unreadable(format!("it is for {name} instead of {registry}")));
    }
    let text = std::str::from_utf8(&sent.bytes).ok();
    let login = text.and_then(|text| text.parse().ok());
    let unreadable = || FetchError::Unreadable(format!("the credential for {name} is none; log in again"));
    let Login { user, password } = login.ok_or_else(unreadable)?;
    Ok(Credentials { user, password })
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroizing;

    use super::*;
    use crate::handlers::contents::courier::fake::FakeCourier;
    use crate::samples::task_id;

    fn credential(name: &str, text: &str) -> Delivered {
        let bytes = Zeroizing::new(text.as_bytes().to_vec());
        Delivered { kind: ContentKind::Credential, name: name.parse().unwrap(), number: 1, bytes }
    }

    async fn ask(answer: Result<Vec<Delivered>, FetchError>, image: &str) -> Standing {
        let courier = FakeCourier::default();
        courier.answers(answer);
        let need = Need::Credential(task_id(1));
        let standing = Standing::ask(&courier, need.clone(), &Reference::parse(image).unwrap()).await;
        assert_eq!(courier.asked(), [need]);
        standing
    }

    #[tokio::test]
    async fn the_credential_of_the_images_registry_is_used_and_no_other() {
        for (image, name) in [
            ("registry.lan:5000/app:1", "registry.lan:5000"),
            ("Registry.LAN/app", "registry.lan"),
            ("nginx", "docker.io"),
            ("index.docker.io/team/app", "docker.io"),
        ] {
            let standing = ask(Ok(vec![credential(name, "ann\nhush")]), image).await;
            let Some(Credentials { user, password }) = &standing.credentials() else { panic!("{image}") };
            assert_eq!((user.as_str(), password.as_str()), ("ann", "hush"));
            assert!(!format!("{standing:?}").contains("hush"));
        }
        let standing = ask(Ok(vec![credential("elsewhere.lan", "ann\nhush")]), "registry.lan/app").await;
        assert!(matches!(&standing, Standing::Unasked(FetchError::Unreadable(_))), "{standing:?}");
        assert!(standing.credentials().is_none());
        let standing = ask(Ok(vec![credential("registry.lan", "hush")]), "registry.lan/app").await;
        assert!(standing.credentials().is_none() && !format!("{standing:?}").contains("hush"));
        assert!(matches!(ask(Ok(Vec::new()), "nginx").await, Standing::Anybody));
    }

    #[tokio::test]
    async fn a_refusal_is_final_unless_nobody_could_be_asked() {
        let (registry, image, said) = ("r.lan".to_owned(), "app:1".to_owned(), "no".to_owned());
        let needs = || {
            Error::from(RegistryError::NeedsCredentials {
                registry: registry.clone(),
                image: image.clone(),
                said: said.clone(),
            })
        };
        let user = "ann".to_owned();
        let denied = RegistryError::Denied {
            registry: registry.clone(),
            image: image.clone(),
            user,
            said: said.clone(),
        };
        let away = || Err(FetchError::Away("there is no session with one".into()));
        let unasked = ask(away(), "r.lan/app").await.judge(needs());
        assert!(unasked.is_transient(), "{unasked}");
        for words in ["credentials", "no manager could be asked", "no session"] {
            assert!(unasked.to_string().contains(words), "{unasked}");
        }
        let none = ask(Ok(Vec::new()), "r.lan/app").await.judge(needs());
        let wrong = ask(Ok(vec![credential("r.lan", "ann\nx")]), "r.lan/app").await.judge(denied.into());
        for (error, words) in [(none, "needs credentials"), (wrong, "user \"ann\"")] {
            let said = error.to_string();
            assert!(!error.is_transient() && said.contains(words), "{said}");
            assert!(said.contains("`warren registry login r.lan`"), "{said}");
        }
        let other = Error::Unavailable { action: "pull".into(), reason: "down".into() };
        assert!(matches!(ask(away(), "r.lan/app").await.judge(other), PullError::Store(_)));
    }
}
