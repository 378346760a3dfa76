//! Authentication: user and password, a bearer token obtained with them, or tokens that others request.

use std::sync::Arc;

use reqwest::RequestBuilder;
use reqwest::header::AUTHORIZATION;
use tokio::sync::Mutex;

use super::challenge::AuthChallenge;
use super::credentials::{DelegatedTokens, RegistryAccess, RegistryCredentials};
use super::error::RegistryError;
use super::repository_token::RepositoryToken;
use super::retry::AttemptFailure;

/// How often one pull requests access again: once a minute in the longest one.
const MAX_RENEWALS: u32 = 60;

/// Authentication state, shared by all requests of one pull until the registry rejects it.
#[derive(Debug)]
pub(super) struct RegistryAuth {
    /// For messages.
    registry: String,
    state: Mutex<AuthState>,
}

#[derive(Debug)]
struct AuthState {
    access: Option<RegistryAccess>,
    authorization: Authorization,
    renewals: u32,
}

/// What requests prove their access with.
#[derive(Clone, Debug, Default)]
pub(super) struct Authorization {
    scheme: AuthScheme,
    /// Whose access it is.
    pub user: Option<String>,
    /// Distinguishes successive proofs.
    number: u64,
}

#[derive(Clone, Debug, Default)]
enum AuthScheme {
    #[default]
    None,
    Basic(RegistryCredentials),
    Bearer(RepositoryToken),
}

impl Authorization {
    pub fn apply(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.scheme {
            AuthScheme::None => request,
            AuthScheme::Basic(credentials) => basic(credentials, request),
            AuthScheme::Bearer(token) => request.header(AUTHORIZATION, token.header()),
        }
    }
}

/// Adds user and password to the request.
pub(super) fn basic(credentials: &RegistryCredentials, request: RequestBuilder) -> RequestBuilder {
    request.basic_auth(&credentials.user, Some(&credentials.password))
}

impl AuthState {
    /// The first proof of this access.
    fn begin(&mut self, access: Option<RegistryAccess>) {
        let scheme = match &access {
            Some(RegistryAccess::Tokens(tokens)) => AuthScheme::Bearer(tokens.token.clone()),
            Some(RegistryAccess::Password(_)) | None => AuthScheme::None,
        };
        self.access = access;
        self.replace(scheme);
    }

    fn replace(&mut self, scheme: AuthScheme) {
        let user = self.access.as_ref().map(|access| access.user().to_owned());
        self.authorization = Authorization { scheme, user, number: self.authorization.number + 1 };
    }

    fn has_expired(&self) -> bool {
        let is_delegated = matches!(&self.access, Some(RegistryAccess::Tokens(_)));
        is_delegated && matches!(&self.authorization.scheme, AuthScheme::Bearer(token) if token.is_expired())
    }

    /// Replaces tokens of others by what is given now. Without such tokens nothing changes.
    async fn renew(&mut self, registry: &str) -> Result<(), RegistryError> {
        let Some(RegistryAccess::Tokens(DelegatedTokens { source, .. })) = &self.access else {
            return Ok(());
        };
        let failed = |reason: String, is_transient: bool| RegistryError::NotRenewed {
            registry: registry.to_owned(),
            reason,
            is_transient,
        };
        if self.renewals == MAX_RENEWALS {
            return Err(failed(format!("it was renewed {MAX_RENEWALS} times in one pull"), true));
        }
        self.renewals += 1;
        let source = Arc::clone(source);
        let access = source.renew().await.map_err(|failure| failed(failure.reason, failure.is_transient))?;
        self.begin(access);
        Ok(())
    }
}

impl RegistryAuth {
    pub fn new(registry: &str, access: Option<RegistryAccess>) -> Self {
        let mut state = AuthState { access: None, authorization: Authorization::default(), renewals: 0 };
        state.begin(access);
        Self { registry: registry.to_owned(), state: Mutex::new(state) }
    }

    /// The proof for a request. Tokens of others that have expired are not sent.
    pub async fn authorization(&self) -> Result<Authorization, AttemptFailure> {
        let mut state = self.state.lock().await;
        if state.has_expired() {
            state.renew(&self.registry).await?;
        }
        Ok(state.authorization.clone())
    }

    /// Obtains another proof than `refused`, which the registry answered with `challenge`; `None` when
    /// there is none. `fetch_token` requests a token of a realm for a service, as that user. Concurrent callers share
    /// one.
    pub async fn authenticate<F>(
        &self,
        refused: &Authorization,
        challenge: Option<AuthChallenge>,
        fetch_token: impl FnOnce(String, Option<String>, Option<RegistryCredentials>) -> F,
    ) -> Result<Option<Authorization>, AttemptFailure>
    where
        F: Future<Output = Result<RepositoryToken, AttemptFailure>>,
    {
        let mut state = self.state.lock().await;
        if state.authorization.number != refused.number {
            return Ok(Some(state.authorization.clone()));
        }
        state.renew(&self.registry).await?;
        let credentials = match &state.access {
            Some(RegistryAccess::Tokens(_)) => return Ok(Some(state.authorization.clone())),
            Some(RegistryAccess::Password(credentials)) => Some(credentials.clone()),
            None => None,
        };
        let scheme = match (challenge, credentials) {
            // The password was rejected; sending it again is useless.
            (Some(AuthChallenge::Basic), _) if matches!(state.authorization.scheme, AuthScheme::Basic(_)) => {
                return Ok(None);
            }
            (Some(AuthChallenge::Basic), Some(credentials)) => AuthScheme::Basic(credentials),
            (Some(AuthChallenge::Bearer { realm, service }), credentials) => {
                AuthScheme::Bearer(fetch_token(realm, service, credentials).await?)
            }
            (Some(AuthChallenge::Basic), None) | (None, _) => return Ok(None),
        };
        state.replace(scheme);
        Ok(Some(state.authorization.clone()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use warren_types::{Id, SecretObjectId};

    use super::*;
    use crate::credentials::{RenewAccess, RenewalFailure};

    fn anna() -> RegistryCredentials {
        RegistryCredentials { user: "anna".into(), password: "hush".into() }
    }

    fn token(text: &str) -> RepositoryToken {
        RepositoryToken::new(text.to_owned().into(), Duration::from_secs(60)).unwrap()
    }

    /// Gives `token-1`, `token-2`, ..., and after as many as the number says the password.
    #[derive(Debug, Clone)]
    struct FakeSource(Arc<AtomicU32>, u32);

    fn tokens(source: &FakeSource, text: &str) -> RegistryAccess {
        RegistryAccess::Tokens(DelegatedTokens {
            credential: (SecretObjectId(Id(1)), 1),
            user: "anna".to_owned(),
            token: token(text),
            source: Arc::new(source.clone()),
        })
    }

    #[async_trait::async_trait]
    impl RenewAccess for FakeSource {
        async fn renew(&self) -> Result<Option<RegistryAccess>, RenewalFailure> {
            let number = self.0.fetch_add(1, Ordering::SeqCst) + 1;
            Ok(Some(match number <= self.1 {
                true => tokens(self, &format!("token-{number}")),
                false => RegistryAccess::Password(anna()),
            }))
        }
    }

    fn text(authorization: &Authorization) -> String {
        match &authorization.scheme {
            AuthScheme::None => "none".to_owned(),
            AuthScheme::Basic(credentials) => credentials.user.clone(),
            AuthScheme::Bearer(token) => token.text().to_owned(),
        }
    }

    async fn refuse(
        auth: &RegistryAuth,
        refused: &Authorization,
        challenge: Option<AuthChallenge>,
    ) -> Result<Option<Authorization>, RegistryError> {
        let asked = auth.authenticate(refused, challenge, |_, _, _| async { Ok(token("own")) }).await;
        asked.map_err(|failure| failure.error)
    }

    #[test]
    fn a_password_is_not_shown() {
        let auth = RegistryAuth::new("r.io", Some(RegistryAccess::Password(anna())));
        let shown = format!("{:?} {auth:?}", anna());
        assert!(shown.contains("anna") && !shown.contains("hush"), "{shown}");
        let source = FakeSource(Arc::default(), 1);
        let shown = format!("{:?}", RegistryAuth::new("r.io", Some(tokens(&source, "secret-token"))));
        assert!(shown.contains("anna") && !shown.contains("secret-token"), "{shown}");
    }

    #[tokio::test(start_paused = true)]
    async fn refused_and_expired_tokens_of_others_are_renewed() {
        let source = FakeSource(Arc::default(), 2);
        let auth = RegistryAuth::new("r.io", Some(tokens(&source, "first")));
        let first = auth.authorization().await.unwrap();
        assert_eq!((text(&first).as_str(), first.user.as_deref()), ("first", Some("anna")));
        // Whatever the registry demands; requests that were refused together share one renewal.
        let second = refuse(&auth, &first, None).await.unwrap().unwrap();
        assert_eq!(text(&second), "token-1");
        assert_eq!(text(&refuse(&auth, &first, None).await.unwrap().unwrap()), "token-1");
        tokio::time::advance(Duration::from_secs(60)).await;
        let third = auth.authorization().await.unwrap();
        assert_eq!(text(&third), "token-2");
        // From then on the password is given, and used as the registry demands.
        let fourth = refuse(&auth, &third, Some(AuthChallenge::Basic)).await.unwrap().unwrap();
        assert_eq!(text(&fourth), "anna");
        assert!(refuse(&auth, &fourth, Some(AuthChallenge::Basic)).await.unwrap().is_none());
        let bearer = AuthChallenge::Bearer { realm: "x".into(), service: None };
        assert_eq!(text(&refuse(&auth, &fourth, Some(bearer)).await.unwrap().unwrap()), "own");
        assert_eq!(source.0.load(Ordering::SeqCst), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn renewals_of_one_pull_are_bounded() {
        let source = FakeSource(Arc::default(), u32::MAX);
        let auth = RegistryAuth::new("r.io", Some(tokens(&source, "first")));
        for _ in 0..MAX_RENEWALS {
            let refused = auth.authorization().await.unwrap();
            refuse(&auth, &refused, None).await.unwrap().unwrap();
        }
        let refused = auth.authorization().await.unwrap();
        let error = refuse(&auth, &refused, None).await.unwrap_err();
        assert!(error.to_string().contains("renewed 60 times in one pull"), "{error}");
        assert_eq!(source.0.load(Ordering::SeqCst), MAX_RENEWALS);
    }
}
