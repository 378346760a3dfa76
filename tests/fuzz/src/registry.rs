//! Arbitrary bytes as answers of registries and of their token services.

use std::time::Duration;

use warren_registry::RepositoryToken;
use warren_registry::testing::{bearer_challenge, error_message};

/// The most bytes of a token.
const MAX_TOKEN: usize = 64 << 10;
/// The longest lifetime of a token.
const MAX_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// The most characters of an error, with its mark.
const MAX_MESSAGE: usize = 204;

/// A token can be sent in a header and has a bounded lifetime, a challenge is not longer than its headers, and the text
/// of an error is one bounded line.
pub fn run(bytes: &[u8]) {
    accepted(bytes);
}

/// What an input is, for the test of the corpus; `None` if it is refused. Its first byte selects the parser.
pub fn accepted(bytes: &[u8]) -> Option<&'static str> {
    let (kind, rest) = bytes.split_first()?;
    match kind % 3 {
        0 => {
            let headers = String::from_utf8_lossy(rest);
            let (realm, service) = bearer_challenge(headers.lines())?;
            let found = realm.len() + service.map_or(0, |service| service.len());
            assert!(found <= headers.len(), "{found} bytes of {}", headers.len());
            Some("challenge")
        }
        1 => {
            let token = RepositoryToken::from_answer(rest)?;
            assert!((1..=MAX_TOKEN).contains(&token.text().len()) && token.remaining() <= MAX_LIFETIME);
            assert!(token.text().bytes().all(|byte| byte.is_ascii_graphic()), "{:?}", token.text());
            Some("token")
        }
        _ => {
            let message = error_message(rest);
            assert!((1..=MAX_MESSAGE).contains(&message.chars().count()), "{message:?}");
            assert!(!message.contains(char::is_control), "{message:?}");
            (message != "no reason given").then_some("error")
        }
    }
}
