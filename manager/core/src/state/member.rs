//! Managers as members of the raft group, and the nodes that were removed.

use std::sync::Arc;

use warren_types::{ManagerAddress, ManagerId, Member, MemberId, Node, NodeId, NodeName, NodeRole, Suffrage};

use super::{MAX_REMOVED_NODES, ObjectKind, Refusal, State, digest};

impl State {
    /// All managers, by their id in the raft group.
    pub fn members(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.members.values()
    }

    /// The manager with that id in the raft group, if it is a member.
    pub fn member(&self, id: MemberId) -> Option<&Arc<Member>> {
        self.members.get(&id)
    }

    /// The manager with that id in its certificate, if it is a member.
    pub fn member_of_manager(&self, id: &ManagerId) -> Option<&Arc<Member>> {
        self.members().find(|member| member.manager_id == *id)
    }

    /// The id in the raft group that the next manager gets: above all earlier ones. 0 before the first
    /// manager is registered.
    pub fn next_member_id(&self) -> MemberId {
        self.next_member_id
    }

    /// The manager node with this name, whether it is on that host or another one.
    pub fn node_of_manager(&self, name: &NodeName) -> Option<&Arc<Node>> {
        let node = self.index.node_names.get(name).and_then(|id| self.nodes.get(id));
        node.filter(|node| node.role == NodeRole::Manager)
    }

    /// Whether a manager at `host` with the name of `node`, which replaces the manager `replaces`, is on that
    /// node's host: the node is at that host, or the replaced manager had that name. A host that only got the
    /// name of a removed manager is a different one, and the node may still run its tasks.
    pub fn is_node_at(&self, node: &Node, host: &str, replaces: Option<MemberId>) -> bool {
        let replaced = replaces.and_then(|replaced| self.member(replaced));
        node.description.address == host || replaced.is_some_and(|replaced| replaced.name == node.name)
    }

    /// The entry at which the node was removed; `None` if it exists, never existed, or if too many others
    /// were removed since.
    pub fn node_removed_at(&self, node: &NodeId) -> Option<u64> {
        self.removed_nodes.get(node).copied()
    }

    /// The addresses of managers that are not being removed, each once.
    pub(crate) fn manager_addresses(&self) -> Vec<ManagerAddress> {
        let mut addresses = Vec::new();
        for Member { address, .. } in self.remaining_members() {
            // A manager and the one that it replaces have one address.
            if !addresses.contains(address) {
                addresses.push(address.clone());
            }
        }
        addresses
    }

    /// Those that are not being removed.
    pub(super) fn remaining_members(&self) -> impl Iterator<Item = &Member> {
        self.members().map(|member| &**member).filter(|member| !member.removing)
    }

    /// The replacement of `member`.
    pub(super) fn replacement_of(&self, member: MemberId) -> Option<&Arc<Member>> {
        self.members().find(|other| other.replaces == Some(member))
    }

    /// It is to vote, now and later: neither removed, nor replaced, nor a learner.
    pub(super) fn is_desired_voter(&self, member: &Member) -> bool {
        let votes = member.desired_suffrage == Suffrage::Voter && !member.removing;
        votes && self.replacement_of(member.member_id).is_none()
    }

    /// Rejects the removal of this voter if no other one is to vote.
    pub(super) fn check_other_voters(&self, member: &Member) -> Result<(), Refusal> {
        let other =
            self.members().any(|other| other.member_id != member.member_id && self.is_desired_voter(other));
        if other { Ok(()) } else { Err(Refusal::LastManager { manager: member.name.clone() }) }
    }

    /// Rejects a name or an address that another manager has. One that is being removed has released its own,
    /// and `except` may share it: a manager and the one that it replaces.
    pub(super) fn check_unique_member(
        &self,
        name: &NodeName,
        address: &ManagerAddress,
        except: &[MemberId],
    ) -> Result<(), Refusal> {
        for other in self.remaining_members().filter(|other| !except.contains(&other.member_id)) {
            if other.name == *name {
                return Err(Refusal::AlreadyExists { kind: ObjectKind::Manager, name: name.to_string() });
            }
            if other.address == *address {
                return Err(Refusal::ManagerAddressTaken {
                    address: address.clone(),
                    owner: other.name.clone(),
                });
            }
        }
        Ok(())
    }

    /// The node exists again, so it is not recorded as removed.
    pub(super) fn forget_removal(&mut self, node: NodeId) {
        if let Some(index) = self.removed_nodes.remove(&node) {
            self.digest_sum.remove(digest::removed_node(node, index));
        }
    }

    /// Records that a node was removed at that entry. Beyond the limit the oldest record is deleted.
    pub(super) fn record_removal(&mut self, node: NodeId, index: u64) {
        self.forget_removal(node);
        self.digest_sum.add(digest::removed_node(node, index));
        self.removed_nodes.insert(node, index);
        if self.removed_nodes.len() > MAX_REMOVED_NODES {
            let oldest = self.removed_nodes.iter().min_by_key(|(node, index)| (**index, **node));
            if let Some(node) = oldest.map(|(node, _)| *node) {
                self.forget_removal(node);
            }
        }
    }
}
