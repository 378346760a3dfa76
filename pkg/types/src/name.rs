//! Names set by users. Each is checked once, when it is parsed.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::text::{serde_as_text, shorten};

/// A text that is not a name of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not {expected}")]
pub struct ParseNameError {
    expected: &'static str,
    found: String,
}

impl ParseNameError {
    /// Repeats at most the first 64 characters of what was found.
    pub(crate) fn new(expected: &'static str, found: &str) -> Self {
        Self { expected, found: shorten(found) }
    }
}

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident: $expected:literal, $valid:path;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = ParseNameError;

            fn from_str(text: &str) -> Result<Self, ParseNameError> {
                if $valid(text) {
                    return Ok(Self(text.into()));
                }
                Err(ParseNameError::new($expected, text))
            }
        }

        serde_as_text!($name);
    )*};
}

pub(crate) use names;

names! {
    /// A service's name: also its DNS name, so one DNS label, lower case. Stacks name their services `shop_web`.
    ServiceName:
        "a service name (1 to 63 of a-z, 0-9, '-' and '_', starting and ending with a letter or digit; a '.' separates \
         service and slot in the names of tasks)", dns_label;
    /// A node's name, by default its host name.
    NodeName:
        "a node name (1 to 253 letters, digits, '.' and '-', starting and ending with a letter or digit)", host_name;
    /// An image reference: `nginx:1.27`, `ghcr.io/org/app@sha256:...`. [`crate::spec::TaskSpec::validate`] checks the
    /// full grammar.
    ImageReference:
        "an image reference (like nginx:1.27 or ghcr.io/org/app:2, at most 512 characters)", image_reference;
    /// Name of a secret or config, and of a credential the registry's host and port.
    SecretObjectName:
        "a name (1 to 64 letters, digits, '.', '_', '-' and ':', starting and ending with a letter or digit)",
        secret_object_name;
    /// A volume's name: also the name of its directory.
    VolumeName:
        "a volume name (1 to 64 letters, digits, '.', '_' and '-', starting and ending with a letter or digit)",
        volume_name;
    /// A user's name: also the name in certificates.
    UserName:
        "a user name (1 to 64 letters, digits, '.', '_', '-', '@' and '+', starting and ending with a letter or digit)",
        user_name;
    /// The digest of an image's manifest or index: `sha256:` and 64 hexadecimal digits.
    ImageDigest:
        "an image digest (sha256: and 64 of 0-9 and a-f)", is_image_digest;
}

fn ends_alphanumeric(text: &str) -> bool {
    let at = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    at(text.as_bytes().first()) && at(text.as_bytes().last())
}

pub(crate) fn dns_label(text: &str) -> bool {
    text.len() <= 63
        && ends_alphanumeric(text)
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_')
}

fn host_name(text: &str) -> bool {
    text.len() <= 253
        && ends_alphanumeric(text)
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-')
}

fn secret_object_name(text: &str) -> bool {
    text.len() <= 64
        && ends_alphanumeric(text)
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-:".contains(&b))
}

fn volume_name(text: &str) -> bool {
    secret_object_name(text) && !text.contains(':')
}

fn user_name(text: &str) -> bool {
    text.len() <= 64
        && ends_alphanumeric(text)
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-@+".contains(&b))
}

fn image_reference(text: &str) -> bool {
    // A tag may end in a punctuation mark.
    text.len() <= 512
        && ends_alphanumeric(text.trim_end_matches(['.', '_', '-']))
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-/:@".contains(&b))
}

pub(crate) fn is_image_digest(text: &str) -> bool {
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.strip_prefix("sha256:").is_some_and(|digits| digits.len() == 64 && digits.bytes().all(hex))
}

/// The format of a label's key: 1 to 128 letters, digits, `.`, `_`, `-` and `/`.
pub fn is_label_key(key: &str) -> bool {
    (1..=128).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-/".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_names_are_dns_labels() {
        let longest = "a".repeat(63);
        let too_long = "a".repeat(64);
        for good in ["a", "web", "web-2", "shop_web", "0", &longest] {
            assert!(good.parse::<ServiceName>().is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "_a", "a_", "Web", "a.b", "ä", "a b", &too_long] {
            assert!(bad.parse::<ServiceName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn malformed_image_reference_is_refused() {
        for good in ["nginx", "nginx:1.27", "localhost:5000/a/b@sha256:0123abcd", "nginx:1_"] {
            assert!(good.parse::<ImageReference>().is_ok(), "{good}");
        }
        for bad in ["", ":", "a b", "nginx:", "../x", "x\n"] {
            assert!(bad.parse::<ImageReference>().is_err(), "{bad}");
        }
    }
}
