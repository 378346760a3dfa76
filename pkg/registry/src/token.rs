//! Requests bearer tokens from the token service of a registry.

use reqwest::{Method, StatusCode, Url};
use zeroize::Zeroizing;

use super::auth::basic;
use super::challenge::AuthChallenge;
use super::client::{ManifestSelector, Repository, challenge};
use super::credentials::RegistryCredentials;
use super::repository_token::RepositoryToken;
use super::retry::AttemptFailure;

/// Limit for the answer of a token service, which needs only a few kilobytes.
const MAX_ANSWER: u64 = 1 << 20;

/// What a registry gives for pulls from one repository instead of the password of a user.
#[derive(Clone, Debug)]
pub enum PullGrant {
    /// A token for this repository only.
    Token(RepositoryToken),
    /// Nothing: it has no tokens, and demands the password with each request.
    PasswordOnly,
    /// It demands nothing from anybody who pulls this image.
    NotNeeded,
}

impl Repository {
    /// Requests what is needed for pulls from this repository as that user; one attempt. The password is sent to the
    /// token service and to nobody else.
    pub(super) async fn pull_grant(
        &self,
        selector: ManifestSelector<'_>,
        credentials: &RegistryCredentials,
    ) -> Result<PullGrant, AttemptFailure> {
        let what = "the digest of the manifest";
        let response = self.attempt(what, self.manifest_request(Method::HEAD, selector)).await?;
        match response.status() {
            StatusCode::UNAUTHORIZED => {}
            StatusCode::OK | StatusCode::NOT_FOUND => return Ok(PullGrant::NotNeeded),
            _ => return Err(self.unexpected(what, response).await),
        }
        match challenge(&response) {
            Some(AuthChallenge::Bearer { realm, service }) => {
                let token = self.fetch_token(realm, service, Some(credentials.clone())).await?;
                Ok(PullGrant::Token(token))
            }
            Some(AuthChallenge::Basic) | None => Ok(PullGrant::PasswordOnly),
        }
    }

    /// Requests a token of `realm` for `service`, as that user or as nobody; one attempt.
    pub(super) async fn fetch_token(
        &self,
        realm: String,
        service: Option<String>,
        credentials: Option<RegistryCredentials>,
    ) -> Result<RepositoryToken, AttemptFailure> {
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
        if let Some(credentials) = &credentials {
            request = basic(credentials, request);
        }
        let response = self.attempt(what, request).await?;
        let response = match response.status() {
            StatusCode::OK => response,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let user = credentials.map(|credentials| credentials.user.clone());
                return Err(self.access_denied(user, response).await.into());
            }
            _ => return Err(self.unexpected(what, response).await),
        };
        let body = Zeroizing::new(self.body(what, response, MAX_ANSWER).await?);
        // The answer is not included: it may contain a secret.
        let unreadable = || nonsense("the answer of its token service contains no token".to_owned());
        RepositoryToken::from_answer(&body).ok_or_else(unreadable)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::clients::RegistryClients;
    use crate::error::RegistryError;
    use crate::reference::Reference;
    use crate::resolve::ResolveNames;
    use crate::settings::RegistrySettings;

    /// `anna:hush` as HTTP sends it.
    const BASIC: &str = "authorization: Basic YW5uYTpodXNo\r\n";

    /// What a registry gives to anna that answers with `head`, and its token service with `answer`; and the requests
    /// that it got. `HOST` in the head is its host and port.
    async fn granted(head: &str, answer: &str) -> (Result<PullGrant, RegistryError>, Vec<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let (head, answer, seen) = (head.replace("HOST", &host), answer.to_owned(), requests.clone());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") && stream.read_buf(&mut request).await.unwrap_or(0) > 0
                {
                }
                let request = String::from_utf8_lossy(&request).into_owned();
                let reply = match request.starts_with("GET /token?") {
                    true => answer.clone(),
                    false => format!("{head}\r\nContent-Length: 0\r\n\r\n"),
                };
                seen.lock().unwrap().push(request);
                let reply = reply.replacen("\r\n", "\r\nConnection: close\r\n", 1);
                let _ = stream.write_all(format!("HTTP/1.1 {reply}").as_bytes()).await;
            }
        });
        let mut settings = RegistrySettings::default();
        settings.policy.max_tries = 1;
        let reference = Reference::parse(&format!("{host}/shop/app:1")).unwrap();
        let anna = RegistryCredentials { user: "anna".to_owned(), password: "hush".to_owned() };
        let grant = RegistryClients::new(settings).pull_grant(&reference, anna).await;
        let requests = requests.lock().unwrap().clone();
        (grant, requests)
    }

    fn json(status: &str, body: &str) -> String {
        format!("{status}\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    }

    const BEARER: &str =
        "401 Who\r\nWWW-Authenticate: Bearer realm=\"http://HOST/token\",service=\"the registry\"";

    #[tokio::test]
    async fn token_of_one_repository_is_requested_with_the_password() {
        let answer = json("200 OK", r#"{"token":"abc","expires_in":300}"#);
        let (grant, requests) = granted(BEARER, &answer).await;
        let Ok(PullGrant::Token(token)) = &grant else { panic!("{grant:?}") };
        assert_eq!(token.text(), "abc");
        assert!((290..=300).contains(&token.remaining().as_secs()), "{token:?}");
        let [asked, fetched] = requests.as_slice() else { panic!("{requests:?}") };
        assert!(asked.starts_with("HEAD /v2/shop/app/manifests/1 ") && !asked.contains("authorization"));
        let scope = "GET /token?service=the+registry&scope=repository%3Ashop%2Fapp%3Apull ";
        assert!(fetched.starts_with(scope) && fetched.contains(BASIC), "{fetched}");
    }

    #[tokio::test]
    async fn password_is_sent_to_no_registry_without_tokens() {
        type Check = fn(&Result<PullGrant, RegistryError>) -> bool;
        let cases: [(&str, Check); 6] = [
            ("401 Who\r\nWWW-Authenticate: Basic realm=\"x\"", |it| {
                matches!(it, Ok(PullGrant::PasswordOnly))
            }),
            ("401 Who\r\nWWW-Authenticate: Negotiate", |it| matches!(it, Ok(PullGrant::PasswordOnly))),
            ("200 OK", |it| matches!(it, Ok(PullGrant::NotNeeded))),
            ("404 None", |it| matches!(it, Ok(PullGrant::NotNeeded))),
            ("403 No", |it| matches!(it, Err(RegistryError::Refused { .. }))),
            ("503 Later", |it| matches!(it, Err(RegistryError::Busy { .. }))),
        ];
        for (head, check) in cases {
            let (grant, requests) = granted(head, "").await;
            assert!(check(&grant) && requests.len() == 1, "{head}: {grant:?} {requests:?}");
            assert!(!requests[0].contains("authorization"), "{requests:?}");
        }
    }

    #[tokio::test]
    async fn wrong_password_is_denied() {
        let answer = json("401 No", r#"{"errors":[{"message":"bad password"}]}"#);
        let error = granted(BEARER, &answer).await.0.unwrap_err();
        assert!(matches!(error, RegistryError::Denied { .. }), "{error}");
        let text = error.to_string();
        for words in ["shop/app:1", "user \"anna\"", "bad password", "`warren registry login 127.0.0.1:"] {
            assert!(text.contains(words) && !text.contains("hush"), "{text}");
        }
        let nonsense = granted(BEARER, &json("200 OK", r#"{"token":"open sesame"}"#)).await.0.unwrap_err();
        assert!(matches!(nonsense, RegistryError::InvalidAnswer { .. }), "{nonsense}");
        assert!(!nonsense.to_string().contains("sesame"), "{nonsense}");
    }
}
