//! The desired kernel state of one node: a pure function from the node's tasks and ports to links,
//! addresses, routes, settings, chains and rules. The output is deterministic, including its order.

mod ports;
mod rules;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::keys::TaskKey;
use crate::model::NodeNetwork;
use crate::names::{GATEWAY_LABEL, link_name, task_mac};

/// Metric of the unreachable routes for unused cluster addresses; any real route takes precedence.
const UNREACHABLE_METRIC: u32 = 4096;

/// A kernel setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sysctl {
    /// Path below `/proc/sys`, for instance `net/ipv4/ip_forward`.
    pub path: String,
    /// Desired value.
    pub value: &'static str,
}

/// The gateway address of the node and the device that carries it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayAddress {
    /// Name of the device.
    pub device: &'static str,
    /// The address, as a /32.
    pub address: Ipv4Addr,
    /// Label that identifies the address as created by this crate.
    pub label: &'static str,
}

/// A route for unused addresses: packets to them are rejected here instead of leaking to the outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreachableRoute {
    /// The range.
    pub destination: Ipv4Net,
    /// Its metric.
    pub metric: u32,
}

/// The veth pair between one task and the host, with the settings of both ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskLink {
    /// The task.
    pub task: TaskKey,
    /// Name of the host's end; the task's end is `eth0`.
    pub name: String,
    /// The task's address.
    pub address: Ipv4Addr,
    /// The node's gateway address.
    pub gateway: Ipv4Addr,
    /// Hardware address of the task's end; that of the host's end is [`crate::names::GATEWAY_MAC`].
    pub mac: [u8; 6],
    /// MTU of both ends, in bytes.
    pub mtu: u32,
}

impl TaskLink {
    /// Settings of the host's end, in the host's namespace.
    pub fn host_sysctls(&self) -> Vec<Sysctl> {
        let name = &self.name;
        vec![
            // Replies to connections of the node itself to 127.0.0.1:<published port> arrive here.
            Sysctl { path: format!("net/ipv4/conf/{name}/route_localnet"), value: "1" },
            Sysctl { path: format!("net/ipv6/conf/{name}/disable_ipv6"), value: "1" },
        ]
    }

    /// Settings of the task's namespace, written before its link exists.
    pub fn task_sysctls(&self) -> Vec<Sysctl> {
        let setting = |path: &str, value| Sysctl { path: path.to_owned(), value };
        vec![
            setting("net/ipv6/conf/all/disable_ipv6", "1"),
            setting("net/ipv6/conf/default/disable_ipv6", "1"),
            setting("net/ipv4/conf/all/accept_redirects", "0"),
            setting("net/ipv4/conf/default/accept_redirects", "0"),
            // A non-root container may listen on port 80: each namespace has its own port space.
            setting("net/ipv4/ip_unprivileged_port_start", "0"),
        ]
    }
}

/// The chains of one iptables table with their rules, each rule without its `-A <chain>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IptablesTable {
    /// `raw`, `mangle`, `nat` or `filter`.
    pub name: &'static str,
    /// Rules by chain; only chains of this crate.
    pub chains: BTreeMap<String, Vec<String>>,
}

/// A rule that leads from a built-in chain into a chain of this crate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainJump {
    /// The table.
    pub table: &'static str,
    /// The built-in chain, for instance `PREROUTING`.
    pub chain: &'static str,
    /// The rule, for instance `-j WARREN-PRE`, in the spelling of `iptables-save`.
    pub rule: &'static str,
}

/// The desired kernel state of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredNetwork {
    /// Settings of the node as a whole.
    pub sysctls: Vec<Sysctl>,
    /// Gateway address of the tasks.
    pub gateway: GatewayAddress,
    /// Routes of the node as a whole, sorted by destination.
    pub routes: Vec<UnreachableRoute>,
    /// One link per task, sorted by task.
    pub links: Vec<TaskLink>,
    /// The tables in write order.
    pub tables: Vec<IptablesTable>,
    /// The jumps in creation order, after the tables are written.
    pub jumps: Vec<ChainJump>,
}

/// Derives the desired kernel state of a node.
pub fn desired_network(node: &NodeNetwork) -> DesiredNetwork {
    let settings = &node.settings;
    DesiredNetwork {
        sysctls: vec![Sysctl { path: "net/ipv4/ip_forward".to_owned(), value: "1" }],
        // The gateway address is on `lo` until the node has an overlay device: `lo` is always there and up,
        // nothing flushes it, and a local address answers on every link, whatever its device. A separate
        // device would have to be a bridge (not every kernel has dummy devices), which involves bridge
        // filtering. The label allows removal without knowing the subnet.
        gateway: GatewayAddress { device: "lo", address: settings.gateway(), label: GATEWAY_LABEL },
        routes: settings
            .cluster()
            .iter()
            .map(|range| UnreachableRoute { destination: *range, metric: UNREACHABLE_METRIC })
            .collect(),
        links: node.tasks.iter().map(|(task, address)| task_link(node, task, *address)).collect(),
        tables: rules::tables(node),
        jumps: rules::jumps(),
    }
}

/// Desired link of a task at `address`.
pub fn task_link(node: &NodeNetwork, task: &TaskKey, address: Ipv4Addr) -> TaskLink {
    TaskLink {
        task: task.clone(),
        name: link_name(task),
        address,
        gateway: node.settings.gateway(),
        mac: task_mac(address),
        mtu: node.settings.mtu(),
    }
}
