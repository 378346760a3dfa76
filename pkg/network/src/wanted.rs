//! What the kernel of one node should hold: a pure function from the node's tasks and ports to links,
//! addresses, routes, settings, chains and rules. The same input always gives the same output, in the same
//! order.

mod names;
mod ports;
mod rules;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

pub use names::{CHAIN_PREFIX, GATEWAY_LABEL, GATEWAY_MAC, LINK_PREFIX, ROUTE_PROTOCOL};
pub use names::{is_link_name, link_name, task_mac};

use crate::model::{NodeNetwork, TaskKey};

/// Metric of the routes that swallow cluster addresses nobody has; any real route wins against it.
const UNREACHABLE_METRIC: u32 = 4096;

/// A kernel setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sysctl {
    /// Path below `/proc/sys`, for instance `net/ipv4/ip_forward`.
    pub path: String,
    /// Wanted value.
    pub value: &'static str,
}

/// The gateway address of the node and the device that carries it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayAddress {
    /// Name of the device.
    pub device: &'static str,
    /// The address, as a /32.
    pub address: Ipv4Addr,
    /// Label by which the address is recognised as ours.
    pub label: &'static str,
}

/// A route for addresses that nobody has: packets to them are refused here instead of leaking to the
/// outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreachableRoute {
    /// The range.
    pub destination: Ipv4Net,
    /// Its metric.
    pub metric: u32,
}

/// The cable between one task and the host, and all that hangs on its two ends.
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
    /// Hardware address of the task's end; that of the host's end is [`GATEWAY_MAC`].
    pub mac: [u8; 6],
    /// MTU of both ends, in bytes.
    pub mtu: u32,
}

impl TaskLink {
    /// Settings of the host's end, in the host's namespace.
    pub fn host_sysctls(&self) -> Vec<Sysctl> {
        let name = &self.name;
        vec![
            // Replies to a connection that the node itself made to 127.0.0.1:<published port> come in here.
            Sysctl { path: format!("net/ipv4/conf/{name}/route_localnet"), value: "1" },
            Sysctl { path: format!("net/ipv6/conf/{name}/disable_ipv6"), value: "1" },
        ]
    }

    /// Settings of the task's namespace, to be written before its link exists.
    pub fn task_sysctls(&self) -> Vec<Sysctl> {
        let setting = |path: &str, value| Sysctl { path: path.to_owned(), value };
        vec![
            setting("net/ipv6/conf/all/disable_ipv6", "1"),
            setting("net/ipv6/conf/default/disable_ipv6", "1"),
            setting("net/ipv4/conf/all/accept_redirects", "0"),
            setting("net/ipv4/conf/default/accept_redirects", "0"),
            // A container that does not run as root may still listen on port 80: the port space is its own.
            setting("net/ipv4/ip_unprivileged_port_start", "0"),
        ]
    }
}

/// The chains of one iptables table with their rules, each rule without its `-A <chain>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// `raw`, `mangle`, `nat` or `filter`.
    pub name: &'static str,
    /// Rules by chain; only chains of ours.
    pub chains: BTreeMap<String, Vec<String>>,
}

/// A rule that leads from a chain of the kernel into one of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Jump {
    /// The table.
    pub table: &'static str,
    /// The kernel's chain, for instance `PREROUTING`.
    pub chain: &'static str,
    /// The rule, for instance `-j WARREN-PRE`, in the spelling of `iptables-save`.
    pub rule: &'static str,
}

/// Everything the kernel of one node should hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Settings of the node as a whole.
    pub sysctls: Vec<Sysctl>,
    /// Where tasks find their gateway.
    pub gateway: GatewayAddress,
    /// Routes of the node as a whole, sorted by destination.
    pub routes: Vec<UnreachableRoute>,
    /// One link per task, sorted by task.
    pub links: Vec<TaskLink>,
    /// The tables in the order in which they are to be written.
    pub tables: Vec<Table>,
    /// The jumps in the order in which they are to be made, after the tables are written.
    pub jumps: Vec<Jump>,
}

/// Says what the kernel of a node should hold.
pub fn wanted(node: &NodeNetwork) -> Wanted {
    let settings = &node.settings;
    Wanted {
        sysctls: vec![Sysctl { path: "net/ipv4/ip_forward".to_owned(), value: "1" }],
        // The gateway lives on `lo` until the node has an overlay device to carry it: `lo` is always there
        // and up, nothing flushes it, and a local address answers on every link whatever device carries it.
        // A device of its own would have to be a bridge (not every kernel has dummy devices), which draws in
        // bridge filtering. The label makes it recognisable, so that it can be removed by somebody who does
        // not know the subnet any more.
        gateway: GatewayAddress { device: "lo", address: settings.gateway(), label: GATEWAY_LABEL },
        routes: settings
            .cluster()
            .iter()
            .map(|range| UnreachableRoute { destination: *range, metric: UNREACHABLE_METRIC })
            .collect(),
        links: node.tasks.iter().map(|(task, address)| link(node, task, *address)).collect(),
        tables: rules::tables(node),
        jumps: rules::jumps(),
    }
}

/// The link of one task.
pub fn link(node: &NodeNetwork, task: &TaskKey, address: Ipv4Addr) -> TaskLink {
    TaskLink {
        task: task.clone(),
        name: link_name(task),
        address,
        gateway: node.settings.gateway(),
        mac: task_mac(address),
        mtu: node.settings.mtu(),
    }
}
