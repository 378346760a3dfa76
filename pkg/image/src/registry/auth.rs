//! Authentication: user and password, or a bearer token obtained with them.

use std::fmt;

use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{RequestBuilder, StatusCode, Url};
use tokio::sync::Mutex;
use zeroize::Zeroize;

use super::challenge::AuthChallenge;
use super::client::Repository;
use super::error::RegistryError;
use super::retry::AttemptFailure;

/// Limit for the answer of a token service, which needs only a few kilobytes.
const MAX_ANSWER: u64 = 1 << 20;

/// A user of a registry. The password is wiped from memory on drop.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RegistryCredentials {
    /// User name.
    pub user: String,
    /// Password, or an access token used in its place.
    pub password: String,
}

impl fmt::Debug for RegistryCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Drop for RegistryCredentials {
    fn drop(&mut self) {
        self.password.zeroize();
    }
}

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

    fn basic(&self, credentials: &RegistryCredentials, request: RequestBuilder) -> RequestBuilder {
        request.basic_auth(&credentials.user, Some(&credentials.password))
    }
}

/// The used part of a token service's answer; both field names exist in practice.
#[derive(serde::Deserialize)]
struct TokenResponse {
    token: Option<String>,
    access_token: Option<String>,
}

impl Repository {
    /// Obtains another proof than `refused`, which the registry answered with `challenge`; `None` when
    /// there is none. Concurrent callers share one.
    pub(super) async fn authenticate(
        &self,
        refused: &Authorization,
        challenge: Option<AuthChallenge>,
    ) -> Result<Option<Authorization>, AttemptFailure> {
        let mut proof = self.auth.authorization.lock().await;
        if proof.number != refused.number {
            return Ok(Some(proof.clone()));
        }
        let kind = match challenge {
            // The password was rejected; sending it again is useless.
            Some(AuthChallenge::Basic) if matches!(proof.kind, AuthScheme::Basic) => return Ok(None),
            Some(AuthChallenge::Basic) if self.auth.credentials.is_some() => AuthScheme::Basic,
            Some(AuthChallenge::Bearer { realm, service }) => {
                AuthScheme::Bearer(self.fetch_token(&realm, service.as_deref()).await?)
            }
            Some(AuthChallenge::Basic) | None => return Ok(None),
        };
        *proof = Authorization { kind, number: proof.number + 1 };
        Ok(Some(proof.clone()))
    }

    async fn fetch_token(&self, realm: &str, service: Option<&str>) -> Result<HeaderValue, AttemptFailure> {
        let what = "the token request";
        let nonsense = |reason: String| AttemptFailure::from(self.invalid_answer(what, reason));
        let mut url = Url::parse(realm).map_err(|error| nonsense(format!("its token service: {error}")))?;
        if url.scheme() != "https" && !(self.uses_plain_http && url.scheme() == "http") {
            return Err(nonsense("its token service does not use TLS".to_owned()));
        }
        if let Some(service) = service {
            url.query_pairs_mut().append_pair("service", service);
        }
        url.query_pairs_mut().append_pair("scope", &format!("repository:{}:pull", self.path));
        let mut request = self.http.get(url);
        if let Some(credentials) = &self.auth.credentials {
            request = self.auth.basic(credentials, request);
        }
        let response = self.attempt(what, request).await?;
        let response = match response.status() {
            StatusCode::OK => response,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err(self.access_denied(response).await.into());
            }
            _ => return Err(self.unexpected(what, response).await),
        };
        let body = self.body(what, response, MAX_ANSWER).await?;
        // The answer is not included: it may contain a secret.
        let unreadable = || nonsense("the answer of its token service contains no token".to_owned());
        let granted: TokenResponse = serde_json::from_slice(&body).map_err(|_| unreadable())?;
        let token = granted.token.or(granted.access_token).filter(|token| !token.is_empty());
        let mut value = HeaderValue::try_from(format!("Bearer {}", token.ok_or_else(unreadable)?))
            .map_err(|_| unreadable())?;
        value.set_sensitive(true);
        Ok(value)
    }

    /// The error of a denied request, which depends on whether credentials were sent.
    pub(super) async fn access_denied(&self, response: reqwest::Response) -> RegistryError {
        let message = self.error_message(response).await;
        let (registry, image) = (self.registry.clone(), self.image.clone());
        match &self.auth.credentials {
            None => RegistryError::NeedsCredentials { registry, image, message },
            Some(RegistryCredentials { user, .. }) => {
                RegistryError::Denied { registry, image, user: user.clone(), message }
            }
        }
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
