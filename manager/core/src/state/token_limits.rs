//! Limits of join tokens: their number, and how long they are kept.

use std::time::Duration;

use warren_types::{Timestamp, Token};

/// The most tokens, so that a script that creates one per host does not fill the cluster's state.
pub const MAX_TOKENS: usize = 1000;
/// How long an expired token is still listed, so that a user whose join was rejected finds it.
pub const EXPIRED_TOKEN_RETENTION: Duration = Duration::from_secs(24 * 3600);

/// When an expired token is deleted; `None` for one that never expires.
pub(crate) fn delete_at(token: &Token) -> Option<Timestamp> {
    token.expires_at.map(|end| end + EXPIRED_TOKEN_RETENTION)
}
