//! The node's network: what containers see of the outside, and the outside of them.
//!
//! Each task gets a network namespace of its own, joined to the host by a *routed* veth (no bridge), one
//! address out of the node's subnet, and masquerade for what it sends outside. Published host ports are
//! bound by this process, which is the conflict test, and translated by `WARREN-*` iptables chains to the
//! tasks behind them.
//!
//! What it must never do: decide. [`wanted()`] says from plain data what the links, routes and rules of a
//! node are; the rest makes it so, and making it so again is the repair. It never touches a link, a route, a
//! chain or a file that is not recognisably its own, never enters a namespace on a tokio thread, and never
//! waits without a deadline.
//!
//! Where to start reading: the [`Network`] door below, then `wanted.rs` (what is wanted), then `linux.rs`
//! (how it is made). [`fake::FakeNetwork`] is the door without a kernel behind it, held to the same
//! conformance suite.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod error;
pub mod fake;
pub mod files;
mod linux;
mod model;
pub mod wanted;

use std::path::PathBuf;

use async_trait::async_trait;

pub use error::{Error, PortHolder};
pub use linux::{LinuxNetwork, NamespaceLock};
pub use model::{
    DEFAULT_MTU, HostPort, NodeNetwork, NodeSettings, PublishedPort, Repairs, TaskKey, TaskNetwork,
};
pub use wanted::wanted;

/// The door to the node's network. Every operation is harmless the second time and finishes what an earlier,
/// killed one left half done.
///
/// The implementation remembers what it was asked for (by `ensure_*`) and forgets what it was told to
/// remove; that memory, and not the caller's snapshot of a moment ago, is what [`Network::repair`] makes
/// true again. Dropping a returned future does not stop the work that it started.
#[async_trait]
pub trait Network: Send + Sync + 'static {
    /// Looks whether this machine can do the rest, and changes nothing.
    ///
    /// # Errors
    /// [`Error::NotRoot`], [`Error::ProgramMissing`], [`Error::ProgramTooOld`], [`Error::ProgramFailed`],
    /// [`Error::Sysctl`]: each says what to do about it.
    async fn check(&self) -> Result<(), Error>;

    /// Makes the node's own part: forwarding, the gateway address, the routes and the base chains.
    async fn ensure_node(&self, node: &NodeSettings) -> Result<(), Error>;

    /// Makes the network of one task and returns the path of its network namespace, ready for a container to
    /// be started in. When it fails, the task may be half attached: call it again, or
    /// [`Network::remove_task`].
    ///
    /// # Errors
    /// [`Error::NoNode`] before [`Network::ensure_node`]; [`Error::AddressOutsideSubnet`],
    /// [`Error::AddressTaken`], [`Error::LinkNameTaken`] before anything is changed; else what the kernel
    /// refused.
    async fn ensure_task(&self, task: &TaskNetwork) -> Result<PathBuf, Error>;

    /// Removes the task's link, namespace and connection tracking entries. A task that is not there is fine.
    async fn remove_task(&self, task: &TaskKey) -> Result<(), Error>;

    /// Takes the host port for this node and sends its connections to the given backends. Called again to
    /// change the backends; with none, connections are refused at once. Established connections are left to
    /// end by themselves.
    ///
    /// # Errors
    /// [`Error::PortTaken`] when another process has the port, [`Error::HostIpMissing`] when the bind
    /// address is not one of this node; nothing is published then.
    async fn ensure_port(&self, port: &PublishedPort) -> Result<(), Error>;

    /// Stops publishing the port and lets go of it. A port that is not published is fine.
    async fn remove_port(&self, at: HostPort) -> Result<(), Error>;

    /// Makes the node's network exactly `all`: what is missing or damaged is made, what is ours and not in
    /// `all` is removed. Called at start, before any task is handled; afterwards [`Network::repair`] does
    /// the same for what was asked since. One thing that fails does not stop the others; it is in
    /// [`Repairs::failed`].
    async fn ensure(&self, all: &NodeNetwork) -> Result<Repairs, Error>;

    /// Makes true again what was asked for so far; called every half a minute or so.
    async fn repair(&self) -> Result<Repairs, Error>;

    /// Removes everything of ours from this node, whoever made it: tasks, ports, chains, routes, addresses,
    /// files. `net.ipv4.ip_forward` stays on, because others may rely on it by now.
    async fn remove_node(&self) -> Result<(), Error>;
}
