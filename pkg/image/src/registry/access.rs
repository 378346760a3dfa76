//! Proving who asks: user and password, or the token a registry wants for them.

use std::fmt;

use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{RequestBuilder, StatusCode, Url};
use tokio::sync::Mutex;
use zeroize::Zeroize;

use super::challenge::Challenge;
use super::client::Repository;
use super::error::RegistryError;
use super::tries::Failure;

/// A token service answers in a few kilobytes.
const MAX_ANSWER: u64 = 1 << 20;

/// A user of a registry. The password is wiped from memory with it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Credentials {
    /// The user's name.
    pub user: String,
    /// The password, or what the registry takes for one.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Drop for Credentials {
    fn drop(&mut self) {
        self.password.zeroize();
    }
}

/// What proves who asks, the same for all requests of one pull until the registry no longer takes it.
#[derive(Debug, Default)]
pub(super) struct Access {
    pub credentials: Option<Credentials>,
    proof: Mutex<Proof>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Proof {
    kind: Kind,
    /// Tells a proof from the one before it.
    number: u64,
}

#[derive(Clone, Debug, Default)]
enum Kind {
    #[default]
    None,
    Basic,
    Bearer(HeaderValue),
}

impl Access {
    pub fn new(credentials: Option<Credentials>) -> Self {
        Self { credentials, proof: Mutex::default() }
    }

    pub async fn proof(&self) -> Proof {
        self.proof.lock().await.clone()
    }

    pub fn apply(&self, proof: &Proof, request: RequestBuilder) -> RequestBuilder {
        match (&proof.kind, &self.credentials) {
            (Kind::Basic, Some(credentials)) => self.basic(credentials, request),
            (Kind::Bearer(value), _) => request.header(AUTHORIZATION, value.clone()),
            (Kind::None | Kind::Basic, _) => request,
        }
    }

    fn basic(&self, credentials: &Credentials, request: RequestBuilder) -> RequestBuilder {
        request.basic_auth(&credentials.user, Some(&credentials.password))
    }
}

/// The part of a token service's answer that is used; both names are in use.
#[derive(serde::Deserialize)]
struct Granted {
    token: Option<String>,
    access_token: Option<String>,
}

impl Repository {
    /// Gets another proof than `refused`, which the registry answered with `challenge`; `None` when there is
    /// none. Requests that are refused at the same time share one.
    pub(super) async fn prove(
        &self,
        refused: &Proof,
        challenge: Option<Challenge>,
    ) -> Result<Option<Proof>, Failure> {
        let mut proof = self.access.proof.lock().await;
        if proof.number != refused.number {
            return Ok(Some(proof.clone()));
        }
        let kind = match challenge {
            // The password was refused; it will not be taken the second time.
            Some(Challenge::Basic) if matches!(proof.kind, Kind::Basic) => return Ok(None),
            Some(Challenge::Basic) if self.access.credentials.is_some() => Kind::Basic,
            Some(Challenge::Bearer { realm, service }) => {
                Kind::Bearer(self.fetch_token(&realm, service.as_deref()).await?)
            }
            Some(Challenge::Basic) | None => return Ok(None),
        };
        *proof = Proof { kind, number: proof.number + 1 };
        Ok(Some(proof.clone()))
    }

    async fn fetch_token(&self, realm: &str, service: Option<&str>) -> Result<HeaderValue, Failure> {
        let what = "the fetching of a token";
        let nonsense = |reason: String| Failure::from(self.nonsense(what, reason));
        let mut url = Url::parse(realm).map_err(|error| nonsense(format!("its token service: {error}")))?;
        if url.scheme() != "https" && !(self.is_plain && url.scheme() == "http") {
            return Err(nonsense("its token service is not behind TLS".to_owned()));
        }
        if let Some(service) = service {
            url.query_pairs_mut().append_pair("service", service);
        }
        url.query_pairs_mut().append_pair("scope", &format!("repository:{}:pull", self.path));
        let mut request = self.http.get(url);
        if let Some(credentials) = &self.access.credentials {
            request = self.access.basic(credentials, request);
        }
        let response = self.attempt(what, request).await?;
        let response = match response.status() {
            StatusCode::OK => response,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                return Err(self.denied(response).await.into());
            }
            _ => return Err(self.unexpected(what, response).await),
        };
        let body = self.body(what, response, MAX_ANSWER).await?;
        // Its text is not repeated: it may hold a secret.
        let unreadable = || nonsense("its token service's answer holds no token".to_owned());
        let granted: Granted = serde_json::from_slice(&body).map_err(|_| unreadable())?;
        let token = granted.token.or(granted.access_token).filter(|token| !token.is_empty());
        let mut value = HeaderValue::try_from(format!("Bearer {}", token.ok_or_else(unreadable)?))
            .map_err(|_| unreadable())?;
        value.set_sensitive(true);
        Ok(value)
    }

    /// What a refusal means, which depends on whether anybody was named.
    pub(super) async fn denied(&self, response: reqwest::Response) -> RegistryError {
        let said = self.said(response).await;
        let (registry, image) = (self.registry.clone(), self.image.clone());
        match &self.access.credentials {
            None => RegistryError::NeedsCredentials { registry, image, said },
            Some(Credentials { user, .. }) => {
                RegistryError::Denied { registry, image, user: user.clone(), said }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        let credentials = Credentials { user: "anna".into(), password: "hush".into() };
        let shown = format!("{credentials:?} {:?}", Access::new(Some(credentials.clone())));
        assert!(shown.contains("anna") && !shown.contains("hush"), "{shown}");
    }
}
