//! Managers as members of the raft group, and the nodes that were removed.

use std::sync::Arc;

use warren_types::{ManagerAddress, ManagerId, Member, MemberId, Node, NodeId, NodeName, NodeRole, Suffrage};

use super::{Kind, Refusal, State, digest};

/// How many members there may be, those that are being removed or replaced included.
pub const MAX_MEMBERS: usize = 16;
/// How many of the nodes that were removed last are remembered.
pub const MAX_REMOVED: usize = 1024;

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
    pub fn member_of(&self, id: &ManagerId) -> Option<&Arc<Member>> {
        self.members().find(|member| member.id == *id)
    }

    /// The id in the raft group that the next manager gets: above all that were ever given. 0 before the first manager
    /// is known.
    pub fn next_member(&self) -> MemberId {
        self.next_member
    }

    /// The node of managers that has this name, be it of that machine or of another one.
    pub fn node_of_manager(&self, name: &NodeName) -> Option<&Arc<Node>> {
        let node = self.index.node_names.get(name).and_then(|id| self.nodes.get(id));
        node.filter(|node| node.role == NodeRole::Manager)
    }

    /// Whether a manager at `host` with the name of `node`, which takes the place of the manager `replaces`, is on that
    /// node's machine: the node is at that host, or the manager in whose place it comes had that name. A machine that
    /// only got the name of a removed manager is another one, and the node may still run what it ran.
    pub fn is_node_at(&self, node: &Node, host: &str, replaces: Option<MemberId>) -> bool {
        let replaced = replaces.and_then(|replaced| self.member(replaced));
        node.description.address == host || replaced.is_some_and(|replaced| replaced.name == node.name)
    }

    /// At which entry the node was removed; `None` for one that is there, that never was, or of which too many others
    /// were removed since.
    pub fn removed_at(&self, node: &NodeId) -> Option<u64> {
        self.removed_nodes.get(node).copied()
    }

    /// Where managers are reached: the addresses of those that are to stay, each once.
    pub(crate) fn manager_addresses(&self) -> Vec<ManagerAddress> {
        let mut addresses = Vec::new();
        for Member { address, .. } in self.staying_members() {
            // A manager and the one that it replaces have one address.
            if !addresses.contains(address) {
                addresses.push(address.clone());
            }
        }
        addresses
    }

    /// Those that are not being removed.
    pub(super) fn staying_members(&self) -> impl Iterator<Item = &Member> {
        self.members().map(|member| &**member).filter(|member| !member.removing)
    }

    /// The one that takes the place of `member`.
    pub(super) fn replacement_of(&self, member: MemberId) -> Option<&Arc<Member>> {
        self.members().find(|other| other.replaces == Some(member))
    }

    /// It is to vote, now and later: neither removed, nor replaced, nor a learner.
    pub(super) fn stands(&self, member: &Member) -> bool {
        let votes = member.wanted == Suffrage::Voter && !member.removing;
        votes && self.replacement_of(member.member).is_none()
    }

    /// Refuses to go on without this one where no other is to vote.
    pub(super) fn others_stand(&self, member: &Member) -> Result<(), Refusal> {
        let other = self.members().any(|other| other.member != member.member && self.stands(other));
        if other { Ok(()) } else { Err(Refusal::LastManager { manager: member.name.clone() }) }
    }

    /// Refuses a name or an address that another manager has. One that is being removed has given up its own, and
    /// `except` may share it: a manager and the one that it replaces.
    pub(super) fn check_unique_member(
        &self,
        name: &NodeName,
        address: &ManagerAddress,
        except: &[MemberId],
    ) -> Result<(), Refusal> {
        for other in self.staying_members().filter(|other| !except.contains(&other.member)) {
            if other.name == *name {
                return Err(Refusal::AlreadyExists { kind: Kind::Manager, name: name.to_string() });
            }
            if other.address == *address {
                return Err(Refusal::AddressTaken { address: address.clone(), owner: other.name.clone() });
            }
        }
        Ok(())
    }

    /// A node is there, so it is not one that was removed.
    pub(super) fn forget_removal(&mut self, node: NodeId) {
        if let Some(index) = self.removed_nodes.remove(&node) {
            self.sum.remove(digest::removed(node, index));
        }
    }

    /// A node was removed at that entry. Of too many, the one that was removed first is forgotten.
    pub(super) fn remember_removal(&mut self, node: NodeId, index: u64) {
        self.forget_removal(node);
        self.sum.add(digest::removed(node, index));
        self.removed_nodes.insert(node, index);
        if self.removed_nodes.len() > MAX_REMOVED {
            let oldest = self.removed_nodes.iter().min_by_key(|(node, index)| (**index, **node));
            if let Some(node) = oldest.map(|(node, _)| *node) {
                self.forget_removal(node);
            }
        }
    }
}
