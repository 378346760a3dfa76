//! The desired kernel state of one node: a pure function from the node's tasks and ports to links,
//! addresses, routes, settings, chains and rules. The output is deterministic, including its order.

mod affinity;
mod base;
mod ingress;
mod isolation;
mod overlay;
mod ports;
mod rules;
mod services;
mod tree;
mod wireguard;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use warren_wireguard::WireGuardSettings;

pub use isolation::Isolation;
pub(crate) use rules::{ChainChange, chain_changes};

use crate::keys::TaskKey;
use crate::model::NodeNetwork;
use crate::names::{GATEWAY_LABEL, link_name, task_mac};

/// Rules by chain.
pub type Chains = BTreeMap<String, Vec<String>>;

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

/// The table of routes that other software has as well.
pub const MAIN_TABLE: u32 = 254;

/// A route of the node as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The table: [`MAIN_TABLE`], that of WireGuard, or that of an entry node.
    pub table: u32,
    /// The range.
    pub destination: Ipv4Net,
    /// Its metric.
    pub metric: u32,
    /// The device; `None` rejects packets as unreachable.
    pub device: Option<String>,
    /// The next hop on the device.
    pub via: Option<Ipv4Addr>,
    /// Whether the next hop is on the device although no address of the device says so.
    pub onlink: bool,
    /// Source address of connections from the node itself.
    pub source: Option<Ipv4Addr>,
}

impl Route {
    fn unreachable(destination: Ipv4Net, metric: u32) -> Self {
        let table = MAIN_TABLE;
        Self { table, destination, metric, device: None, via: None, onlink: false, source: None }
    }

    fn to_device(destination: Ipv4Net, device: &str) -> Self {
        Self { device: Some(device.to_owned()), ..Self::unreachable(destination, 0) }
    }
}

/// One of the ports of a UDP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UdpPort {
    /// That of the sender.
    From(u16),
    /// That of the receiver.
    To(u16),
}

/// A value of the packet mark, of which only some bits are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketMark {
    /// The value of these bits.
    pub value: u32,
    /// The bits.
    pub mask: u32,
}

/// What a routing rule does with the packets that it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleAction {
    /// Looks up this table of routes.
    Table(u32),
    /// Goes on with the rule of this priority.
    Goto(u32),
    /// Nothing: it is where others lead.
    Nop,
}

/// A rule that selects a table of routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoutingRule {
    /// Its place in the order of rules.
    pub priority: u32,
    /// Matches packets from this range.
    pub source: Ipv4Net,
    /// Matches packets to this range.
    pub destination: Ipv4Net,
    /// Matches UDP packets with this port; `None`: all packets.
    pub udp: Option<UdpPort>,
    /// Matches packets with this mark; `None`: all packets.
    pub mark: Option<PacketMark>,
    /// What happens to the packets.
    pub action: RuleAction,
}

impl RoutingRule {
    /// A rule for all packets.
    pub(crate) fn new(priority: u32, action: RuleAction) -> Self {
        let all = Ipv4Net::default();
        Self { priority, source: all, destination: all, udp: None, mark: None, action }
    }
}

impl std::fmt::Display for RoutingRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.udp, self.mark) {
            (Some(UdpPort::From(port)), _) => write!(f, "UDP packets from port {port}"),
            (Some(UdpPort::To(port)), _) => write!(f, "UDP packets to port {port}"),
            (None, Some(PacketMark { value, mask })) => {
                write!(f, "packets with mark {value:#x}/{mask:#x}")
            }
            (None, None) => write!(f, "{} with priority {}", self.destination, self.priority),
        }
    }
}

/// The VXLAN device of the node. It learns nothing and floods nothing: a packet goes where an entry says.
/// The group policy id of a packet is the number of the entry node of a connection from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverlayDevice {
    /// Its name.
    pub name: &'static str,
    /// Its hardware address.
    pub mac: [u8; 6],
    /// MTU in bytes, of the packets inside.
    pub mtu: u32,
    /// Address of this node on the underlay.
    pub local: Ipv4Addr,
    /// UDP port.
    pub port: u16,
    /// Network identifier.
    pub vni: u32,
}

impl OverlayDevice {
    /// Settings of the device.
    pub fn sysctls(&self) -> Vec<Sysctl> {
        let name = self.name;
        vec![
            // The larger of this and the setting for all devices is valid: 2 wins over a strict 1.
            Sysctl { path: format!("net/ipv4/conf/{name}/rp_filter"), value: "2" },
            // Even then the kernel wants a way back through this device, which has no address. For packets of a client
            // it is that to the entry node, by the mark.
            Sysctl { path: format!("net/ipv4/conf/{name}/src_valid_mark"), value: "1" },
            // Replies to connections of the node itself to 127.0.0.1:<ingress port> arrive here.
            Sysctl { path: format!("net/ipv4/conf/{name}/route_localnet"), value: "1" },
            Sysctl { path: format!("net/ipv6/conf/{name}/disable_ipv6"), value: "1" },
        ]
    }
}

/// The WireGuard device of the node. It has no address: the packets of the VXLAN device are routed into it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireGuardDevice {
    /// Its name.
    pub name: &'static str,
    /// MTU in bytes, of the packets inside.
    pub mtu: u32,
    /// Key, port and peers.
    pub settings: WireGuardSettings,
}

impl WireGuardDevice {
    /// Settings of the device.
    pub fn sysctls(&self) -> Vec<Sysctl> {
        let name = self.name;
        vec![
            // The main table leads to the peers through another device.
            Sysctl { path: format!("net/ipv4/conf/{name}/rp_filter"), value: "2" },
            Sysctl { path: format!("net/ipv6/conf/{name}/disable_ipv6"), value: "1" },
        ]
    }
}

/// How the VXLAN device finds one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VxlanPeer {
    /// Gateway address of the peer: next hop of the routes to its blocks.
    pub gateway: Ipv4Addr,
    /// Hardware address of its VXLAN device.
    pub mac: [u8; 6],
    /// Its address on the underlay.
    pub underlay: Ipv4Addr,
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
    pub chains: Chains,
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

/// The desired kernel state of the node without its tasks and firewall.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredNode {
    /// Settings of the node as a whole.
    pub sysctls: Vec<Sysctl>,
    /// Gateway address of the tasks.
    pub gateway: GatewayAddress,
    /// The WireGuard device.
    pub wireguard: Option<WireGuardDevice>,
    /// The VXLAN device.
    pub overlay: Option<OverlayDevice>,
    /// What leads to each peer, sorted by the numbers of nodes.
    pub peers: Vec<VxlanPeer>,
    /// Routes of the node as a whole, sorted by destination.
    pub routes: Vec<Route>,
    /// Rules that select the table of routes.
    pub rules: Vec<RoutingRule>,
}

/// The desired kernel state of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredNetwork {
    /// The node itself.
    pub node: DesiredNode,
    /// One link per task, sorted by task.
    pub links: Vec<TaskLink>,
    /// The tables in write order.
    pub tables: Vec<IptablesTable>,
    /// The jumps in creation order, after the tables are written.
    pub jumps: Vec<ChainJump>,
    /// Separation of the networks.
    pub isolation: Isolation,
}

/// Derives the desired kernel state of a node.
pub fn desired_network(node: &NodeNetwork) -> DesiredNetwork {
    DesiredNetwork {
        node: desired_node(node),
        links: task_links(node),
        tables: rules::tables(node),
        jumps: rules::jumps(&node.settings),
        isolation: desired_isolation(node),
    }
}

/// The part of [`desired_network`] that concerns the node itself.
pub(crate) fn desired_node(node: &NodeNetwork) -> DesiredNode {
    DesiredNode {
        sysctls: vec![Sysctl { path: "net/ipv4/ip_forward".to_owned(), value: "1" }],
        // The gateway address is on `lo`: it is always there and up, nothing flushes it, and a local
        // address answers on every link, whatever its device. The label allows removal without knowing the
        // block.
        gateway: GatewayAddress { device: "lo", address: node.settings.gateway(), label: GATEWAY_LABEL },
        wireguard: wireguard::device(node),
        overlay: overlay::device(node),
        peers: overlay::peers(node),
        routes: overlay::routes(node),
        rules: overlay::rules(node),
    }
}

/// The part of [`desired_network`] that separates networks.
pub(crate) fn desired_isolation(node: &NodeNetwork) -> Isolation {
    isolation::isolation(node)
}

/// The links of all tasks.
pub(crate) fn task_links(node: &NodeNetwork) -> Vec<TaskLink> {
    node.tasks.iter().map(|(task, attachment)| task_link(node, task, attachment.address)).collect()
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
