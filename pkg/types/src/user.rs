//! Users: the people and programs that call the managers.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::name::ParseNameError;
use crate::{PublicKeyHash, Timestamp, TokenHash, UserId, UserName};

/// The longest lifetime of a certificate of a user, for clients that do not renew theirs.
pub const MAX_USER_CERTIFICATE_LIFETIME: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// How far the clocks of managers may be apart that issue certificates and revoke them.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(24 * 60 * 60);

/// The most keys of a user: one for each machine on which the user logged in.
pub const MAX_USER_KEYS: usize = 32;

/// What a user may do. Each role includes the earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UserRole {
    /// Reads, without the data of configs.
    Viewer,
    /// Runs workloads, within the limits for operators.
    Operator,
    /// Everything.
    Admin,
}

impl UserRole {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Viewer, Self::Operator, Self::Admin];

    /// The word on the command line and in audit lines.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl FromStr for UserRole {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<Self, ParseNameError> {
        let known = Self::ALL.into_iter().find(|role| role.as_str() == text);
        known.ok_or_else(|| ParseNameError::new("a role: viewer, operator or admin", text))
    }
}

impl fmt::Display for UserRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A token with which a user logs in once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginToken {
    /// Hash of its secret.
    pub hash: TokenHash,
    /// When it expires.
    pub expires_at: Timestamp,
    /// The key that it was used for: a repeated login with this key gets the same answer.
    pub used_by: Option<PublicKeyHash>,
}

/// A person or a program that calls the managers, with the keys that prove it. A key that is not listed is refused,
/// whatever certificate it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Chosen by the client that created it.
    pub id: UserId,
    /// Unique among users; never [`ADMINISTRATOR`].
    pub name: UserName,
    /// What the user may do.
    pub role: UserRole,
    /// Raft index of the last change.
    pub version: u64,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it stops being accepted; `None` for never.
    pub expires_at: Option<Timestamp>,
    /// The newest login token.
    pub login: Option<LoginToken>,
    /// The keys of the machines where the user logged in, and when; at most [`MAX_USER_KEYS`].
    pub keys: BTreeMap<PublicKeyHash, Timestamp>,
}

/// A key of a user or of an administrator that is refused, whatever certificate it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevokedKey {
    /// Whose it was: the name of a user, or [`ADMINISTRATOR`].
    pub holder: String,
    /// When it was revoked.
    pub revoked_at: Timestamp,
}

impl RevokedKey {
    /// When the last certificate for it has expired, whatever its lifetime is.
    pub fn ends_at(&self) -> Timestamp {
        self.revoked_at + MAX_USER_CERTIFICATE_LIFETIME + CLOCK_TOLERANCE
    }
}

/// The name of the administrator of each manager's machine, whose key its manager lists. No user has it.
pub const ADMINISTRATOR: &str = "admin";

impl User {
    /// Whether the user is not accepted any more.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }
}
