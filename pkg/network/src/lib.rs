//! The network of a node: task namespaces, addresses, routes, the overlay to other nodes, published ports,
//! virtual addresses of services, separation of networks.
//!
//! Each task has its own network namespace, connected to the host by a *routed* veth (no bridge), one
//! address from the node's blocks, and masquerading for outbound traffic. One VXLAN device leads to the
//! other nodes, if asked through WireGuard, or routes do without a tunnel. Published ports and virtual
//! addresses are translated by `WARREN-*` iptables chains, and ports are bound by this process, which
//! detects conflicts. The nftables table `warren` decides which tasks may connect to which.
//!
//! This crate must never decide. [`desired_network()`] derives the links, routes and rules of a node from
//! plain data; the rest applies them, and applying them again is the repair. It never touches a link, a
//! route, a chain or a file that it did not create, never enters a namespace on a tokio thread, and never
//! waits without a deadline. `WARREN-USER` is created for rules of users, and never changed.
//!
//! Start reading at the [`NetworkBackend`] trait below, then `desired.rs` (desired state), then `linux.rs`
//! (its implementation). [`fake::FakeNetwork`] implements it without a kernel and passes the same
//! conformance suite.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod desired;
mod error;
pub mod fake;
pub mod files;
mod keys;
mod linux;
mod model;
pub mod names;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
pub use ipnet::Ipv4Net;

pub use desired::desired_network;
pub use error::{Error, PortHolder, PortUser};
pub use keys::{HostPort, InvalidTaskKey, TaskKey, TransportProtocol};
pub use linux::{LinuxNetwork, NamespaceLock, NetworkRequirement, kernel_module, port_user};
pub use model::{
    Attachment, Balancing, ClusterNetwork, DEFAULT_MTU, DEFAULT_NETWORK, DEFAULT_VNI, DEFAULT_VXLAN_PORT,
    DirectRoutes, MIN_MTU, NetworkMembers, NetworkNumber, NodeNetwork, NodeNetworkSettings, OVERLAY_OVERHEAD,
    Overlay, PeerNode, PortMapping, PortRange, RangeConflict, Repairs, TaskNetwork, Underlay,
    WIREGUARD_OVERHEAD, WireGuard,
};
pub use warren_wireguard::{
    DEFAULT_PORT as DEFAULT_WIREGUARD_PORT, WireGuardPrivateKey, WireGuardProgram, WireGuardPublicKey,
};

/// The interface to the node's network. Every operation is idempotent and completes an earlier one that was
/// killed.
///
/// The implementation records what was requested (by `ensure_*`) and deletes it on removal; this record,
/// not the caller's earlier snapshot, is what [`NetworkBackend::repair`] restores. Dropping a returned
/// future does not stop the work that it started.
#[async_trait]
pub trait NetworkBackend: Send + Sync + 'static {
    /// Checks whether this machine meets the requirements; changes nothing.
    ///
    /// # Errors
    /// [`Error::NotRoot`], [`Error::ProgramMissing`], [`Error::ProgramTooOld`], [`Error::ProgramFailed`],
    /// [`Error::Sysctl`], each with the remedy.
    async fn check(&self) -> Result<(), Error>;

    /// Sets up the node itself: forwarding, the gateway address, the overlay, the routes and the base
    /// chains.
    ///
    /// # Errors
    /// [`Error::VxlanMissing`], [`Error::VxlanPortTaken`]: the node then works without its peers.
    /// [`Error::PeersElsewhere`]: it works without these.
    async fn ensure_node(&self, node: &NodeNetworkSettings) -> Result<(), Error>;

    /// Replaces what is known about the rest of the cluster; only differences are written. Connections to a
    /// removed backend go on, its UDP flows move to another one, and connections of a task that is gone are
    /// reset. Ports in ingress mode are bound like those of [`NetworkBackend::ensure_port`]. Peers that cannot be
    /// reached as described and ports in use are left out, see [`Repairs::failed`]; each repair tries the ports
    /// again.
    ///
    /// # Errors
    /// [`Error::NodeNotConfigured`] before [`NetworkBackend::ensure_node`].
    async fn ensure_cluster(&self, cluster: &Arc<ClusterNetwork>) -> Result<Repairs, Error>;

    /// The device with the address, and the MTU that packets to the peers can have there. A tunnel needs a
    /// part of it: [`OVERLAY_OVERHEAD`], and [`WIREGUARD_OVERHEAD`].
    ///
    /// # Errors
    /// [`Error::UnderlayMissing`].
    async fn underlay(&self, address: Ipv4Addr, peers: &[Ipv4Addr]) -> Result<Underlay, Error>;

    /// A route of this machine, not of this crate, that leads elsewhere with addresses of the range. The
    /// default route is none.
    async fn range_conflict(&self, range: Ipv4Net) -> Result<Option<RangeConflict>, Error>;

    /// Creates the network of one task and returns the path of its network namespace, in which a container
    /// can be started. On failure the task may be partially attached: call it again, or
    /// [`NetworkBackend::remove_task`].
    ///
    /// # Errors
    /// [`Error::NodeNotConfigured`] before [`NetworkBackend::ensure_node`]; [`Error::AddressOutsideSubnet`],
    /// [`Error::AddressTaken`], [`Error::LinkNameTaken`] before any change; otherwise kernel errors.
    async fn ensure_task(&self, task: &TaskNetwork) -> Result<PathBuf, Error>;

    /// Removes the task's link, namespace and connection tracking entries. Succeeds if it does not exist.
    async fn remove_task(&self, task: &TaskKey) -> Result<(), Error>;

    /// Binds the host port for this node and forwards its connections to the given backends. Call it again
    /// to change the backends; with none, connections are refused immediately. Established connections are
    /// not interrupted.
    ///
    /// # Errors
    /// [`Error::PortTaken`] when another process has bound the port, [`Error::HostIpMissing`] when the node
    /// does not have the bind address; nothing is published then.
    async fn ensure_port(&self, port: &PortMapping) -> Result<(), Error>;

    /// Unpublishes and releases the port. Succeeds if the port is not published.
    async fn remove_port(&self, at: HostPort) -> Result<(), Error>;

    /// Makes the node's network exactly `all`: creates or repairs what is missing or damaged, and removes
    /// what this crate created and is not in `all`. Called at start, before any task is handled; afterwards
    /// [`NetworkBackend::repair`] does the same for later requests. One failure does not stop the rest; it
    /// is in [`Repairs::failed`].
    async fn ensure(&self, all: &NodeNetwork) -> Result<Repairs, Error>;

    /// Restores everything requested so far; called about every 30 seconds.
    async fn repair(&self) -> Result<Repairs, Error>;

    /// Removes everything that this crate created on the node: tasks, ports, chains, routes, addresses,
    /// files. `net.ipv4.ip_forward` stays on, because other software may rely on it.
    async fn remove_node(&self) -> Result<(), Error>;
}
