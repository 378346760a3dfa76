//! The certificate authority of a cluster: the digest by which it is recognised, and its replacement.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{MemberId, NodeId, PublicKeyHash, SealedData, Timestamp};

const DIGITS: usize = 64;

/// SHA-256 of the certificate of an authority in DER.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct CaDigest([u8; 32]);

impl CaDigest {
    /// What [`CaDigest::as_bytes`] gave.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// A text that is not the digest of an authority.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected the digest of a CA, which has {DIGITS} hexadecimal digits: {why}")]
pub struct ParseDigestError {
    why: String,
}

/// 64 lower-case hexadecimal digits.
impl fmt::Display for CaDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Either case.
impl FromStr for CaDigest {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, ParseDigestError> {
        let found = text.chars().count();
        if text.len() != DIGITS {
            return Err(ParseDigestError { why: format!("found {found} characters") });
        }
        if let Some(index) = text.chars().position(|digit| !digit.is_ascii_hexdigit()) {
            return Err(ParseDigestError { why: format!("character {} is none", index + 1) });
        }
        let mut bytes = [0; DIGITS / 2];
        for (index, digit) in text.chars().enumerate() {
            let value = digit.to_digit(16).and_then(|value| u8::try_from(value).ok()).unwrap_or_default();
            bytes[index / 2] = bytes[index / 2] << 4 | value;
        }
        Ok(Self(bytes))
    }
}

impl From<CaDigest> for String {
    fn from(digest: CaDigest) -> Self {
        digest.to_string()
    }
}

impl TryFrom<String> for CaDigest {
    type Error = ParseDigestError;

    fn try_from(text: String) -> Result<Self, ParseDigestError> {
        text.parse()
    }
}

impl fmt::Debug for CaDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CaDigest({self})")
    }
}

/// How far the replacement of an authority is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CaPhase {
    /// Managers trust both authorities and get certificates of the new one.
    Managers,
    /// All managers show certificates of the new authority. Nodes and users begin to trust it, and nothing else.
    Nodes,
    /// No ready node trusts an earlier authority.
    Complete,
}

impl CaPhase {
    /// The word for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Managers => "managers",
            Self::Nodes => "nodes",
            Self::Complete => "complete",
        }
    }
}

/// The newest replacement of the authority of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaRotation {
    /// The digest of the new authority.
    pub digest: CaDigest,
    /// The new authority with its key, sealed for managers, as PEM.
    pub sealed: SealedData,
    /// The certificates of the authorities before it as PEM, the newest first; at most [`MAX_PREDECESSORS`].
    pub predecessors: Vec<String>,
    /// How far it is.
    pub phase: CaPhase,
    /// When it began.
    pub began_at: Timestamp,
    /// The managers that show a certificate of the new authority; empty when it is complete.
    pub managers: BTreeSet<MemberId>,
    /// The nodes that trusted another authority when the managers were done, and have not reported since that they
    /// trust the new one alone.
    pub nodes: BTreeSet<NodeId>,
    /// The same for keys of users and administrators.
    pub keys: BTreeSet<PublicKeyHash>,
}

/// How many earlier authorities are remembered.
pub const MAX_PREDECESSORS: usize = 3;

impl CaRotation {
    /// The only authority that nodes and users trust; `None` while managers still show certificates of another one.
    pub fn trusted(&self) -> Option<CaDigest> {
        (self.phase != CaPhase::Managers).then_some(self.digest)
    }
}

/// Who has a certificate of the new authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaHolder {
    /// A manager.
    Manager(MemberId),
    /// A node, whose agent trusts nothing else.
    Node(NodeId),
    /// A user or administrator with this key.
    User(PublicKeyHash),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_reads_back_in_either_case() {
        let digest = CaDigest::from_bytes(std::array::from_fn(|index| (index * 9) as u8));
        let text = digest.to_string();
        assert_eq!((text.len(), &text[..8]), (DIGITS, "0009121b"));
        assert_eq!((text.parse(), text.to_uppercase().parse()), (Ok(digest), Ok(digest)));
        for (bad, why) in [
            ("", "found 0 characters"),
            (&text[1..], "found 63 characters"),
            (&format!("{text}0"), "found 65 characters"),
            (&format!("{}x", &text[1..]), "character 64 is none"),
            (&"é".repeat(32), "character 1 is none"),
        ] {
            let refused = bad.parse::<CaDigest>().unwrap_err().to_string();
            assert!(refused.ends_with(why), "{refused}");
        }
    }
}
