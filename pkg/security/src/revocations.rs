//! Whose certificates are refused in the handshake, although they are valid.

use std::collections::BTreeSet;

use warren_types::{ManagerId, NodeId, PublicKeyHash};

use crate::{Identity, Role};

/// What is revoked: machines by their ids, which follow from their keys, and keys of users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revocations {
    /// Nodes that were removed.
    pub nodes: BTreeSet<NodeId>,
    /// Managers that left the cluster.
    pub managers: BTreeSet<ManagerId>,
    /// Keys that users had.
    pub keys: BTreeSet<PublicKeyHash>,
}

impl Revocations {
    /// Whether a certificate with this identity for this key is refused.
    pub fn contain(&self, identity: &Identity, key: &PublicKeyHash) -> bool {
        match identity.role() {
            Role::Worker => identity.id().parse().is_ok_and(|node: NodeId| self.nodes.contains(&node)),
            Role::Manager => {
                identity.id().parse().is_ok_and(|manager: ManagerId| self.managers.contains(&manager))
            }
            Role::User => self.keys.contains(key),
        }
    }
}
