//! Authentication: user and password, or a bearer token obtained with them.

use reqwest::RequestBuilder;
use reqwest::header::{AUTHORIZATION, HeaderValue};
use tokio::sync::Mutex;

use super::challenge::AuthChallenge;
use super::credentials::RegistryCredentials;
use super::retry::AttemptFailure;

/// Authentication state, shared by all requests of one pull until the registry rejects it.
#[derive(Debug, Default)]
pub(super) struct RegistryAuth {
    pub credentials: Option<RegistryCredentials>,
    authorization: Mutex<Authorization>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Authorization {
    kind: AuthScheme,
    /// Distinguishes successive proofs.
    number: u64,
}

#[derive(Clone, Debug, Default)]
enum AuthScheme {
    #[default]
    None,
    Basic,
    Bearer(HeaderValue),
}

impl RegistryAuth {
    pub fn new(credentials: Option<RegistryCredentials>) -> Self {
        Self { credentials, authorization: Mutex::default() }
    }

    pub async fn authorization(&self) -> Authorization {
        self.authorization.lock().await.clone()
    }

    pub fn apply(&self, proof: &Authorization, request: RequestBuilder) -> RequestBuilder {
        match (&proof.kind, &self.credentials) {
            (AuthScheme::Basic, Some(credentials)) => self.basic(credentials, request),
            (AuthScheme::Bearer(value), _) => request.header(AUTHORIZATION, value.clone()),
            (AuthScheme::None | AuthScheme::Basic, _) => request,
        }
    }

    /// Obtains another proof than `refused`, which the registry answered with `challenge`; `None` when
    /// there is none. `fetch_token` requests a token of a realm for a service. Concurrent callers share one.
    pub async fn authenticate<F>(
        &self,
        refused: &Authorization,
        challenge: Option<AuthChallenge>,
        fetch_token: impl FnOnce(String, Option<String>) -> F,
    ) -> Result<Option<Authorization>, AttemptFailure>
    where
        F: Future<Output = Result<HeaderValue, AttemptFailure>>,
    {
        let mut proof = self.authorization.lock().await;
        if proof.number != refused.number {
            return Ok(Some(proof.clone()));
        }
        let kind = match challenge {
            // The password was rejected; sending it again is useless.
            Some(AuthChallenge::Basic) if matches!(proof.kind, AuthScheme::Basic) => return Ok(None),
            Some(AuthChallenge::Basic) if self.credentials.is_some() => AuthScheme::Basic,
            Some(AuthChallenge::Bearer { realm, service }) => {
                AuthScheme::Bearer(fetch_token(realm, service).await?)
            }
            Some(AuthChallenge::Basic) | None => return Ok(None),
        };
        *proof = Authorization { kind, number: proof.number + 1 };
        Ok(Some(proof.clone()))
    }

    pub fn basic(&self, credentials: &RegistryCredentials, request: RequestBuilder) -> RequestBuilder {
        request.basic_auth(&credentials.user, Some(&credentials.password))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        let credentials = RegistryCredentials { user: "anna".into(), password: "hush".into() };
        let shown = format!("{credentials:?} {:?}", RegistryAuth::new(Some(credentials.clone())));
        assert!(shown.contains("anna") && !shown.contains("hush"), "{shown}");
    }
}
