//! Errors of this crate, each with expected and actual state and the remedy.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::Ipv4Net;

use crate::keys::{HostPort, InvalidTaskKey, TaskKey};

/// The process that has bound a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortHolder {
    /// Process id.
    pub pid: u32,
    /// Name as in `/proc/<pid>/comm`, at most 15 characters.
    pub name: String,
}

impl fmt::Display for PortHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.name, self.pid)
    }
}

/// Who has a port that is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortUser {
    /// A process.
    Process(PortHolder),
    /// A VXLAN device, by its name.
    Device(String),
    /// It is not visible: a process of another user or of another namespace.
    Unknown,
}

/// Describes the port holder, also when it is unknown.
fn holder_text(holder: &Option<PortHolder>) -> String {
    match holder {
        Some(holder) => format!("process {holder}"),
        None => "another process".to_owned(),
    }
}

/// ` 10.0.0.7 is`, or `es 10.0.0.7, 10.0.0.8 are`.
fn listed(addresses: &BTreeSet<Ipv4Addr>) -> String {
    let list: Vec<String> = addresses.iter().map(Ipv4Addr::to_string).collect();
    let (plural, verb) = if list.len() == 1 { ("", "is") } else { ("es", "are") };
    format!("{plural} {} {verb}", list.join(", "))
}

/// A failed operation on the node's network.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process lacks the privileges for namespaces, links and rules.
    #[error("container networks need root, but this process runs as uid {uid}; start the node as root")]
    NotRoot {
        /// Effective user id of this process.
        uid: u32,
    },
    /// A program is not on the PATH.
    #[error(
        "the program {program:?} was not found on the PATH; install it, e.g. `apt-get install {package}`"
    )]
    ProgramMissing {
        /// Name of the program.
        program: String,
        /// The package that has it, by its usual name.
        package: &'static str,
    },
    /// The installed iptables lacks required options.
    #[error("iptables {needed} or newer is needed, found {found:?}; upgrade it")]
    ProgramTooOld {
        /// Output of `iptables --version`.
        found: String,
        /// Oldest supported version.
        needed: &'static str,
    },
    /// A program failed.
    #[error("`{command}` failed: {detail}")]
    ProgramFailed {
        /// The command line, and the rejected rule if any.
        command: String,
        /// Its output.
        detail: String,
    },
    /// An operation exceeded its deadline.
    #[error(
        "{what} did not finish within {after:?}; the kernel or the process that holds a lock does not respond"
    )]
    Deadline {
        /// The operation.
        what: String,
        /// The deadline.
        after: Duration,
    },
    /// The worker thread died before it returned a result.
    #[error("{what} was interrupted before it finished; it is safe to try again")]
    Interrupted {
        /// The operation.
        what: String,
    },
    /// A kernel setting could not be read or written.
    #[error(
        "cannot set sysctl {name} to {value}: {source}; run `sysctl -w {name}={value}` where /proc/sys can be \
         written"
    )]
    Sysctl {
        /// Dotted name, as in `sysctl -a`.
        name: String,
        /// Desired value.
        value: String,
        /// The kernel error.
        source: io::Error,
    },
    /// The kernel rejected a change of links, addresses, routes or neighbours.
    #[error("cannot {operation}: {source}")]
    Netlink {
        /// The failed operation and its object.
        operation: String,
        /// The kernel error.
        source: io::Error,
    },
    /// A network namespace could not be created, entered or removed.
    #[error("cannot {operation} network namespace {path:?}: {source}")]
    Namespace {
        /// The failed step.
        operation: &'static str,
        /// File of the namespace.
        path: PathBuf,
        /// The kernel error.
        source: io::Error,
    },
    /// Connection tracking entries could not be deleted.
    #[error("cannot delete the connection tracking entries of {of}: {source}")]
    Conntrack {
        /// Addresses or port of the entries.
        of: String,
        /// The kernel error.
        source: io::Error,
    },
    /// A file could not be read or written.
    #[error("cannot {operation} {path:?}: {source}")]
    File {
        /// The failed step.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// The node's settings are unknown.
    #[error("the node network is not configured")]
    NodeNotConfigured,
    /// A task id that is not valid as a file name.
    #[error(transparent)]
    InvalidTaskKey(#[from] InvalidTaskKey),
    /// A block of addresses that is not usable for this node.
    #[error("subnet {subnet} cannot serve this node: {reason}")]
    InvalidSubnet {
        /// The block.
        subnet: Ipv4Net,
        /// Why not.
        reason: &'static str,
    },
    /// A value of the overlay's settings, or of those of routes without one, that cannot be used.
    #[error("cannot connect this node to the others: {reason}")]
    InvalidOverlay {
        /// The value and what is wrong with it.
        reason: String,
    },
    /// Another node that cannot be reached as it was described.
    #[error("node {number} is left out of the overlay: {reason}")]
    InvalidPeer {
        /// Its number.
        number: u16,
        /// What is wrong with it.
        reason: String,
    },
    /// The kernel has no VXLAN devices, or none with group policy.
    #[error("this kernel has no VXLAN devices; load or install the module, e.g. `modprobe vxlan`")]
    VxlanMissing,
    /// The kernel lacks something that every node needs.
    #[error("this kernel has no {feature}; load or install the module, e.g. `modprobe {module}`")]
    KernelFeatureMissing {
        /// What it is for.
        feature: &'static str,
        /// The module that has it.
        module: &'static str,
    },
    /// The UDP port of the overlay is in use.
    #[error(
        "UDP port {port} of the overlay is in use by {}; stop that, or choose another port for the cluster",
        .by.as_deref().unwrap_or("another VXLAN device or process, perhaps in another network namespace \
        (Docker Swarm)")
    )]
    VxlanPortTaken {
        /// The port.
        port: u16,
        /// The other device or process, if known.
        by: Option<String>,
    },
    /// WireGuard does not work; nothing is sent to other nodes, because it would not be encrypted.
    #[error("packets between nodes cannot be encrypted, so none are sent: {0}")]
    WireGuard(#[from] warren_wireguard::Error),
    /// Nodes that no route can reach without a tunnel.
    #[error(
        "node address{} not on the network of {device}; `--data-plane routes` needs all nodes on one L2 network",
        listed(.peers)
    )]
    PeersElsewhere {
        /// Their addresses on the underlay, at least one.
        peers: BTreeSet<Ipv4Addr>,
        /// The device with this node's address.
        device: String,
    },
    /// No device of this node has the address that other nodes should send to.
    #[error("no device of this node has the data address {address}; use one of its own addresses")]
    UnderlayMissing {
        /// The address.
        address: Ipv4Addr,
    },
    /// The links of tasks would be too small.
    #[error(
        "task links would have an MTU of {mtu} bytes, at least {needed} are needed; raise the MTU of the \
         network between the nodes"
    )]
    MtuTooSmall {
        /// What is left of the underlay's MTU.
        mtu: u32,
        /// The minimum.
        needed: u32,
    },
    /// A task's address does not belong to this node.
    #[error(
        "task {task} has address {address}, which is not a usable address of this node's blocks {blocks:?}"
    )]
    AddressOutsideSubnet {
        /// The task.
        task: TaskKey,
        /// Its address.
        address: Ipv4Addr,
        /// The node's blocks.
        blocks: Vec<Ipv4Net>,
    },
    /// Two tasks with the same address.
    #[error("task {task} cannot have address {address}: it belongs to task {by} of this node")]
    AddressTaken {
        /// The task.
        task: TaskKey,
        /// Its address.
        address: Ipv4Addr,
        /// The task that has it.
        by: TaskKey,
    },
    /// Two tasks whose ids hash to the same link name.
    #[error("task {task} needs link {link}, which belongs to task {by}; replace one of them with a new task")]
    LinkNameTaken {
        /// The task.
        task: TaskKey,
        /// The link's name.
        link: String,
        /// The task that has it.
        by: TaskKey,
    },
    /// A host port that another process has bound.
    #[error("port {port} is in use by {}; stop it or publish another port", holder_text(.by))]
    PortTaken {
        /// The requested port.
        port: HostPort,
        /// The process that has it, if known.
        by: Option<PortHolder>,
    },
    /// A bind address that this node does not have.
    #[error(
        "cannot publish {port}: this node has no such address; use one of its own, or none for all of them"
    )]
    HostIpMissing {
        /// The requested port.
        port: HostPort,
    },
    /// A host port that could not be bound for another reason.
    #[error("cannot bind port {port}: {source}")]
    BindPort {
        /// The requested port.
        port: HostPort,
        /// The kernel error.
        source: io::Error,
    },
    /// Another node runs in this network namespace.
    #[error("another warren node{} runs in this network namespace; stop it first", match .pid {
        Some(pid) => format!(" (pid {pid})"), None => String::new() })]
    NamespaceTaken {
        /// Its process id, if known.
        pid: Option<i32>,
    },
}
