//! The [`NetworkBackend`](crate::NetworkBackend) for a real Linux kernel.
//!
//! [`LinuxNetwork`] works in the network namespace of the calling threads. It records requests
//! ([`requested::RequestedState`]), runs task operations concurrently, and runs a full reconciliation
//! exclusively. Firewall changes queue at one lock; its holder writes the changes of all waiters, so that
//! fifty concurrent changes cost two writes.

mod attach;
mod conntrack;
mod firewall;
mod iptables_save;
mod isolation;
mod lock;
mod message;
mod namespace;
mod netlink;
mod nft_listing;
mod node;
mod overlay;
mod ports;
mod preconditions;
mod process;
mod reconcile;
mod requested;
mod sysctl;
mod underlay;
mod wireguard;
mod wireguard_watch;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use ipnet::Ipv4Net;
use tokio::sync::{Mutex as AsyncMutex, RwLock};
use warren_wireguard::WireGuardProgram;

use crate::desired::{TaskLink, desired_node};
use crate::keys::{HostPort, TaskKey, TransportProtocol};
use crate::model::{
    ClusterNetwork, NodeNetwork, NodeNetworkSettings, PortMapping, RangeConflict, Repairs, TaskNetwork,
    Underlay,
};
use crate::{Error, NetworkBackend};
use conntrack::StaleEntries;
use firewall::Firewall;
pub use lock::NamespaceLock;
pub use preconditions::{NetworkRequirement, kernel_module, port_user};
use process::run_on_thread;
use requested::RequestedState;
use wireguard::WireGuardPaths;
use wireguard_watch::WireGuardWatch;

/// Milliseconds between the attempts to bind a port that is in use without a visible holder, for a task that starts.
/// The first ones are short, because most are enough; together they are 1.3 seconds.
const PORT_PAUSES: [u64; 6] = [20, 40, 80, 160, 320, 640];
/// The same for all ports of the node, which other changes wait for; a later repair tries again.
const REPAIR_PAUSES: [u64; 4] = [20; 4];
/// More changes of one reconciliation are logged as their number.
const MAX_LISTED_REPAIRS: usize = 10;

/// The network of the local machine. Clones share the same state.
#[derive(Clone)]
pub struct LinuxNetwork {
    inner: Arc<LinuxInner>,
}

struct LinuxInner {
    /// Directory of the bound task namespaces.
    directory: PathBuf,
    wireguard: WireGuardPaths,
    wireguard_watch: WireGuardWatch,
    /// Read-locked by work on one task or port, write-locked by a full reconciliation.
    pass_lock: RwLock<()>,
    state: Mutex<RequestedState>,
    /// Held while the state of the cluster changes, so that changes are written in their order.
    cluster_lock: AsyncMutex<()>,
    firewall: AsyncMutex<AppliedFirewall>,
}

#[derive(Default)]
struct AppliedFirewall {
    firewall: Firewall,
    /// The [`RequestedState::version`] that the firewall has.
    version: u64,
}

impl LinuxNetwork {
    /// A network that stores the namespaces of tasks in `<run_dir>/netns`, and has the socket of WireGuard at
    /// `<run_dir>/wireguard.sock`, whose process is started with the given program. Does nothing yet.
    pub fn new(run_dir: impl Into<PathBuf>, wireguard: WireGuardProgram) -> Self {
        let run_dir = run_dir.into();
        let inner = LinuxInner {
            directory: run_dir.join("netns"),
            wireguard: WireGuardPaths { program: wireguard, socket: run_dir.join("wireguard.sock") },
            wireguard_watch: WireGuardWatch::default(),
            pass_lock: RwLock::default(),
            state: Mutex::default(),
            cluster_lock: AsyncMutex::default(),
            firewall: AsyncMutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Runs an operation to completion, even when the caller is dropped: a partial operation would
    /// otherwise continue in its thread without the lock.
    async fn run_to_completion<T, F>(
        &self,
        what: &str,
        work: impl FnOnce(Arc<LinuxInner>) -> F,
    ) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let interrupted = |_| Error::Interrupted { what: what.to_owned() };
        tokio::spawn(work(Arc::clone(&self.inner))).await.map_err(interrupted)?
    }
}

#[async_trait]
impl NetworkBackend for LinuxNetwork {
    async fn check(&self) -> Result<(), Error> {
        preconditions::check().await
    }

    async fn ensure_node(&self, node: &NodeNetworkSettings) -> Result<(), Error> {
        let settings = node.clone();
        self.run_to_completion("setting up the node", |inner| async move {
            let _alone = inner.pass_lock.write().await;
            inner.state().set_node(settings);
            let repairs = log_repairs(inner.ensure_node().await);
            inner.watch_wireguard();
            repairs.failed.into_iter().next().map_or(Ok(()), Err)
        })
        .await
    }

    async fn ensure_cluster(&self, cluster: &Arc<ClusterNetwork>) -> Result<Repairs, Error> {
        let cluster = Arc::clone(cluster);
        self.run_to_completion("updating the cluster's network", |inner| async move {
            let _beside_others = inner.pass_lock.read().await;
            let _in_order = inner.cluster_lock.lock().await;
            inner.update_cluster(&cluster).await
        })
        .await
    }

    async fn underlay(&self, address: Ipv4Addr, peers: &[Ipv4Addr]) -> Result<Underlay, Error> {
        let peers = peers.to_vec();
        run_on_thread("looking up the underlay", move || underlay::underlay(address, &peers)).await
    }

    async fn range_conflict(&self, range: Ipv4Net) -> Result<Option<RangeConflict>, Error> {
        run_on_thread("comparing routes with a range", move || underlay::range_conflict(range)).await
    }

    async fn ensure_task(&self, task: &TaskNetwork) -> Result<PathBuf, Error> {
        let task = task.clone();
        self.run_to_completion("attaching a task", |inner| async move {
            let _beside_others = inner.pass_lock.read().await;
            let (link, version) = inner.state().admit(&task)?;
            // The task's link and its membership in networks are independent.
            let (path, written) =
                tokio::join!(inner.attach(link, task.namespace), inner.write_firewall(version));
            written?;
            path
        })
        .await
    }

    async fn remove_task(&self, task: &TaskKey) -> Result<(), Error> {
        let task = task.clone();
        self.run_to_completion("detaching a task", |inner| async move {
            let _beside_others = inner.pass_lock.read().await;
            let version = inner.detach(task).await?;
            inner.write_firewall(version).await
        })
        .await
    }

    async fn ensure_port(&self, port: &PortMapping) -> Result<(), Error> {
        let port = port.clone();
        self.run_to_completion("publishing a port", |inner| async move {
            let _beside_others = inner.pass_lock.read().await;
            let version = inner.publish(&port).await?;
            inner.write_firewall(version).await?;
            inner.move_flows(port.host_port, &port.backends).await
        })
        .await
    }

    async fn remove_port(&self, at: HostPort) -> Result<(), Error> {
        self.run_to_completion("unpublishing a port", move |inner| async move {
            let _beside_others = inner.pass_lock.read().await;
            let version = inner.state().unpublish(at);
            inner.write_firewall(version).await?;
            inner.move_flows(at, &BTreeSet::new()).await?;
            // Released last: a program that binds the port next must not find it still translated.
            inner.state().release(at);
            Ok(())
        })
        .await
    }

    async fn ensure(&self, all: &NodeNetwork) -> Result<Repairs, Error> {
        let all = all.clone();
        self.run_to_completion("reconciling the node network", |inner| async move {
            let _alone = inner.pass_lock.write().await;
            let refused = inner.state().replace(&all);
            let mut repairs = log_repairs(inner.ensure_all().await);
            inner.watch_wireguard();
            repairs.failed.extend(refused);
            Ok(repairs)
        })
        .await
    }

    async fn repair(&self) -> Result<Repairs, Error> {
        self.run_to_completion("repairing the node network", |inner| async move {
            let _alone = inner.pass_lock.write().await;
            inner.state().network.as_ref().ok_or(Error::NodeNotConfigured)?;
            let repairs = log_repairs(inner.ensure_all().await);
            inner.watch_wireguard();
            Ok(repairs)
        })
        .await
    }

    async fn remove_node(&self) -> Result<(), Error> {
        self.run_to_completion("removing the node network", |inner| async move {
            let _alone = inner.pass_lock.write().await;
            inner.remove_node().await
        })
        .await
    }
}

/// Logs the changes of a reconciliation. More than [`MAX_LISTED_REPAIRS`] are those of a node that begins.
fn log_repairs(repairs: Repairs) -> Repairs {
    let count = repairs.repaired.len();
    if count > MAX_LISTED_REPAIRS {
        tracing::info!(
            "network: made {count} interfaces, routes, rules and settings (the level debug lists them)"
        );
    }
    for repaired in &repairs.repaired {
        if count > MAX_LISTED_REPAIRS {
            tracing::debug!("network: {repaired}");
        } else {
            tracing::info!("network: {repaired}");
        }
    }
    repairs
}

/// Adds the port holder to an error about a port.
async fn with_holder(error: Error) -> Error {
    run_on_thread("looking up the port holder", move || Ok(ports::with_holder(error)))
        .await
        .unwrap_or_else(|e| e)
}

fn has_no_holder(error: &Error) -> bool {
    matches!(error, Error::PortTaken { by: None, .. })
}

impl LinuxInner {
    /// The state is consistent when a thread panics while it holds the lock: every change is a single step.
    fn state(&self) -> MutexGuard<'_, RequestedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn attach(&self, link: TaskLink, namespace: Option<PathBuf>) -> Result<PathBuf, Error> {
        let directory = self.directory.clone();
        let what = format!("attaching task {}", link.task);
        run_on_thread(&what, move || attach::ensure(&directory, &link, namespace.as_deref())).await
    }

    /// Returns the version of the firewall without the task.
    async fn detach(&self, task: TaskKey) -> Result<u64, Error> {
        let (address, version) = self.state().dismiss(&task);
        let directory = self.directory.clone();
        run_on_thread(&format!("detaching task {task}"), move || attach::remove(&directory, &task, address))
            .await?;
        Ok(version)
    }

    /// Writes what changed about the cluster, and ends the connections that it made stale.
    async fn update_cluster(&self, cluster: &Arc<ClusterNetwork>) -> Result<Repairs, Error> {
        let (cluster, refused) = ClusterNetwork::admitted(cluster);
        let mut repairs = Repairs { failed: refused, ..Repairs::default() };
        let before = self.state().set_cluster(Arc::clone(&cluster))?;
        repairs.failed.extend(self.hold(RequestedState::hold_ingress).await);
        let node = self.state().published().filter(|_| before.peers != cluster.peers);
        if let Some(node) = node {
            let desired = desired_node(&node);
            let paths = self.wireguard.clone();
            let update = move || node::ensure_peers(&desired, &paths);
            repairs.record(run_on_thread("updating peers", update).await);
        }
        let version = {
            let mut state = self.state();
            state.add_stale(&before);
            state.version
        };
        self.write_firewall(version).await?;
        let stale = std::mem::take(&mut self.state().stale);
        if let Err(error) = self.forget(stale.clone()).await {
            // The next update tries again.
            self.state().stale = stale;
            return Err(error);
        }
        let mut state = self.state();
        before.ingress.keys().for_each(|at| state.release(*at));
        drop(state);
        Ok(repairs)
    }

    /// Moves UDP flows of a port to its present backends: the kernel would keep sending them where their
    /// first packet went, also to the node itself.
    async fn move_flows(&self, at: HostPort, backends: &BTreeSet<SocketAddrV4>) -> Result<(), Error> {
        if at.protocol() != TransportProtocol::Udp {
            return Ok(());
        }
        let backends = backends.iter().map(|backend| *backend.ip()).collect();
        let ports = BTreeMap::from([(at, backends)]);
        self.forget(StaleEntries { ports, ..StaleEntries::default() }).await
    }

    async fn forget(&self, stale: StaleEntries) -> Result<(), Error> {
        if stale == StaleEntries::default() {
            return Ok(());
        }
        run_on_thread("deleting connection tracking entries", move || conntrack::remove_stale(&stale)).await
    }

    /// Binds and records a port. A program being started holds copies of all sockets until it executes, so
    /// a port released a moment ago may seem to be in use without a holder, on a busy machine for a second.
    async fn publish(&self, port: &PortMapping) -> Result<u64, Error> {
        for pause in PORT_PAUSES {
            let outcome = self.state().publish(port.clone());
            let Err(taken) = outcome else { return outcome };
            let error = with_holder(taken).await;
            if !has_no_holder(&error) {
                return Err(error);
            }
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        self.state().publish(port.clone())
    }

    /// Binds several ports, in the same way; returns an error for each that failed.
    async fn hold(&self, bind: fn(&mut RequestedState) -> Vec<Error>) -> Vec<Error> {
        let mut pauses = REPAIR_PAUSES.into_iter();
        loop {
            let refused = bind(&mut self.state());
            let mut errors = Vec::new();
            for error in refused {
                errors.push(with_holder(error).await);
            }
            match pauses.next() {
                Some(pause) if errors.iter().any(has_no_holder) => {
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
                _ => return errors,
            }
        }
    }

    /// Writes the firewall unless it has at least the given version.
    async fn write_firewall(&self, version: u64) -> Result<(), Error> {
        let mut written = self.firewall.lock().await;
        if written.version >= version {
            return Ok(());
        }
        let (node, newest) = {
            let state = self.state();
            match state.published() {
                Some(node) => (node, state.version),
                // The node was removed, and its chains with it.
                None => return Ok(()),
            }
        };
        written.firewall.update(&node).await?;
        written.version = newest;
        Ok(())
    }
}
