//! The objects of a state as of one entry, without indexes: the earlier side of a comparison.

use std::sync::Arc;

use imbl::OrdMap;
use warren_types::{
    Member, MemberId, Network, NetworkId, Node, NodeId, SecretObject, SecretObjectId, Service, ServiceId,
    Task, TaskId, Token, TokenId, User, UserId, Volume, VolumeId,
};

use super::grouped_map::GroupedMap;
use super::{Cluster, State};

/// The objects of a state. A copy is O(1), and later writes to the state do not change it.
#[derive(Debug, Clone)]
pub struct StateObjects {
    pub(crate) feature_level: u32,
    pub(crate) cluster: Option<Arc<Cluster>>,
    pub(crate) services: OrdMap<ServiceId, Arc<Service>>,
    tasks: GroupedMap<TaskId, Arc<Task>>,
    pub(crate) nodes: OrdMap<NodeId, Arc<Node>>,
    pub(crate) tokens: OrdMap<TokenId, Arc<Token>>,
    pub(crate) users: OrdMap<UserId, Arc<User>>,
    pub(crate) secret_objects: OrdMap<SecretObjectId, Arc<SecretObject>>,
    pub(crate) volumes: OrdMap<VolumeId, Arc<Volume>>,
    pub(crate) networks: OrdMap<NetworkId, Arc<Network>>,
    pub(crate) members: OrdMap<MemberId, Arc<Member>>,
}

impl StateObjects {
    pub(crate) fn task(&self, id: &TaskId) -> Option<&Arc<Task>> {
        self.tasks.get(id)
    }
}

impl State {
    /// Its objects as they are now.
    pub fn objects(&self) -> StateObjects {
        StateObjects {
            feature_level: self.feature_level,
            cluster: self.cluster.clone(),
            services: self.services.clone(),
            tasks: self.tasks.clone(),
            nodes: self.nodes.clone(),
            tokens: self.tokens.clone(),
            users: self.users.clone(),
            secret_objects: self.secret_objects.clone(),
            volumes: self.volumes.clone(),
            networks: self.networks.clone(),
            members: self.members.clone(),
        }
    }
}
