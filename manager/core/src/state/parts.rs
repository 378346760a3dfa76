//! A state as plain parts, for a codec outside to write and read. Indexes are not among them.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_types::{
    Content, ManagerId, Member, MemberId, Node, NodeId, Revision, Service, ServiceId, Task, Timestamp, Token,
    Volume,
};

use super::digest::Sum;
use super::{Applied, Broken, Cluster, Departed, Index, State};

/// Everything of a [`State`] that cannot be derived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts {
    /// The newest entry that it contains.
    pub applied: Applied,
    /// The newest time that any command brought.
    pub clock: Timestamp,
    /// Which meaning of the commands holds.
    pub level: u32,
    /// [`State::digest`]'s value of all the rest; `None` where whoever wrote it did not know one.
    pub digest: Option<u64>,
    /// Settings, once there is a cluster.
    pub cluster: Option<Arc<Cluster>>,
    /// How many node subnets have been given out.
    pub subnets: u64,
    /// By id.
    pub services: Vec<Arc<Service>>,
    /// By id, each with its address cursor.
    pub nodes: Vec<(Arc<Node>, u32)>,
    /// By id. Tasks of one revision share it; after `restore` they do so again, whatever was read.
    pub tasks: Vec<Arc<Task>>,
    /// By id.
    pub tokens: Vec<Arc<Token>>,
    /// By id.
    pub contents: Vec<Arc<Content>>,
    /// By id.
    pub volumes: Vec<Arc<Volume>>,
    /// By id in the raft group.
    pub members: Vec<Arc<Member>>,
    /// Above every id that a member ever had; 0 before there was one.
    pub next_member: MemberId,
    /// The nodes that were removed last, by id, each with the index at which it was.
    pub removed_nodes: Vec<(NodeId, u64)>,
    /// The managers that left last, by their id in the certificate.
    pub departed: Vec<(ManagerId, Departed)>,
}

impl State {
    /// The parts, in a fixed order. Objects are shared, not copied.
    pub fn export(&self) -> Parts {
        let cursor = |node: &Node| self.cursors.get(&node.id).copied().unwrap_or(0);
        Parts {
            applied: self.applied,
            clock: self.clock,
            level: self.level,
            digest: Some(self.digest().value),
            cluster: self.cluster.clone(),
            subnets: self.subnets,
            services: self.services.values().cloned().collect(),
            nodes: self.nodes.values().map(|node| (node.clone(), cursor(node))).collect(),
            tasks: self.tasks.values().cloned().collect(),
            tokens: self.tokens.values().cloned().collect(),
            contents: self.contents.values().cloned().collect(),
            volumes: self.volumes.values().cloned().collect(),
            members: self.members.values().cloned().collect(),
            next_member: self.next_member,
            removed_nodes: self.removed_nodes.iter().map(|(node, index)| (*node, *index)).collect(),
            departed: self.all_departed().collect(),
        }
    }

    /// The state of these parts.
    ///
    /// # Errors [`Broken`] when they contradict each other or do not give their digest: the snapshot is
    /// damaged, or of a defective version.
    pub fn restore(parts: Parts) -> Result<Self, Broken> {
        let mut state = Self {
            applied: parts.applied,
            clock: parts.clock,
            level: parts.level,
            cluster: parts.cluster,
            services: parts.services.into_iter().map(|service| (service.id, service)).collect(),
            tokens: parts.tokens.into_iter().map(|token| (token.id, token)).collect(),
            contents: parts.contents.into_iter().map(|content| (content.id, content)).collect(),
            volumes: parts.volumes.into_iter().map(|volume| (volume.id, volume)).collect(),
            members: parts.members.into_iter().map(|member| (member.member, member)).collect(),
            next_member: parts.next_member,
            removed_nodes: parts.removed_nodes.into_iter().collect(),
            departed: parts.departed.into_iter().collect(),
            subnets: parts.subnets,
            ..Self::default()
        };
        for (node, cursor) in parts.nodes {
            if cursor > 0 {
                state.cursors.insert(node.id, cursor);
            }
            state.nodes.insert(node.id, node);
        }
        let mut revisions: BTreeMap<(ServiceId, u64), Arc<Revision>> = state
            .services()
            .flat_map(|service| {
                service.history.iter().chain([&service.revision]).map(|known| (service.id, known))
            })
            .map(|(service, known)| ((service, known.number), known.clone()))
            .collect();
        for mut task in parts.tasks {
            let number = task.revision.number;
            let shared = revisions.entry((task.id.service, number)).or_insert_with(|| task.revision.clone());
            if *shared != task.revision {
                return Err(Broken(format!(
                    "task {} has another revision {number} than its service",
                    task.id
                )));
            }
            if !Arc::ptr_eq(shared, &task.revision) {
                Arc::make_mut(&mut task).revision = shared.clone();
            }
            state.tasks.insert(task.id, task);
        }
        state.check_objects()?;
        state.index = Index::of(&state);
        state.sum = Sum::of(&state);
        let found = state.digest().value;
        match parts.digest {
            Some(digest) if digest != found => {
                Err(Broken(format!("the digest of its content is {found:016x} and should be {digest:016x}")))
            }
            _ => Ok(state),
        }
    }
}
