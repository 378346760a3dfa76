//! Join tokens.

use std::collections::BTreeMap;
use std::fmt;

use crate::spec::validate_labels;
use crate::{NodeRole, Timestamp, TokenId, Violations};

/// The stored form of a token's secret: its SHA-256. The secret is random and long, so a slow hash is not
/// needed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenHash(pub [u8; 32]);

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(..)")
    }
}

/// Adds what is wrong with the labels of a token; paths begin with `labels`. A manager joins as a member, and its node
/// is registered later without the token, so a token for managers has none.
pub fn validate_token_labels(role: NodeRole, labels: &BTreeMap<String, String>, wrong: &mut Violations) {
    validate_labels(labels, wrong);
    if role == NodeRole::Manager && !labels.is_empty() {
        let message =
            "only workers get labels from a token; use `warren node update --label-add` for a manager's node";
        wrong.add("labels", message);
    }
}

/// A token with which hosts join. The cluster stores only the hash of its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Chosen by the client that created it.
    pub id: TokenId,
    /// Raft index of the last change.
    pub version: u64,
    /// The role of the node that joins.
    pub role: NodeRole,
    /// Hash of its secret.
    pub hash: TokenHash,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it expires; `None` for never.
    pub expires_at: Option<Timestamp>,
    /// How many hosts joined with it.
    pub uses: u32,
    /// How many hosts may join with it; `None` for no limit.
    pub max_uses: Option<u32>,
    /// Labels that each new node gets when it joins with it; empty for managers.
    pub labels: BTreeMap<String, String>,
}

impl Token {
    /// Whether it has expired.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }

    /// Whether no further host may join with it.
    pub fn is_exhausted(&self) -> bool {
        self.max_uses.is_some_and(|most| self.uses >= most)
    }
}
