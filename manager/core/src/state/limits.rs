//! How many objects of each kind a state has, and how long expired tokens are kept.

use std::time::Duration;

use warren_types::{Timestamp, Token};

/// The most members, those that are being removed or replaced included.
pub const MAX_MEMBERS: usize = 16;
/// How many removed nodes are recorded.
pub const MAX_REMOVED_NODES: usize = 1024;
/// How many revoked keys of users and administrators are recorded.
pub const MAX_REVOKED_KEYS: usize = 4096;
/// How many names of imported images are recorded.
pub const MAX_IMPORTED_IMAGES: usize = 4096;
/// The most secret objects.
pub const MAX_SECRET_OBJECTS: usize = 10_000;
/// The most bytes of all of them, sealed, their kept versions too: snapshots contain them.
pub const MAX_SECRET_OBJECTS_SIZE: u64 = 256 << 20;
/// The limit for volumes created by users; tasks may exceed it.
pub const MAX_VOLUMES: usize = 100_000;
/// The most subnets of a node: four of the default size have addresses for 1,012 tasks.
pub const MAX_NODE_SUBNETS: usize = 4;
/// The most networks.
pub const MAX_NETWORKS: usize = 4096;
/// The most tokens, so that a script that creates one per host does not fill the cluster's state.
pub const MAX_TOKENS: usize = 1000;
/// The most users.
pub const MAX_USERS: usize = 1000;
/// How long an expired token is still listed, so that a user whose join was rejected finds it.
pub const EXPIRED_TOKEN_RETENTION: Duration = Duration::from_secs(24 * 3600);

/// When an expired token is deleted; `None` for one that never expires.
pub(crate) fn delete_at(token: &Token) -> Option<Timestamp> {
    token.expires_at.map(|end| end + EXPIRED_TOKEN_RETENTION)
}
