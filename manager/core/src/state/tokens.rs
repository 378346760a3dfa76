//! Join tokens: how many there may be, and for how long they are kept.

use std::time::Duration;

use warren_types::{Timestamp, Token};

/// How many there may be, so that a script that makes one per machine does not fill the cluster's state.
pub const MAX_TOKENS: usize = 1000;
/// For how long an expired token is still shown: whoever is refused with it should find it in the list.
pub const TOKEN_REST: Duration = Duration::from_secs(24 * 3600);

/// When an expired token may be forgotten; `None` for one that never expires.
pub(crate) fn forgotten_at(token: &Token) -> Option<Timestamp> {
    token.expires_at.map(|end| end + TOKEN_REST)
}
