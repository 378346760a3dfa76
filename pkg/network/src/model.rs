//! The plain input data: a node, its tasks, its published ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};

use ipnet::Ipv4Net;

use crate::error::Error;
use crate::keys::{HostPort, TaskKey};
use crate::names::link_name;

/// Link MTU that fits an overlay (50 bytes of VXLAN, IP and UDP headers) on an Ethernet of 1500 bytes, so
/// that containers need not be re-created when a node gets its first peer.
pub const DEFAULT_MTU: u32 = 1450;

/// Address plan of the cluster as seen by one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeNetworkSettings {
    cluster_ranges: Vec<Ipv4Net>,
    subnet: Ipv4Net,
    mtu: u32,
}

impl NodeNetworkSettings {
    /// Validates the cluster's ranges, the node's subnet within one of them, and the MTU of task links in
    /// bytes ([`DEFAULT_MTU`] unless the underlay is smaller).
    ///
    /// # Errors
    /// [`Error::InvalidSubnet`] when the subnet lies outside every range or is too small for a gateway and a
    /// task.
    pub fn new(cluster: Vec<Ipv4Net>, subnet: Ipv4Net, mtu: u32) -> Result<Self, Error> {
        let subnet = subnet.trunc();
        let mut cluster: Vec<Ipv4Net> = cluster.iter().map(Ipv4Net::trunc).collect();
        cluster.sort();
        cluster.dedup();
        let refuse = |reason| Err(Error::InvalidSubnet { subnet, reason });
        if subnet.prefix_len() > 30 {
            return refuse("it is smaller than a /30, so that gateway and tasks do not fit");
        }
        if !cluster.iter().any(|range| range.contains(&subnet)) {
            return refuse("it lies outside every range of the cluster");
        }
        Ok(Self { cluster_ranges: cluster, subnet, mtu })
    }

    /// The cluster's ranges, sorted.
    pub fn cluster(&self) -> &[Ipv4Net] {
        &self.cluster_ranges
    }

    /// This node's subnet.
    pub fn subnet(&self) -> Ipv4Net {
        self.subnet
    }

    /// MTU of task links, in bytes.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// The first address of the subnet: the gateway of the tasks.
    pub fn gateway(&self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.subnet.network()) + 1)
    }

    /// Whether a task of this node can have the address.
    pub fn is_assignable(&self, address: Ipv4Addr) -> bool {
        let reserved = [self.subnet.network(), self.gateway(), self.subnet.broadcast()];
        self.subnet.contains(&address) && !reserved.contains(&address)
    }
}

/// The network of one task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskNetwork {
    /// The task's id; names its namespace and its link.
    pub task: TaskKey,
    /// Its only address, from the node's subnet.
    pub address: Ipv4Addr,
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
    /// Address of each task.
    pub tasks: BTreeMap<TaskKey, Ipv4Addr>,
    /// Backends of each published port.
    pub ports: BTreeMap<HostPort, BTreeSet<SocketAddrV4>>,
}

impl NodeNetwork {
    /// A node with no tasks.
    pub fn new(settings: NodeNetworkSettings) -> Self {
        Self { settings, tasks: BTreeMap::new(), ports: BTreeMap::new() }
    }

    /// Checks whether a task can be added to this node.
    ///
    /// # Errors
    /// [`Error::AddressOutsideSubnet`], [`Error::AddressTaken`], [`Error::LinkNameTaken`].
    pub fn admit(&self, task: &TaskNetwork) -> Result<(), Error> {
        let TaskNetwork { task, address } = task.clone();
        if !self.settings.is_assignable(address) {
            return Err(Error::AddressOutsideSubnet { task, address, subnet: self.settings.subnet });
        }
        let mut others = self.tasks.iter().filter(|(other, _)| **other != task);
        if let Some((by, _)) = others.clone().find(|(_, taken)| **taken == address) {
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
        for (task, address) in self.tasks.clone() {
            let task = TaskNetwork { task, address };
            match admitted.admit(&task) {
                Ok(()) => drop(admitted.tasks.insert(task.task, address)),
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

    fn settings(subnet: &str) -> Result<NodeNetworkSettings, Error> {
        NodeNetworkSettings::new(vec!["10.210.0.0/16".parse().unwrap()], subnet.parse().unwrap(), DEFAULT_MTU)
    }

    #[test]
    fn subnets_are_checked_and_have_a_gateway() {
        let node = settings("10.210.7.9/24").unwrap();
        assert_eq!(node.gateway(), Ipv4Addr::new(10, 210, 7, 1));
        for (address, fits) in [
            ([10, 210, 7, 0], false),
            ([10, 210, 7, 1], false),
            ([10, 210, 7, 2], true),
            ([10, 210, 7, 254], true),
            ([10, 210, 7, 255], false),
            ([10, 210, 8, 2], false),
        ] {
            assert_eq!(node.is_assignable(Ipv4Addr::from(address)), fits, "{address:?}");
        }
        for bad in ["10.211.0.0/24", "10.210.0.0/31", "10.0.0.0/8"] {
            assert!(matches!(settings(bad), Err(Error::InvalidSubnet { .. })), "{bad}");
        }
    }

    #[test]
    fn a_task_is_admitted_once_per_address() {
        let mut node = NodeNetwork::new(settings("10.210.7.0/24").unwrap());
        let task = |name: &str, last| TaskNetwork {
            task: TaskKey::parse(name).unwrap(),
            address: Ipv4Addr::new(10, 210, 7, last),
        };
        node.tasks.insert(task("a", 2).task, task("a", 2).address);
        assert!(node.admit(&task("a", 2)).is_ok(), "again is harmless");
        assert!(node.admit(&task("a", 3)).is_ok(), "a task may move to another address");
        assert!(node.admit(&task("b", 3)).is_ok());
        assert!(matches!(node.admit(&task("b", 2)), Err(Error::AddressTaken { .. })));
        assert!(matches!(node.admit(&task("b", 1)), Err(Error::AddressOutsideSubnet { .. })));
    }
}
