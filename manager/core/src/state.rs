//! The state of the cluster, and every write to it.
//!
//! [`State`] is a tree of persistent maps: a clone is O(1) and later writes do not change it. Only
//! [`State::apply`] writes; all objects and counters below `index` can be restored from a snapshot
//! ([`StateParts`]), and the `index` is derived from them.

mod address;
mod allocation;
mod apply;
mod ca_rotation;
mod cluster;
mod command;
mod dense_map;
mod departed_manager;
mod digest;
mod eligibility;
mod equivalence;
mod feature_level;
mod grouped_map;
mod imported_image;
mod index;
mod invariants;
mod key_rotation;
mod label_values;
mod limits;
mod member;
mod new_task_revision;
mod number_set;
mod objects;
mod outcome;
mod query;
mod refusal;
mod revocation;
mod secret_object;
mod state_parts;
mod volume;

use std::sync::Arc;

use imbl::OrdMap;
use warren_types::{
    CanonicalImage, ManagerId, Member, MemberId, Network, NetworkId, Node, NodeId, PublicKeyHash, RevokedKey,
    SecretObject, SecretObjectId, Service, ServiceId, Task, TaskId, Timestamp, Token, TokenId, User, UserId,
    Volume, VolumeId,
};

pub use address::{Withdrawal, WithdrawnAddress, address_capacity};
pub use allocation::NodeAllocation;
pub use apply::{REVISION_HISTORY_LIMIT, kept_pin, previous_revision};
pub(crate) use apply::{ReportedImage, reported_image};
pub use ca_rotation::{ManagerAuthority, ManagerCaStep, RotationProgress};
pub use cluster::Cluster;
pub use command::key::KeyRotationStep;
pub use command::{CaCommand, Command, KeyCommand, NewTask, RolloutStep};
pub use departed_manager::DepartedManager;
pub use digest::StateDigest;
pub(crate) use eligibility::{
    NodeEligibility, has_label_value, intolerable_taints, meets_constraint, meets_constraints,
    tolerates_taints,
};
pub(crate) use equivalence::{is_equivalent, is_final};
pub use feature_level::FEATURE_LEVEL;
use grouped_map::GroupedMap;
pub use imported_image::ImportedImage;
pub use index::TaskCounts;
pub(crate) use index::{StateIndex, volume_templates};
pub use invariants::InvariantViolation;
pub use key_rotation::{KeyStep, ManagerKeyState, ManagerKeyStep};
pub(crate) use label_values::ValueSlot;
pub(crate) use limits::delete_at;
pub use limits::{
    EXPIRED_TOKEN_RETENTION, MAX_IMPORTED_IMAGES, MAX_MEMBERS, MAX_NETWORKS, MAX_NODE_SUBNETS,
    MAX_REMOVED_NODES, MAX_REVOKED_KEYS, MAX_SECRET_OBJECTS, MAX_SECRET_OBJECTS_SIZE, MAX_TOKENS, MAX_USERS,
    MAX_VOLUMES,
};
pub use new_task_revision::awaits_managers;
pub use objects::StateObjects;
pub use outcome::{ApplyOutcome, CommandResponse, StateChange};
pub use query::{HEARTBEAT_PERIOD, KeyHolder, SYNC_PERIOD};
pub(crate) use query::{retained_log, task_id_range};
pub use refusal::{ObjectKind, Refusal};
pub use revocation::RevokedObjects;
pub use state_parts::StateParts;
pub use volume::{HeldVolumes, VolumeData, VolumeFault, VolumeReportChanges};

/// The newest raft entry that a state contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct AppliedIndex {
    /// Term of the entry.
    pub term: u64,
    /// Index of the entry.
    pub index: u64,
}

/// The whole state of a cluster, as of one raft index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    applied: AppliedIndex,
    /// The newest time of any command; it never decreases.
    clock: Timestamp,
    /// The cluster's feature level: see [`FEATURE_LEVEL`].
    feature_level: u32,
    /// `None` until `CreateCluster`.
    cluster: Option<Arc<Cluster>>,
    services: OrdMap<ServiceId, Arc<Service>>,
    tasks: GroupedMap<TaskId, Arc<Task>>,
    nodes: OrdMap<NodeId, Arc<Node>>,
    tokens: OrdMap<TokenId, Arc<Token>>,
    users: OrdMap<UserId, Arc<User>>,
    secret_objects: OrdMap<SecretObjectId, Arc<SecretObject>>,
    volumes: OrdMap<VolumeId, Arc<Volume>>,
    networks: OrdMap<NetworkId, Arc<Network>>,
    members: OrdMap<MemberId, Arc<Member>>,
    /// Above every id that a member ever had; 0 before the first member.
    next_member_id: MemberId,
    /// The most recently removed nodes, with the index of their removal. None of them is in `nodes`.
    removed_nodes: OrdMap<NodeId, u64>,
    /// The most recently departed managers. None of them is in `members`.
    departed_managers: OrdMap<ManagerId, DepartedManager>,
    /// Keys that users and administrators had. None of them is in `users`.
    revoked_keys: OrdMap<PublicKeyHash, RevokedKey>,
    /// The most recently imported images, by name.
    imported_images: OrdMap<CanonicalImage, ImportedImage>,
    /// The number of the node subnet that is tried next; rotates, so that a freed one is not reused soon.
    subnet_cursor: u64,
    /// What had an owner, and is not assigned again yet.
    withdrawn: OrdMap<WithdrawnAddress, Withdrawal>,
    /// Per node, the address that is tried next; rotates, so that a freed address is not reused soon.
    address_cursors: OrdMap<NodeId, u32>,
    index: StateIndex,
    /// The sum over all objects and cursors, for the digest.
    digest_sum: digest::DigestSum,
}

impl State {
    /// The state before the first command.
    pub fn new() -> Self {
        Self::default()
    }

    /// The newest entry in this state. Planners put its term into their commands.
    pub fn applied(&self) -> AppliedIndex {
        self.applied
    }

    /// The newest time of any command.
    pub fn clock(&self) -> Timestamp {
        self.clock
    }

    /// The feature level that all members have agreed on: see [`FEATURE_LEVEL`].
    pub fn feature_level(&self) -> u32 {
        self.feature_level
    }

    /// The cluster's settings; `None` before `CreateCluster`.
    pub fn cluster(&self) -> Option<&Arc<Cluster>> {
        self.cluster.as_ref()
    }

    /// All services, by id.
    pub fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.services.values()
    }

    /// All tasks, by id, so those of a service are together.
    pub fn tasks(&self) -> impl Iterator<Item = &Arc<Task>> {
        self.tasks.values()
    }

    /// All nodes, by id.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.values()
    }

    /// All join tokens, by id.
    pub fn tokens(&self) -> impl Iterator<Item = &Arc<Token>> {
        self.tokens.values()
    }

    /// All users, by id.
    pub fn users(&self) -> impl Iterator<Item = &Arc<User>> {
        self.users.values()
    }

    /// The user, if it exists.
    pub fn user(&self, id: &UserId) -> Option<&Arc<User>> {
        self.users.get(id)
    }

    /// All secrets, configs and credentials, by id.
    pub fn secret_objects(&self) -> impl Iterator<Item = &Arc<SecretObject>> {
        self.secret_objects.values()
    }

    /// All volumes, by id.
    pub fn volumes(&self) -> impl Iterator<Item = &Arc<Volume>> {
        self.volumes.values()
    }

    /// All networks, by id.
    pub fn networks(&self) -> impl Iterator<Item = &Arc<Network>> {
        self.networks.values()
    }

    /// The network, if it exists.
    pub fn network(&self, id: &NetworkId) -> Option<&Arc<Network>> {
        self.networks.get(id)
    }

    /// The number of tasks, records of terminal ones included.
    pub fn task_count(&self) -> usize {
        self.tasks.len()
    }

    /// The service, if it exists.
    pub fn service(&self, id: &ServiceId) -> Option<&Arc<Service>> {
        self.services.get(id)
    }

    /// The task, if it exists.
    pub fn task(&self, id: &TaskId) -> Option<&Arc<Task>> {
        self.tasks.get(id)
    }

    /// The node, if it exists.
    pub fn node(&self, id: &NodeId) -> Option<&Arc<Node>> {
        self.nodes.get(id)
    }

    /// The join token, if it exists.
    pub fn token(&self, id: &TokenId) -> Option<&Arc<Token>> {
        self.tokens.get(id)
    }

    /// The secret, config or credential, if it exists.
    pub fn secret_object(&self, id: &SecretObjectId) -> Option<&Arc<SecretObject>> {
        self.secret_objects.get(id)
    }

    /// The volume, if it exists.
    pub fn volume(&self, id: &VolumeId) -> Option<&Arc<Volume>> {
        self.volumes.get(id)
    }

    /// The indexes, which only planners and `apply` read.
    pub(crate) fn index(&self) -> &StateIndex {
        &self.index
    }
}
