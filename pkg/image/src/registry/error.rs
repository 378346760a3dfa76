//! Why a registry did not give what was wanted.

use std::time::Duration;

use reqwest::StatusCode;

use crate::digest::Digest;

/// A registry that did not give what was wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// The registry has no such image.
    #[error("the registry {registry} has no image {image}; look at its name and tag, or push it first")]
    UnknownImage {
        /// The registry, as image names name it.
        registry: String,
        /// Repository and tag or digest.
        image: String,
    },
    /// The registry has a manifest but not all it consists of.
    #[error("the registry {registry} lacks blob {digest} of its own image {image}; push the image again")]
    UnknownBlob {
        /// The registry.
        registry: String,
        /// Repository and tag or digest.
        image: String,
        /// The blob.
        digest: Digest,
    },
    /// The registry lets nobody in without credentials, and none were given.
    #[error(
        "the registry {registry} does not give {image} to the public: {said}; \
         if it exists, it needs credentials: give them with `warren registry login {registry}`"
    )]
    NeedsCredentials {
        /// The registry.
        registry: String,
        /// Repository and tag or digest.
        image: String,
        /// The registry's own words.
        said: String,
    },
    /// The registry knows the user not, the password not, or gives him no access to the image.
    #[error(
        "the registry {registry} refuses {image} to user {user:?}: {said}; \
         its credentials are wrong, and `warren registry login {registry}` replaces them, or the user lacks the right"
    )]
    Denied {
        /// The registry.
        registry: String,
        /// Repository and tag or digest.
        image: String,
        /// Whom it refused.
        user: String,
        /// The registry's own words.
        said: String,
    },
    /// No connection could be made.
    #[error("the registry {registry} cannot be reached: {reason}")]
    Unreachable {
        /// The registry.
        registry: String,
        /// Name resolution's or the connection's words.
        reason: String,
    },
    /// TLS failed, which trying again does not change.
    #[error("no TLS connection with the registry {registry}: {reason}; {advice}")]
    Tls {
        /// The registry.
        registry: String,
        /// What was wrong.
        reason: String,
        /// What to do.
        advice: &'static str,
    },
    /// Nothing came for too long.
    #[error("the registry {registry} stalled: not one byte of {what} for {silence:?}")]
    Stalled {
        /// The registry.
        registry: String,
        /// What was asked for.
        what: String,
        /// How long nothing came.
        silence: Duration,
    },
    /// The connection broke.
    #[error("the connection with the registry {registry} broke during {what}: {reason}")]
    Broken {
        /// The registry.
        registry: String,
        /// What was asked for.
        what: String,
        /// What broke it.
        reason: String,
    },
    /// The registry has troubles of its own, or asks to come later.
    #[error("the registry {registry} answers {status} to {what}: {said}")]
    Busy {
        /// The registry.
        registry: String,
        /// What was asked for.
        what: String,
        /// 429 or 5xx.
        status: StatusCode,
        /// The registry's own words.
        said: String,
    },
    /// The registry understood and does not want to.
    #[error("the registry {registry} refuses {what} with {status}: {said}")]
    Refused {
        /// The registry.
        registry: String,
        /// What was asked for.
        what: String,
        /// The status.
        status: StatusCode,
        /// The registry's own words.
        said: String,
    },
    /// An answer that no registry gives.
    #[error("the registry {registry} does not answer {what} as registries do: {reason}")]
    Nonsense {
        /// The registry.
        registry: String,
        /// What was asked for.
        what: String,
        /// What was wrong with the answer.
        reason: String,
    },
}

impl RegistryError {
    /// Whether the same request may succeed later without anybody changing anything.
    pub fn is_transient(&self) -> bool {
        use RegistryError as E;
        matches!(self, E::Unreachable { .. } | E::Stalled { .. } | E::Broken { .. } | E::Busy { .. })
    }
}

/// The words of a registry as they may be shown: one line, bounded, without control characters.
pub(super) fn said(body: &[u8]) -> String {
    const LONGEST: usize = 200;
    #[derive(serde::Deserialize)]
    struct Envelope {
        errors: Vec<Complaint>,
    }
    #[derive(serde::Deserialize)]
    struct Complaint {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let text = match serde_json::from_slice::<Envelope>(body) {
        Ok(Envelope { errors }) => {
            let words = |each: &Complaint| match each.message.is_empty() {
                true => each.code.clone(),
                false => each.message.clone(),
            };
            errors.iter().map(words).collect::<Vec<_>>().join(", ")
        }
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    };
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
    let mut words = plain.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = words.char_indices().nth(LONGEST) {
        words.truncate(end);
        words.push_str(" ...");
    }
    if words.is_empty() { "it gives no reason".to_owned() } else { words }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registrys_words_are_shown_plain_and_short() {
        let envelope =
            br#"{"errors":[{"code":"DENIED","message":"no access"},{"code":"TOOMANYREQUESTS","detail":{}}]}"#;
        assert_eq!(said(envelope), "no access, TOOMANYREQUESTS");
        assert_eq!(said(b"<h1>Bad\r\n\x1b[31mGateway</h1>"), "<h1>Bad [31mGateway</h1>");
        assert_eq!(said(b""), "it gives no reason");
        assert_eq!(said("\u{e9}".repeat(5000).as_bytes()).chars().count(), 204);
    }

    #[test]
    fn only_faults_of_the_moment_are_transient() {
        let registry = || "r.io".to_owned();
        assert!(RegistryError::Unreachable { registry: registry(), reason: String::new() }.is_transient());
        assert!(!RegistryError::UnknownImage { registry: registry(), image: "a:1".into() }.is_transient());
        let tls = RegistryError::Tls { registry: registry(), reason: String::new(), advice: "" };
        assert!(!tls.is_transient());
    }
}
