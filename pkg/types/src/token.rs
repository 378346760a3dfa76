//! What lets a machine join.

use std::fmt;

use crate::{NodeRole, Timestamp, TokenId};

/// What of a token's secret is stored: its SHA-256. The secret is random and long, so that no slow hash is needed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenHash(pub [u8; 32]);

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(..)")
    }
}

/// A token that machines can join with. The token itself is known only to whoever it was given to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Made by the client that created it.
    pub id: TokenId,
    /// Raft index of the last change.
    pub version: u64,
    /// What the machine becomes.
    pub role: NodeRole,
    /// Of its secret.
    pub hash: TokenHash,
    /// When it was created.
    pub created_at: Timestamp,
    /// From then on it is refused; `None` is never.
    pub expires_at: Option<Timestamp>,
    /// How many machines joined with it.
    pub uses: u32,
    /// How many may; `None` is any number.
    pub max_uses: Option<u32>,
}

impl Token {
    /// Too old to be used.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }

    /// No further machine may join with it.
    pub fn is_used_up(&self) -> bool {
        self.max_uses.is_some_and(|most| self.uses >= most)
    }
}
