//! What the cluster holds, and every write to it.
//!
//! [`State`] is a tree of persistent maps: a clone is O(1) and later writes do not disturb it. Only
//! [`State::apply`] writes; all objects and counters below `index` can be restored from a snapshot
//! ([`Parts`]), and the `index` is derived from them.

mod address;
mod apply;
mod claim;
mod cluster;
mod command;
mod content;
mod dense;
mod departed;
mod digest;
mod fit;
mod grouped;
mod index;
mod invariants;
mod level;
mod member;
mod numbers;
mod outcome;
mod parts;
mod query;
mod refusal;
mod shape;
mod tokens;
mod volume;

use std::sync::Arc;

use imbl::OrdMap;
use warren_types::{
    Content, ContentId, ManagerId, Member, MemberId, Node, NodeId, Service, ServiceId, Task, TaskId,
    Timestamp, Token, TokenId, Volume, VolumeId,
};

pub use address::capacity;
pub use apply::HISTORY;
pub(crate) use claim::{Claim, admits, claim, fulfils};
pub use cluster::Cluster;
pub use command::{Command, NewTask};
pub use content::{MAX_CONTENT_BYTES, MAX_CONTENTS};
pub use departed::Departed;
pub use digest::Digest;
pub use fit::Usage;
use grouped::Grouped;
pub use index::Counts;
pub(crate) use index::{Index, volume_texts};
pub use invariants::Broken;
pub use level::LEVEL;
pub use member::{MAX_MEMBERS, MAX_REMOVED};
pub use outcome::{Answer, Change, Outcome};
pub use parts::Parts;
pub(crate) use query::numbers;
pub use query::{HEARTBEAT, SYNC};
pub use refusal::{Kind, Refusal};
pub(crate) use shape::{finishes, same_shape};
pub(crate) use tokens::forgotten_at;
pub use tokens::{MAX_TOKENS, TOKEN_REST};
pub use volume::{MAX_VOLUMES, VolumeFault};

/// The newest raft entry that a state contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Applied {
    /// Term of the entry.
    pub term: u64,
    /// Index of the entry.
    pub index: u64,
}

/// Everything a cluster holds, as of one raft index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    applied: Applied,
    /// The newest time that any command brought; time never goes back.
    clock: Timestamp,
    /// Which meaning of the commands holds: see [`LEVEL`].
    level: u32,
    /// `None` until `CreateCluster`.
    cluster: Option<Arc<Cluster>>,
    services: OrdMap<ServiceId, Arc<Service>>,
    tasks: Grouped<TaskId, Arc<Task>>,
    nodes: OrdMap<NodeId, Arc<Node>>,
    tokens: OrdMap<TokenId, Arc<Token>>,
    contents: OrdMap<ContentId, Arc<Content>>,
    volumes: OrdMap<VolumeId, Arc<Volume>>,
    members: OrdMap<MemberId, Arc<Member>>,
    /// Above every id that a member ever had; 0 before there was one.
    next_member: MemberId,
    /// The nodes that were removed last, with the index at which they were. None of them is in `nodes`.
    removed_nodes: OrdMap<NodeId, u64>,
    /// The managers that left last. None of them is in `members`.
    departed: OrdMap<ManagerId, Departed>,
    /// How many node subnets have been given out. They are never given twice.
    subnets: u64,
    /// Per node, which of its addresses is tried next; rotates, so that a freed address rests.
    cursors: OrdMap<NodeId, u32>,
    index: Index,
    /// Of all objects and cursors, for the digest.
    sum: digest::Sum,
}

impl State {
    /// The state before the first command.
    pub fn new() -> Self {
        Self::default()
    }

    /// The newest entry that this state contains. Planners put its term into their commands.
    pub fn applied(&self) -> Applied {
        self.applied
    }

    /// The newest time that any command brought.
    pub fn clock(&self) -> Timestamp {
        self.clock
    }

    /// Which meaning of the commands holds, as all members have agreed: see [`LEVEL`].
    pub fn level(&self) -> u32 {
        self.level
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

    /// All secrets, configs and credentials, by id.
    pub fn contents(&self) -> impl Iterator<Item = &Arc<Content>> {
        self.contents.values()
    }

    /// All volumes, by id.
    pub fn volumes(&self) -> impl Iterator<Item = &Arc<Volume>> {
        self.volumes.values()
    }

    /// How many tasks there are, records of ended ones included.
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
    pub fn content(&self, id: &ContentId) -> Option<&Arc<Content>> {
        self.contents.get(id)
    }

    /// The volume, if it exists.
    pub fn volume(&self, id: &VolumeId) -> Option<&Arc<Volume>> {
        self.volumes.get(id)
    }

    /// What only the deciding code reads by.
    pub(crate) fn index(&self) -> &Index {
        &self.index
    }
}
