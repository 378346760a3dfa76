//! Whose log it is, as a record of its own, written when the log is created and never again.
//!
//! The terms, votes and entries of a log are promises of one member. In the hands of another one they would be broken,
//! and nothing else in the log says whose they are: entries are the same on all members.

use std::fmt::{self, Display};

use warren_types::{ClusterId, Id, ManagerId, MemberId};

use crate::codec::Fields;

/// The member that a log belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Its cluster.
    pub cluster: ClusterId,
    /// The id in its certificate.
    pub manager: ManagerId,
    /// Its id in the raft group.
    pub member: MemberId,
}

impl Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cluster, manager, member } = self;
        write!(f, "member {member} of cluster {cluster} (manager {manager})")
    }
}

/// Cluster u128, manager u128, member u64, little-endian.
pub(crate) fn encode(owner: &Owner) -> Vec<u8> {
    let Owner { cluster, manager, member } = owner;
    [&cluster.0.0.to_le_bytes()[..], &manager.0.0.to_le_bytes(), &member.to_le_bytes()].concat()
}

/// The owner in a record's body, if it is whole.
pub(crate) fn decode(body: &[u8]) -> Option<Owner> {
    let mut fields = Fields(body);
    let mut id = || Some(Id(u128::from(fields.u64()?) | u128::from(fields.u64()?) << 64));
    let (cluster, manager) = (ClusterId(id()?), ManagerId(id()?));
    let member = fields.u64()?;
    fields.0.is_empty().then_some(Owner { cluster, manager, member })
}
