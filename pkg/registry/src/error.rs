//! Errors of requests to a registry.

use std::time::Duration;

use reqwest::StatusCode;

use crate::digest::Digest;

/// A failed request to a registry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// The registry has no such image.
    #[error("registry {registry} has no image {image}; check its name and tag, or push it first")]
    UnknownImage {
        /// Registry host, as in image references.
        registry: String,
        /// Repository and tag or digest.
        image: String,
    },
    /// The registry has a manifest but not every blob of it.
    #[error("registry {registry} has no blob {digest} of its image {image}; push the image again")]
    UnknownBlob {
        /// Registry host.
        registry: String,
        /// Repository and tag or digest.
        image: String,
        /// The blob.
        digest: Digest,
    },
    /// The registry requires credentials, and none were given.
    #[error(
        "registry {registry} denies anonymous access to {image}: {message}; \
         if the image exists, it needs credentials: add them with `warren registry login {registry}`"
    )]
    NeedsCredentials {
        /// Registry host.
        registry: String,
        /// Repository and tag or digest.
        image: String,
        /// Message of the registry.
        message: String,
    },
    /// The registry rejects the user or password, or denies access to the image.
    #[error(
        "registry {registry} denies {image} to user {user:?}: {message}; \
         correct the credentials with `warren registry login {registry}`, or grant the user access"
    )]
    Denied {
        /// Registry host.
        registry: String,
        /// Repository and tag or digest.
        image: String,
        /// The rejected user.
        user: String,
        /// Message of the registry.
        message: String,
    },
    /// The connection failed.
    #[error("cannot reach registry {registry}: {reason}")]
    Unreachable {
        /// Registry host.
        registry: String,
        /// Error of name resolution or the connection.
        reason: String,
        /// The connection was to the registry itself, and not to its token service or to where it redirects.
        is_own_host: bool,
    },
    /// TLS failed; a retry does not help.
    #[error("TLS connection to registry {registry} failed: {reason}; {advice}")]
    Tls {
        /// Registry host.
        registry: String,
        /// What failed.
        reason: String,
        /// What to do.
        advice: &'static str,
        /// It was the handshake of a connection to the registry itself.
        is_own_host: bool,
    },
    /// No data arrived within the stall timeout.
    #[error("registry {registry} stalled: no data for {what} in {silence:?}")]
    Stalled {
        /// Registry host.
        registry: String,
        /// What was requested.
        what: String,
        /// Time without data.
        silence: Duration,
    },
    /// The connection broke.
    #[error("connection to registry {registry} broke during {what}: {reason}")]
    Broken {
        /// Registry host.
        registry: String,
        /// What was requested.
        what: String,
        /// Why it broke.
        reason: String,
    },
    /// The registry has an internal error or limits the request rate.
    #[error("registry {registry} returned {status} for {what}: {message}")]
    Busy {
        /// Registry host.
        registry: String,
        /// What was requested.
        what: String,
        /// 429 or 5xx.
        status: StatusCode,
        /// Message of the registry.
        message: String,
    },
    /// The settings of this process forbid to connect to it.
    #[error(
        "registry {registry} is not asked from here: {reason}; let nodes resolve the image with --resolve-image \
         worker, or list exactly this HOST:PORT as --insecure-registry of the managers"
    )]
    Forbidden {
        /// Registry host.
        registry: String,
        /// Which host it is.
        reason: String,
    },
    /// The access that another process gives was not renewed.
    #[error("access to registry {registry} was not renewed: {reason}")]
    NotRenewed {
        /// Registry host.
        registry: String,
        /// Why, as a sentence.
        reason: String,
        /// Whether another request may succeed.
        is_transient: bool,
    },
    /// The registry rejected the request.
    #[error("registry {registry} rejected {what} with {status}: {message}")]
    Refused {
        /// Registry host.
        registry: String,
        /// What was requested.
        what: String,
        /// HTTP status.
        status: StatusCode,
        /// Message of the registry.
        message: String,
    },
    /// The answer does not follow the registry protocol.
    #[error("invalid response from registry {registry} to {what}: {reason}")]
    InvalidAnswer {
        /// Registry host.
        registry: String,
        /// What was requested.
        what: String,
        /// What is invalid in the answer.
        reason: String,
    },
}

impl RegistryError {
    /// Whether the same request may succeed later unchanged.
    pub fn is_transient(&self) -> bool {
        use RegistryError as E;
        match self {
            E::Unreachable { .. } | E::Stalled { .. } | E::Broken { .. } | E::Busy { .. } => true,
            E::NotRenewed { is_transient, .. } => *is_transient,
            _ => false,
        }
    }
}

/// The message of a registry, made printable: one line, bounded, without control characters.
pub(super) fn error_message(body: &[u8]) -> String {
    const MAX_MESSAGE: usize = 200;
    #[derive(serde::Deserialize)]
    struct ErrorBody {
        errors: Vec<ErrorDetail>,
    }
    #[derive(serde::Deserialize)]
    struct ErrorDetail {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let text = match serde_json::from_slice::<ErrorBody>(body) {
        Ok(ErrorBody { errors }) => {
            let words = |each: &ErrorDetail| match each.message.is_empty() {
                true => each.code.clone(),
                false => each.message.clone(),
            };
            errors.iter().map(words).collect::<Vec<_>>().join(", ")
        }
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    };
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>();
    let mut words = plain.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = words.char_indices().nth(MAX_MESSAGE) {
        words.truncate(end);
        words.push_str(" ...");
    }
    if words.is_empty() { "no reason given".to_owned() } else { words }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registry_message_is_sanitized_and_bounded() {
        let envelope =
            br#"{"errors":[{"code":"DENIED","message":"no access"},{"code":"TOOMANYREQUESTS","detail":{}}]}"#;
        assert_eq!(error_message(envelope), "no access, TOOMANYREQUESTS");
        assert_eq!(error_message(b"<h1>Bad\r\n\x1b[31mGateway</h1>"), "<h1>Bad [31mGateway</h1>");
        assert_eq!(error_message(b""), "no reason given");
        assert_eq!(error_message("\u{e9}".repeat(5000).as_bytes()).chars().count(), 204);
    }

    #[test]
    fn only_temporary_errors_are_transient() {
        let registry = || "r.io".to_owned();
        let (reason, is_own_host) = (String::new(), true);
        let unreachable = RegistryError::Unreachable { registry: registry(), reason, is_own_host };
        assert!(unreachable.is_transient());
        assert!(!RegistryError::UnknownImage { registry: registry(), image: "a:1".into() }.is_transient());
        let tls = RegistryError::Tls { registry: registry(), reason: String::new(), advice: "", is_own_host };
        assert!(!tls.is_transient());
    }
}
