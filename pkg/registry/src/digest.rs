//! Content digests: always SHA-256, always written as `sha256:` and 64 lower-case hexadecimal digits.

use std::fmt;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use warren_types::ImageDigest;

/// The SHA-256 digest of some bytes, in the form that OCI documents use.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self::finish(Sha256::new_with_prefix(bytes))
    }

    /// The digest of everything a hasher has consumed.
    pub fn finish(hasher: Sha256) -> Self {
        let mut text = String::with_capacity(71);
        text.push_str("sha256:");
        for byte in hasher.finalize() {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        Self(text)
    }

    /// Parses `sha256:<64 hex>`.
    ///
    /// # Errors
    /// A sentence with the invalid text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let hex = text.strip_prefix("sha256:").unwrap_or_default();
        let valid = hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        match valid {
            true => Ok(Self(text.to_owned())),
            false => Err(format!("expected sha256: and 64 hexadecimal digits, got {text:?}")),
        }
    }

    /// The digits after the algorithm.
    pub fn hex(&self) -> &str {
        &self.0["sha256:".len()..]
    }

    /// The whole text, as in documents and containerd.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The chain id of a stack of layers whose uncompressed digests are `diff_ids`, lowest first, one per
    /// prefix. Source: OCI image specification, "Layer ChainID".
    pub fn chain_ids(diff_ids: &[Digest]) -> Vec<Digest> {
        let mut chain: Vec<Digest> = Vec::with_capacity(diff_ids.len());
        for diff_id in diff_ids {
            let next = match chain.last() {
                None => diff_id.clone(),
                Some(below) => Digest::of(format!("{below} {diff_id}").as_bytes()),
            };
            chain.push(next);
        }
        chain
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.0
    }
}

/// The image digest type of the cluster, converted to the type of this crate.
impl From<&ImageDigest> for Digest {
    fn from(digest: &ImageDigest) -> Self {
        Self(digest.as_str().to_owned())
    }
}

/// The image digest as sent to the cluster.
impl From<&Digest> for ImageDigest {
    fn from(digest: &Digest) -> Self {
        digest.as_str().parse().expect("both are sha256: and 64 lower-case hexadecimal digits")
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_digest_and_round_trip() {
        let empty = Digest::of(b"");
        assert_eq!(empty.as_str(), "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(Digest::parse(empty.as_str()), Ok(empty.clone()));
        assert_eq!(empty.hex().len(), 64);
        assert_eq!(Digest::from(&ImageDigest::from(&empty)), empty);
    }

    #[test]
    fn malformed_digest_is_rejected() {
        let upper = Digest::of(b"").as_str().replace('e', "E");
        for text in ["", "sha256:", "sha256:abc", "sha512:00", "../../etc/passwd", &upper] {
            assert!(Digest::parse(text).is_err(), "{text}");
            assert!(text.parse::<ImageDigest>().is_err(), "{text}: none that the cluster takes for one");
        }
    }

    #[test]
    fn chain_ids_fold_from_lowest_layer() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let chain = Digest::chain_ids(&[a.clone(), b.clone()]);
        assert_eq!(chain[0], a);
        assert_eq!(chain[1], Digest::of(format!("{a} {b}").as_bytes()));
        assert!(Digest::chain_ids(&[]).is_empty());
    }
}
