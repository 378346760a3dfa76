//! Requests bearer tokens from the token service of a registry.

use std::time::Duration;

use reqwest::{Method, Response, StatusCode, Url};
use tokio::time::{Instant, timeout, timeout_at};
use zeroize::Zeroizing;

use super::auth::basic;
use super::challenge::AuthChallenge;
use super::client::{ManifestSelector, Repository};
use super::credentials::RegistryCredentials;
use super::error::RegistryError;
use super::repository_token::RepositoryToken;
use super::retry::AttemptFailure;

/// Limit for the answer of a token service, which needs only a few kilobytes.
const MAX_ANSWER: u64 = 1 << 20;
/// How long a [`PullGrant`] is waited for: nodes wait for it, and the timeout of their own call is longer.
pub const GRANT_TIMEOUT: Duration = Duration::from_secs(10);

/// What a registry gives for pulls from one repository instead of the password of a user.
#[derive(Clone, Debug)]
pub enum PullGrant {
    /// A token for this repository only.
    Token(RepositoryToken),
    /// None, for this reason, although the registry demands one.
    NoToken(RegistryError),
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
    ) -> Result<PullGrant, RegistryError> {
        let (what, deadline) = ("the digest of the manifest", Instant::now() + GRANT_TIMEOUT);
        let late = |what: &str| RegistryError::Stalled {
            registry: self.registry.clone(),
            what: what.to_owned(),
            silence: GRANT_TIMEOUT,
        };
        let refusal = timeout_at(deadline, self.refusal_of_pull(what, selector)).await;
        let refusal = refusal.map_err(|_| late(what))?.map_err(|failure| failure.error)?;
        let Some(refusal) = refusal else { return Ok(PullGrant::NotNeeded) };
        let Some(AuthChallenge::Bearer { realm, service }) = self.challenge(what, &refusal)? else {
            return Ok(PullGrant::PasswordOnly);
        };
        let token = self.fetch_token(realm, service, Some(credentials.clone()));
        Ok(match timeout_at(deadline, token).await {
            Ok(Ok(token)) => PullGrant::Token(token),
            Ok(Err(failure)) => PullGrant::NoToken(failure.error),
            Err(_) => PullGrant::NoToken(late("the token request")),
        })
    }

    /// The answer with which a pull without any proof begins, if that is a demand for one; `None` if the manifest is
    /// given to anybody.
    async fn refusal_of_pull(
        &self,
        what: &str,
        selector: ManifestSelector<'_>,
    ) -> Result<Option<Response>, AttemptFailure> {
        let ask = |method| self.attempt(what, self.manifest_request(method, selector));
        let mut response = ask(Method::HEAD).await?;
        // Registries may answer HEAD otherwise than the request that fetches the manifest. A registry that does not
        // answer that one was reached nevertheless.
        let is_clear = [StatusCode::OK, StatusCode::UNAUTHORIZED, StatusCode::TOO_MANY_REQUESTS];
        if !is_clear.contains(&response.status()) {
            match timeout(GRANT_TIMEOUT / 2, ask(Method::GET)).await {
                Ok(Ok(answer)) => response = answer,
                Ok(Err(_)) | Err(_) => return Err(self.unexpected(what, response).await),
            }
        }
        match response.status() {
            StatusCode::OK => Ok(None),
            StatusCode::UNAUTHORIZED => Ok(Some(response)),
            StatusCode::NOT_FOUND => Err(self.unknown_image().into()),
            _ => Err(self.unexpected(what, response).await),
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
            // Neither this answer nor an unreadable one is included: it may contain a secret.
            status if status.is_success() => {
                return Err(nonsense(format!("its token service answers with {status}")));
            }
            _ => return Err(self.unexpected(what, response).await),
        };
        let body = Zeroizing::new(self.body(what, response, MAX_ANSWER).await?);
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
    use crate::reference::Reference;
    use crate::resolve::ResolveNames;
    use crate::settings::RegistrySettings;

    /// `anna:hush` as HTTP sends it.
    const BASIC: &str = "authorization: Basic YW5uYTpodXNo\r\n";

    /// A registry that answers HEAD with `head` and GET with `get`, and its token service with `answer`: its host, and
    /// the requests that it got. `HOST` in its answers is its host and port. An empty answer closes the connection, and
    /// a token service may be `silent`.
    async fn serve(head: &str, get: &str, answer: &str) -> (String, Arc<Mutex<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let [head, get] = [head, get].map(|head| head.replace("HOST", &host));
        let (answer, seen) = (answer.to_owned(), requests.clone());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") && stream.read_buf(&mut request).await.unwrap_or(0) > 0
                {
                }
                let request = String::from_utf8_lossy(&request).into_owned();
                let is_for_token = request.starts_with("GET /token?");
                let head = if request.starts_with("HEAD ") { &head } else { &get };
                seen.lock().unwrap().push(request);
                let reply = match answer.as_str() {
                    _ if !is_for_token && head.is_empty() => continue,
                    _ if !is_for_token => format!("{head}\r\nContent-Length: 0\r\n\r\n"),
                    "silent" => {
                        tokio::time::pause();
                        std::future::pending().await
                    }
                    "" => continue,
                    answer => answer.to_owned(),
                };
                let reply = reply.replacen("\r\n", "\r\nConnection: close\r\n", 1);
                let _ = stream.write_all(format!("HTTP/1.1 {reply}").as_bytes()).await;
            }
        });
        (host, requests)
    }

    /// What the registry gives to anna.
    async fn ask(host: &str) -> Result<PullGrant, RegistryError> {
        let reference = Reference::parse(&format!("{host}/shop/app:1")).unwrap();
        let anna = RegistryCredentials { user: "anna".to_owned(), password: "hush".to_owned() };
        RegistryClients::new(RegistrySettings::default()).pull_grant(&reference, anna).await
    }

    /// What a registry gives to anna that answers with `head`, and its token service with `answer`; and the requests
    /// that it got.
    async fn granted(head: &str, answer: &str) -> (Result<PullGrant, RegistryError>, Vec<String>) {
        let (host, requests) = serve(head, head, answer).await;
        let grant = ask(&host).await;
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
        let cases: [(&str, usize, Check); 7] = [
            ("401 Who\r\nWWW-Authenticate: Basic realm=\"x\"", 1, |it| {
                matches!(it, Ok(PullGrant::PasswordOnly))
            }),
            ("401 Who\r\nWWW-Authenticate: Negotiate", 1, |it| matches!(it, Ok(PullGrant::PasswordOnly))),
            ("200 OK", 1, |it| matches!(it, Ok(PullGrant::NotNeeded))),
            ("404 None", 2, |it| matches!(it, Err(RegistryError::UnknownImage { .. }))),
            ("403 No", 2, |it| matches!(it, Err(RegistryError::Refused { .. }))),
            ("429 Later\r\nRetry-After: 30", 1, |it| matches!(it, Err(RegistryError::Busy { .. }))),
            ("503 Later\r\nRetry-After: 30", 2, |it| matches!(it, Err(RegistryError::Busy { .. }))),
        ];
        for (head, count, check) in cases {
            let (grant, requests) = granted(head, "").await;
            assert!(check(&grant) && requests.len() == count, "{head}: {grant:?} {requests:?}");
            assert!(requests.iter().all(|request| !request.contains("authorization")), "{requests:?}");
        }
    }

    #[tokio::test]
    async fn registry_that_answers_head_otherwise_is_asked_as_by_a_pull() {
        for head in ["404 None", "405 Never", "501 Never"] {
            let (host, requests) = serve(head, BEARER, &json("200 OK", r#"{"token":"abc"}"#)).await;
            let grant = ask(&host).await;
            assert!(matches!(grant, Ok(PullGrant::Token(_))), "{head}: {grant:?}");
            assert!(requests.lock().unwrap()[1].starts_with("GET /v2/shop/app/manifests/1 "));
        }
    }

    #[tokio::test]
    async fn registry_that_answers_head_alone_was_reached() {
        for head in ["403 No", "404 None", "503 Later"] {
            let (host, _) = serve(head, "", "").await;
            let error = ask(&host).await.unwrap_err();
            assert!(
                matches!(error, RegistryError::Refused { .. } | RegistryError::Busy { .. }),
                "{head}: {error}"
            );
        }
    }

    #[tokio::test]
    async fn host_behind_a_redirect_gets_no_password() {
        let (elsewhere, requests) = serve(BEARER, BEARER, &json("200 OK", r#"{"token":"abc"}"#)).await;
        let error = granted(&format!("307 There\r\nLocation: http://{elsewhere}/x"), "").await.0.unwrap_err();
        assert!(error.to_string().ends_with("it redirects to 127.0.0.1, which demands a login"), "{error}");
        let requests = requests.lock().unwrap();
        assert!(requests.len() == 1 && requests[0].starts_with("HEAD /x "), "{requests:?}");
    }

    #[tokio::test]
    async fn failure_of_the_token_service_is_no_answer_that_there_are_no_tokens() {
        type Check = fn(&RegistryError) -> bool;
        let cases: [(String, Check); 8] = [
            (json("400 Bad", "x"), |it| matches!(it, RegistryError::Refused { .. })),
            (json("404 None", "x"), |it| matches!(it, RegistryError::Refused { .. })),
            (json("429 Later", "x"), |it| matches!(it, RegistryError::Busy { .. })),
            (json("503 Later", "x"), |it| matches!(it, RegistryError::Busy { .. })),
            (json("200 OK", "x"), |it| matches!(it, RegistryError::InvalidAnswer { .. })),
            (json("201 Made", r#"{"token":"hush"}"#), |it| matches!(it, RegistryError::InvalidAnswer { .. })),
            (String::new(), |it| matches!(it, RegistryError::Broken { .. })),
            ("silent".to_owned(), |it| matches!(it, RegistryError::Stalled { silence: GRANT_TIMEOUT, .. })),
        ];
        for (answer, check) in cases {
            let grant = granted(BEARER, &answer).await.0;
            let Ok(PullGrant::NoToken(error)) = &grant else { panic!("{answer}: {grant:?}") };
            assert!(check(error) && !error.to_string().contains("hush"), "{answer}: {error}");
        }
    }

    #[tokio::test]
    async fn wrong_password_is_denied() {
        let answer = json("401 No", r#"{"errors":[{"message":"bad password"}]}"#);
        let Ok(PullGrant::NoToken(error)) = granted(BEARER, &answer).await.0 else { panic!("it is right") };
        assert!(matches!(error, RegistryError::Denied { .. }), "{error}");
        let text = error.to_string();
        for words in ["shop/app:1", "user \"anna\"", "bad password", "`warren registry login 127.0.0.1:"] {
            assert!(text.contains(words) && !text.contains("hush"), "{text}");
        }
        let nonsense = granted(BEARER, &json("200 OK", r#"{"token":"open sesame"}"#)).await.0;
        let Ok(PullGrant::NoToken(nonsense)) = &nonsense else { panic!("{nonsense:?}") };
        assert!(matches!(nonsense, RegistryError::InvalidAnswer { .. }), "{nonsense}");
        assert!(!nonsense.to_string().contains("sesame"), "{nonsense}");
    }
}
