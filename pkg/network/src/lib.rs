//! The container network of a node: task namespaces, addresses, routes, published ports, firewall rules.
//!
//! Each task has its own network namespace, connected to the host by a *routed* veth (no bridge), one
//! address from the node's subnet, and masquerading for outbound traffic. Published host ports are bound by
//! this process, which detects conflicts, and are translated by `WARREN-*` iptables chains to the tasks.
//!
//! This crate must never decide. [`desired_network()`] derives the links, routes and rules of a node from
//! plain data; the rest applies them, and applying them again is the repair. It never touches a link, a
//! route, a chain or a file that it did not create, never enters a namespace on a tokio thread, and never
//! waits without a deadline.
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

use std::path::PathBuf;

use async_trait::async_trait;

pub use desired::desired_network;
pub use error::{Error, PortHolder};
pub use keys::{HostPort, InvalidTaskKey, TaskKey};
pub use linux::{LinuxNetwork, NamespaceLock};
pub use model::{DEFAULT_MTU, NodeNetwork, NodeNetworkSettings, PortMapping, Repairs, TaskNetwork};

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

    /// Sets up the node itself: forwarding, the gateway address, the routes and the base chains.
    async fn ensure_node(&self, node: &NodeNetworkSettings) -> Result<(), Error>;

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
