//! Requests bearer tokens from the token service of a registry.

use reqwest::header::HeaderValue;
use reqwest::{StatusCode, Url};

use super::client::Repository;
use super::retry::AttemptFailure;

/// Limit for the answer of a token service, which needs only a few kilobytes.
const MAX_ANSWER: u64 = 1 << 20;

/// The used part of a token service's answer; both field names exist in practice.
#[derive(serde::Deserialize)]
struct TokenResponse {
    token: Option<String>,
    access_token: Option<String>,
}

impl Repository {
    /// Requests a token of `realm` for `service`; one attempt.
    pub(super) async fn fetch_token(
        &self,
        realm: String,
        service: Option<String>,
    ) -> Result<HeaderValue, AttemptFailure> {
        let what = "the token request";
        let nonsense = |reason: String| AttemptFailure::from(self.invalid_answer(what, reason));
        let mut url = Url::parse(&realm).map_err(|error| nonsense(format!("its token service: {error}")))?;
        if url.scheme() != "https" && !(self.uses_plain_http && url.scheme() == "http") {
            return Err(nonsense("its token service does not use TLS".to_owned()));
        }
        let mut http = &self.http;
        if let Some(guard) = &self.guard {
            guard.rules.check(&url).map_err(|error| nonsense(format!("its token service: {error}")))?;
            http = if guard.rules.is_exempt(&url) { http } else { &guard.client };
        }
        if let Some(service) = service {
            url.query_pairs_mut().append_pair("service", &service);
        }
        url.query_pairs_mut().append_pair("scope", &format!("repository:{}:pull", self.path));
        let mut request = http.get(url);
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
}
