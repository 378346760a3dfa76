//! A bearer token for one repository. Source: Docker's "Token Authentication Specification".

use std::fmt;
use std::time::Duration;

use reqwest::header::HeaderValue;
use tokio::time::Instant;
use zeroize::Zeroizing;

/// The most bytes of a token; servers refuse larger headers.
const MAX_TOKEN: usize = 64 << 10;
/// The lifetime of a token whose service does not tell it, and the shortest one, by the specification.
const MIN_LIFETIME: Duration = Duration::from_secs(60);
/// A longer lifetime is cut.
const MAX_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// A bearer token for pulls from one repository. It is wiped from memory on drop.
#[derive(Clone)]
pub struct RepositoryToken {
    text: Zeroizing<String>,
    expires: Instant,
}

/// The used part of a token service's answer; both names of the token exist in practice.
#[derive(serde::Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
    /// In seconds.
    #[serde(default)]
    expires_in: serde_json::Value,
}

impl RepositoryToken {
    /// A token that is valid for that long from now on; `None` if it cannot be sent in a header.
    pub fn new(text: Zeroizing<String>, valid_for: Duration) -> Option<Self> {
        let is_sendable = (1..=MAX_TOKEN).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
        is_sendable.then(|| Self { text, expires: Instant::now() + valid_for.min(MAX_LIFETIME) })
    }

    /// The token in the answer of a token service; `None` if it has none.
    pub fn from_answer(body: &[u8]) -> Option<Self> {
        let TokenAnswer { token, access_token, expires_in } = serde_json::from_slice(body).ok()?;
        let [token, access_token] = [token, access_token].map(|text| text.map(Zeroizing::new));
        let text = token.filter(|text| !text.is_empty()).or(access_token)?;
        let lifetime = Duration::from_secs(expires_in.as_u64().unwrap_or_default());
        Self::new(text, lifetime.max(MIN_LIFETIME))
    }

    /// The token itself.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// How long it is still valid, by the clock of this process.
    pub fn remaining(&self) -> Duration {
        self.expires.saturating_duration_since(Instant::now())
    }

    pub(super) fn is_expired(&self) -> bool {
        self.remaining().is_zero()
    }

    pub(super) fn header(&self) -> HeaderValue {
        let text = Zeroizing::new(format!("Bearer {}", self.text()));
        let mut value = HeaderValue::from_str(&text).expect("its characters were checked");
        value.set_sensitive(true);
        value
    }
}

impl fmt::Debug for RepositoryToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RepositoryToken(valid for {:?})", self.remaining())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(answer: &str) -> Option<(String, u64)> {
        let token = RepositoryToken::from_answer(answer.as_bytes())?;
        Some((token.text().to_owned(), token.remaining().as_secs()))
    }

    #[tokio::test(start_paused = true)]
    async fn answers_of_token_services_are_read() {
        let long = "a".repeat(MAX_TOKEN);
        for (answer, expected) in [
            (r#"{"token":"abc.def","expires_in":300,"issued_at":"x"}"#, Some(("abc.def", 300))),
            (r#"{"access_token":"abc"}"#, Some(("abc", 60))),
            (r#"{"token":"","access_token":"abc","expires_in":3}"#, Some(("abc", 60))),
            (r#"{"token":"one","access_token":"two","expires_in":"soon"}"#, Some(("one", 60))),
            (r#"{"token":"abc","expires_in":18446744073709551615}"#, Some(("abc", 86_400))),
            (&format!(r#"{{"token":"{long}"}}"#), Some((long.as_str(), 60))),
            (&format!(r#"{{"token":"{long}a"}}"#), None),
            (r#"{"token":"a\r\nX-Other: b"}"#, None),
            (r#"{"token":"a b"}"#, None),
            (r#"{"token":""}"#, None),
            (r#"{"token":7}"#, None),
            (r#"{"expires_in":300}"#, None),
            ("[]", None),
            ("", None),
        ] {
            assert_eq!(token(answer), expected.map(|(text, seconds)| (text.to_owned(), seconds)), "{answer}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn token_is_not_shown_and_expires() {
        let token = RepositoryToken::new("hush".to_owned().into(), Duration::from_secs(60)).unwrap();
        let header = token.header();
        assert_eq!(header.to_str().unwrap(), "Bearer hush");
        let shown = format!("{token:?} {header:?}");
        assert!(shown.contains("60s") && !shown.contains("hush"), "{shown}");
        tokio::time::advance(Duration::from_secs(59)).await;
        assert!(!token.is_expired());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(token.is_expired());
    }
}
