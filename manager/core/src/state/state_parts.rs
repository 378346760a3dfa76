//! A state as plain parts, for an external codec. Indexes are not included.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_types::{
    CanonicalImage, ManagerId, Member, MemberId, Network, Node, NodeId, PublicKeyHash, Revision, RevokedKey,
    SecretObject, Service, ServiceId, Task, Timestamp, Token, User, Volume,
};

use super::apply::{default_network, first_virtual_addresses};
use super::digest::DigestSum;
use super::{
    AppliedIndex, Cluster, DepartedManager, ImportedImage, InvariantViolation, State, StateIndex, Withdrawal,
    WithdrawnAddress,
};

/// All parts of a [`State`] that cannot be derived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateParts {
    /// The newest entry that it contains.
    pub applied: AppliedIndex,
    /// The newest time of any command.
    pub clock: Timestamp,
    /// The cluster's feature level.
    pub feature_level: u32,
    /// The value of [`State::digest`] over all other parts; `None` if the writer did not know one.
    pub digest: Option<u64>,
    /// Settings, once there is a cluster.
    pub cluster: Option<Arc<Cluster>>,
    /// The number of the node subnet that is tried next.
    pub subnet_cursor: u64,
    /// What is not assigned again yet.
    pub withdrawn: Vec<(WithdrawnAddress, Withdrawal)>,
    /// By id.
    pub services: Vec<Arc<Service>>,
    /// By id, each with its address cursor.
    pub nodes: Vec<(Arc<Node>, u32)>,
    /// By id. Tasks of one revision share it; `restore` makes them share it again.
    pub tasks: Vec<Arc<Task>>,
    /// By id.
    pub tokens: Vec<Arc<Token>>,
    /// By id.
    pub users: Vec<Arc<User>>,
    /// By id.
    pub secret_objects: Vec<Arc<SecretObject>>,
    /// By id.
    pub volumes: Vec<Arc<Volume>>,
    /// By id.
    pub networks: Vec<Arc<Network>>,
    /// By id in the raft group.
    pub members: Vec<Arc<Member>>,
    /// Above every id that a member ever had; 0 before the first member.
    pub next_member_id: MemberId,
    /// The most recently removed nodes, by id, each with the index of its removal.
    pub removed_nodes: Vec<(NodeId, u64)>,
    /// The most recently departed managers, by their id in the certificate.
    pub departed_managers: Vec<(ManagerId, DepartedManager)>,
    /// The most recently revoked keys of users and administrators.
    pub revoked_keys: Vec<(PublicKeyHash, RevokedKey)>,
    /// The most recently imported images, by name.
    pub imported_images: Vec<(CanonicalImage, ImportedImage)>,
}

impl State {
    /// The parts, in a fixed order. Objects are shared, not copied.
    pub fn export(&self) -> StateParts {
        let cursor = |node: &Node| self.address_cursors.get(&node.id).copied().unwrap_or(0);
        StateParts {
            applied: self.applied,
            clock: self.clock,
            feature_level: self.feature_level,
            digest: Some(self.digest().value),
            cluster: self.cluster.clone(),
            subnet_cursor: self.subnet_cursor,
            withdrawn: self.withdrawn.iter().map(|(item, withdrawal)| (*item, *withdrawal)).collect(),
            services: self.services.values().cloned().collect(),
            nodes: self.nodes.values().map(|node| (node.clone(), cursor(node))).collect(),
            tasks: self.tasks.values().cloned().collect(),
            tokens: self.tokens.values().cloned().collect(),
            users: self.users.values().cloned().collect(),
            secret_objects: self.secret_objects.values().cloned().collect(),
            volumes: self.volumes.values().cloned().collect(),
            networks: self.networks.values().cloned().collect(),
            members: self.members.values().cloned().collect(),
            next_member_id: self.next_member_id,
            removed_nodes: self.removed_nodes.iter().map(|(node, index)| (*node, *index)).collect(),
            departed_managers: self.departed_managers().collect(),
            revoked_keys: self.revoked_keys().map(|(key, revoked)| (*key, revoked.clone())).collect(),
            imported_images: self
                .imported_images()
                .map(|(image, imported)| (image.clone(), imported.clone()))
                .collect(),
        }
    }

    /// The state of these parts.
    ///
    /// # Errors
    /// [`InvariantViolation`] if they contradict each other or do not match their digest: the snapshot is
    /// damaged, or of a defective version.
    pub fn restore(parts: StateParts) -> Result<Self, InvariantViolation> {
        let mut state = Self {
            applied: parts.applied,
            clock: parts.clock,
            feature_level: parts.feature_level,
            cluster: parts.cluster,
            services: parts.services.into_iter().map(|service| (service.id, service)).collect(),
            tokens: parts.tokens.into_iter().map(|token| (token.id, token)).collect(),
            users: parts.users.into_iter().map(|user| (user.id, user)).collect(),
            secret_objects: parts.secret_objects.into_iter().map(|content| (content.id, content)).collect(),
            volumes: parts.volumes.into_iter().map(|volume| (volume.id, volume)).collect(),
            networks: parts.networks.into_iter().map(|network| (network.id, network)).collect(),
            members: parts.members.into_iter().map(|member| (member.member_id, member)).collect(),
            next_member_id: parts.next_member_id,
            removed_nodes: parts.removed_nodes.into_iter().collect(),
            departed_managers: parts.departed_managers.into_iter().collect(),
            revoked_keys: parts.revoked_keys.into_iter().collect(),
            imported_images: parts.imported_images.into_iter().collect(),
            subnet_cursor: parts.subnet_cursor,
            withdrawn: parts.withdrawn.into_iter().collect(),
            ..Self::default()
        };
        for (node, cursor) in parts.nodes {
            if cursor > 0 {
                state.address_cursors.insert(node.id, cursor);
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
                return Err(InvariantViolation(format!(
                    "task {} has another revision {number} than its service",
                    task.id
                )));
            }
            if !Arc::ptr_eq(shared, &task.revision) {
                Arc::make_mut(&mut task).revision = shared.clone();
            }
            state.tasks.insert(task.id, task);
        }
        state.digest_sum = DigestSum::of(&state);
        let found = state.digest().value;
        state.upgrade();
        state.check_objects()?;
        state.index = StateIndex::of(&state);
        match parts.digest {
            Some(digest) if digest != found => Err(InvariantViolation(format!(
                "the digest of its content is {found:016x} and should be {digest:016x}"
            ))),
            _ => Ok(state),
        }
    }

    /// Gives a state of a version without networks the default network, its services virtual addresses, and its nodes
    /// numbers.
    fn upgrade(&mut self) {
        let Some(cluster) = self.cluster.as_ref().filter(|_| self.networks.is_empty()) else { return };
        let default = default_network(cluster.id.0, self.applied.index, cluster.created_at);
        self.networks.insert(default.id, Arc::new(default));
        let mut nodes: Vec<(Timestamp, NodeId)> =
            self.nodes().map(|node| (node.created_at, node.id)).collect();
        nodes.sort_unstable();
        for (number, (_, id)) in (1..).zip(nodes) {
            if let Some(node) = self.nodes.get_mut(&id) {
                Arc::make_mut(node).number = number;
            }
        }
        self.index = StateIndex::of(self);
        for id in self.services.keys().copied().collect::<Vec<_>>() {
            let Some(service) = self.services.get(&id) else { continue };
            let Ok(addresses) = first_virtual_addresses(self, service) else { continue };
            self.index.virtual_addresses.extend(addresses.values().map(|address| (*address, id)));
            if let Some(service) = self.services.get_mut(&id) {
                Arc::make_mut(service).virtual_addresses = addresses;
            }
        }
        self.digest_sum = DigestSum::of(self);
    }
}
