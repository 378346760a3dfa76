//! The owner of a log, as a separate record, written once when the log is created.
//!
//! The terms, votes and acknowledgements in a log bind one member. With this log another member could vote twice in
//! a term, and nothing else in the log identifies the owner: entries are equal on all members.

use std::fmt::{self, Display};

use warren_types::{ClusterId, Id, ManagerId, MemberId};

use crate::codec::FieldDecoder;

/// The member that a log belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogOwner {
    /// Cluster of the member.
    pub cluster: ClusterId,
    /// Manager id in its certificate.
    pub manager: ManagerId,
    /// Its id in the raft group.
    pub member: MemberId,
}

impl Display for LogOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, manager, member } = self;
        write!(f, "member {member} of cluster {cluster} (manager {manager})")
    }
}

/// Cluster u128, manager u128, member u64, little-endian.
pub(crate) fn encode(owner: &LogOwner) -> Vec<u8> {
    let LogOwner { cluster, manager, member } = owner;
    [&cluster.0.0.to_le_bytes()[..], &manager.0.0.to_le_bytes(), &member.to_le_bytes()].concat()
}

/// Decodes the owner record; `None` if it is damaged.
pub(crate) fn decode(body: &[u8]) -> Option<LogOwner> {
    let mut fields = FieldDecoder(body);
    let mut id = || Some(Id(u128::from(fields.u64()?) | u128::from(fields.u64()?) << 64));
    let (cluster, manager) = (ClusterId(id()?), ManagerId(id()?));
    let member = fields.u64()?;
    fields.0.is_empty().then_some(LogOwner { cluster, manager, member })
}
