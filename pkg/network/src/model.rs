//! The plain input data: a node, its tasks, its published ports, and what it knows about the cluster.

mod cluster;
mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::Arc;

pub use cluster::{Balancing, ClusterNetwork, DEFAULT_NETWORK, NetworkMembers, NetworkNumber, PeerNode};
pub use settings::{
    DEFAULT_MTU, DEFAULT_VNI, DEFAULT_VXLAN_PORT, DirectRoutes, MIN_MTU, NodeNetworkSettings,
    OVERLAY_OVERHEAD, Overlay, PortRange, RangeConflict, Underlay, WIREGUARD_OVERHEAD, WireGuard,
};
pub(crate) use settings::{gateway_of, overlap};

use crate::error::Error;
use crate::keys::{HostPort, TaskKey};
use crate::names::link_name;

/// How a task of this node is attached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Its only address, from one of the node's blocks.
    pub address: Ipv4Addr,
    /// The networks of which it is a member. Without any it reaches only the node's DNS server.
    pub networks: BTreeSet<NetworkNumber>,
    /// Whether it may reach the metadata service of the cloud, 169.254.169.254.
    pub allows_metadata: bool,
}

impl Attachment {
    /// An attachment to the default network.
    pub fn new(address: Ipv4Addr) -> Self {
        Self { address, networks: BTreeSet::from([DEFAULT_NETWORK]), allows_metadata: false }
    }
}

/// The network of one task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskNetwork {
    /// The task's id; names its namespace and its link.
    pub task: TaskKey,
    /// Its address and networks.
    pub attachment: Attachment,
    /// The namespace that it gets, a file to which one is bound; `None`: the one that it has, else a new one.
    pub namespace: Option<PathBuf>,
}

/// A host port, published in host mode by one service of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortMapping {
    /// Where connections arrive.
    pub host_port: HostPort,
    /// Target of the connections: address and container port of each ready local task of the service, with
    /// equal shares. With none, connections are refused.
    pub backends: BTreeSet<SocketAddrV4>,
}

/// The desired network of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeNetwork {
    /// Settings of the node itself.
    pub settings: NodeNetworkSettings,
    /// Attachment of each task.
    pub tasks: BTreeMap<TaskKey, Attachment>,
    /// Backends of each port published in host mode.
    pub ports: BTreeMap<HostPort, BTreeSet<SocketAddrV4>>,
    /// What managers told about the rest of the cluster.
    pub cluster: Arc<ClusterNetwork>,
}

impl NodeNetwork {
    /// A node with no tasks and no peers.
    pub fn new(settings: NodeNetworkSettings) -> Self {
        Self { settings, tasks: BTreeMap::new(), ports: BTreeMap::new(), cluster: Arc::default() }
    }

    /// The peers of this node with their numbers, without itself.
    pub(crate) fn peers(&self) -> impl Iterator<Item = (u16, &PeerNode)> + '_ {
        let own = self.settings.number();
        let all = self.cluster.peers.iter().map(|(number, peer)| (*number, peer));
        all.filter(move |(number, _)| Some(*number) != own)
    }

    /// Checks whether a task can be added to this node.
    ///
    /// # Errors
    /// [`Error::AddressOutsideSubnet`], [`Error::AddressTaken`], [`Error::LinkNameTaken`].
    pub fn admit(&self, task: &TaskNetwork) -> Result<(), Error> {
        let (address, task) = (task.attachment.address, task.task.clone());
        if !self.settings.is_assignable(address) {
            let blocks = self.settings.blocks().to_vec();
            return Err(Error::AddressOutsideSubnet { task, address, blocks });
        }
        let mut others = self.tasks.iter().filter(|(other, _)| **other != task);
        if let Some((by, _)) = others.clone().find(|(_, taken)| taken.address == address) {
            return Err(Error::AddressTaken { task, address, by: by.clone() });
        }
        let link = link_name(&task);
        match others.find(|(other, _)| link_name(other) == link) {
            Some((by, _)) => Err(Error::LinkNameTaken { task, link, by: by.clone() }),
            None => Ok(()),
        }
    }

    /// Removes tasks that conflict with each other, and returns an error for each of them.
    pub(crate) fn without_conflicts(&self) -> (Self, Vec<Error>) {
        let mut refused = Vec::new();
        let mut admitted = Self { tasks: BTreeMap::new(), ..self.clone() };
        for (task, attachment) in self.tasks.clone() {
            let task = TaskNetwork { task, attachment, namespace: None };
            match admitted.admit(&task) {
                Ok(()) => drop(admitted.tasks.insert(task.task, task.attachment)),
                Err(error) => refused.push(error),
            }
        }
        (admitted, refused)
    }
}

/// Result of a full reconciliation of the node's network.
#[derive(Debug, Default)]
pub struct Repairs {
    /// One sentence for each object that was missing, damaged or left over.
    pub repaired: Vec<String>,
    /// What could not be repaired; the next reconciliation retries.
    pub failed: Vec<Error>,
}

impl Repairs {
    /// Adds the result of one part of the reconciliation.
    pub(crate) fn record(&mut self, outcome: Result<Vec<String>, Error>) {
        match outcome {
            Ok(repaired) => self.repaired.extend(repaired),
            Err(error) => self.failed.push(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_admitted_once_per_address() {
        let settings = NodeNetworkSettings::new(
            vec!["10.210.0.0/16".parse().unwrap()],
            "10.210.7.0/24".parse().unwrap(),
            DEFAULT_MTU,
        );
        let mut node = NodeNetwork::new(settings.unwrap());
        let task = |name: &str, last| TaskNetwork {
            task: TaskKey::parse(name).unwrap(),
            attachment: Attachment::new(Ipv4Addr::new(10, 210, 7, last)),
            namespace: None,
        };
        node.tasks.insert(task("a", 2).task, task("a", 2).attachment);
        assert!(node.admit(&task("a", 2)).is_ok(), "again is harmless");
        assert!(node.admit(&task("a", 3)).is_ok(), "a task may move to another address");
        assert!(node.admit(&task("b", 3)).is_ok());
        assert!(matches!(node.admit(&task("b", 2)), Err(Error::AddressTaken { .. })));
        assert!(matches!(node.admit(&task("b", 1)), Err(Error::AddressOutsideSubnet { .. })));
    }
}
