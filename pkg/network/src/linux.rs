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
mod lock;
mod message;
mod namespace;
mod netlink;
mod node;
mod ports;
mod preconditions;
mod process;
mod requested;
mod sysctl;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use tokio::sync::{Mutex as AsyncMutex, RwLock};

use crate::desired::{TaskLink, desired_network};
use crate::keys::{HostPort, TaskKey};
use crate::model::{NodeNetwork, NodeNetworkSettings, PortMapping, Repairs, TaskNetwork};
use crate::names::link_name;
use crate::{Error, NetworkBackend};
use firewall::Firewall;
pub use lock::NamespaceLock;
use process::run_on_thread;
use requested::RequestedState;

/// Number of attempts to bind a port that is in use without a visible holder.
const PORT_ATTEMPTS: usize = 5;
const PORT_PAUSE: Duration = Duration::from_millis(20);

/// Limit of tasks attached or detached concurrently in a reconciliation. Removing a link mostly waits for
/// the kernel, and concurrent removals share that wait.
const MAX_CONCURRENT: usize = 64;

/// The network of the local machine. Clones share the same state.
#[derive(Clone)]
pub struct LinuxNetwork {
    inner: Arc<LinuxInner>,
}

struct LinuxInner {
    /// Directory of the bound task namespaces.
    directory: PathBuf,
    /// Read-locked by work on one task or port, write-locked by a full reconciliation.
    pass_lock: RwLock<()>,
    state: Mutex<RequestedState>,
    firewall: AsyncMutex<AppliedFirewall>,
}

#[derive(Default)]
struct AppliedFirewall {
    firewall: Firewall,
    /// The [`RequestedState::version`] that the firewall has.
    version: u64,
}

impl LinuxNetwork {
    /// A network that stores the namespaces of tasks in `<run_dir>/netns`. Does nothing yet.
    pub fn new(run_dir: impl Into<PathBuf>) -> Self {
        let inner = LinuxInner {
            directory: run_dir.into().join("netns"),
            pass_lock: RwLock::default(),
            state: Mutex::default(),
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
            repairs.failed.into_iter().next().map_or(Ok(()), Err)
        })
        .await
    }

    async fn ensure_task(&self, task: &TaskNetwork) -> Result<PathBuf, Error> {
        let task = task.clone();
        self.run_to_completion("attaching a task", |inner| async move {
            let _beside_others = inner.pass_lock.read().await;
            let link = inner.state().admit(&task)?;
            inner.attach(link).await
        })
        .await
    }

    async fn remove_task(&self, task: &TaskKey) -> Result<(), Error> {
        let task = task.clone();
        self.run_to_completion("detaching a task", |inner| async move {
            let _beside_others = inner.pass_lock.read().await;
            inner.detach(task).await
        })
        .await
    }

    async fn ensure_port(&self, port: &PortMapping) -> Result<(), Error> {
        let port = port.clone();
        self.run_to_completion("publishing a port", |inner| async move {
            let _beside_others = inner.pass_lock.read().await;
            let version = inner.publish(&port).await?;
            inner.write_firewall(version).await
        })
        .await
    }

    async fn remove_port(&self, at: HostPort) -> Result<(), Error> {
        self.run_to_completion("unpublishing a port", move |inner| async move {
            let _beside_others = inner.pass_lock.read().await;
            let version = inner.state().unpublish(at);
            inner.write_firewall(version).await?;
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
            repairs.failed.extend(refused);
            Ok(repairs)
        })
        .await
    }

    async fn repair(&self) -> Result<Repairs, Error> {
        self.run_to_completion("repairing the node network", |inner| async move {
            let _alone = inner.pass_lock.write().await;
            inner.state().network.as_ref().ok_or(Error::NodeNotConfigured)?;
            Ok(log_repairs(inner.ensure_all().await))
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

/// Logs the changes of a reconciliation.
fn log_repairs(repairs: Repairs) -> Repairs {
    for repaired in &repairs.repaired {
        tracing::info!("network: {repaired}");
    }
    repairs
}

/// Adds the port holder to an error about a port.
async fn with_holder(error: Error) -> Error {
    run_on_thread("looking up the port holder", move || Ok(ports::with_holder(error)))
        .await
        .unwrap_or_else(|e| e)
}

/// Runs futures concurrently with a limit, and records their results.
async fn run_concurrently<F>(work: impl Iterator<Item = F>, repairs: &mut Repairs)
where
    F: Future<Output = Result<Vec<String>, Error>>,
{
    let mut outcomes = futures::stream::iter(work).buffer_unordered(MAX_CONCURRENT);
    while let Some(outcome) = outcomes.next().await {
        repairs.record(outcome);
    }
}

impl LinuxInner {
    /// The state is consistent when a thread panics while it holds the lock: every change is a single step.
    fn state(&self) -> MutexGuard<'_, RequestedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn attach(&self, link: TaskLink) -> Result<PathBuf, Error> {
        let directory = self.directory.clone();
        run_on_thread(&format!("attaching task {}", link.task), move || attach::ensure(&directory, &link))
            .await
    }

    async fn detach(&self, task: TaskKey) -> Result<(), Error> {
        let address = self.state().network.as_mut().and_then(|asked| asked.tasks.remove(&task));
        let directory = self.directory.clone();
        run_on_thread(&format!("detaching task {task}"), move || attach::remove(&directory, &task, address))
            .await
    }

    /// Binds and records a port. A program being started holds copies of all sockets until it executes, so
    /// a port released a moment ago may seem to be in use without a holder for some milliseconds.
    async fn publish(&self, port: &PortMapping) -> Result<u64, Error> {
        for _ in 1..PORT_ATTEMPTS {
            let outcome = self.state().publish(port.clone());
            let Err(taken) = outcome else { return outcome };
            let error = with_holder(taken).await;
            if !matches!(error, Error::PortTaken { by: None, .. }) {
                return Err(error);
            }
            tokio::time::sleep(PORT_PAUSE).await;
        }
        self.state().publish(port.clone())
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
        written.firewall.update(&desired_network(&node)).await?;
        written.version = newest;
        Ok(())
    }

    /// Reconciles settings, gateway, routes and chains of the node itself.
    async fn ensure_node(&self) -> Repairs {
        let mut repairs = Repairs::default();
        let (node, version) = {
            let state = self.state();
            let Some(node) = state.published() else {
                repairs.failed.push(Error::NodeNotConfigured);
                return repairs;
            };
            (node, state.version)
        };
        let desired = Arc::new(desired_network(&node));
        let own = Arc::clone(&desired);
        repairs.record(run_on_thread("setting up the node", move || node::ensure(&own)).await);
        let mut written = self.firewall.lock().await;
        let outcome = written.firewall.reconcile(&desired).await;
        if outcome.is_ok() {
            written.version = version;
        }
        repairs.record(outcome);
        repairs
    }

    /// Reconciles everything in dependency order; a failed part does not stop the next.
    async fn ensure_all(&self) -> Repairs {
        let not_held = self.state().hold_requested();
        let mut repairs = self.ensure_node().await;
        for error in not_held {
            repairs.failed.push(with_holder(error).await);
        }
        let links =
            self.state().network.as_ref().map(|asked| desired_network(asked).links).unwrap_or_default();
        self.remove_orphans(&links, &mut repairs).await;
        let directory = self.directory.clone();
        let by_task: BTreeMap<TaskKey, TaskLink> =
            links.iter().map(|link| (link.task.clone(), link.clone())).collect();
        let broken = run_on_thread("inspecting tasks", move || attach::inspect(&directory, &links)).await;
        let broken = broken.unwrap_or_else(|error| {
            repairs.failed.push(error);
            Vec::new()
        });
        let again = broken.into_iter().filter_map(|(task, reason)| {
            let link = by_task.get(&task)?.clone();
            Some(async move {
                let done = vec![format!("attached task {task} again: {reason}")];
                self.attach(link).await.map(|_| done)
            })
        });
        run_concurrently(again, &mut repairs).await;
        repairs
    }

    /// Removes tasks and links of this crate that are not requested.
    async fn remove_orphans(&self, links: &[TaskLink], repairs: &mut Repairs) {
        let (directory, desired) = (self.directory.clone(), links.to_vec());
        let found = run_on_thread("looking for leftovers", move || {
            Ok((attach::orphan_tasks(&directory, &desired)?, attach::orphan_links(&desired)?))
        });
        let (tasks, names) = match found.await {
            Ok(found) => found,
            Err(error) => return repairs.failed.push(error),
        };
        let mut names: BTreeSet<String> = names.into_iter().collect();
        for task in &tasks {
            names.remove(&link_name(task));
        }
        let tasks = tasks.into_iter().map(|task| async move {
            let done = vec![format!("removed leftover task {task}")];
            self.detach(task).await.map(|()| done)
        });
        run_concurrently(tasks, repairs).await;
        let links = names.into_iter().map(|name| async move {
            let done = vec![format!("removed leftover link {name}")];
            run_on_thread("removing a link", move || attach::remove_link(&name, None)).await.map(|()| done)
        });
        run_concurrently(links, repairs).await;
    }

    async fn remove_node(&self) -> Result<(), Error> {
        // Chains first: no traffic to a task being removed, and no port is held without rules.
        let mut written = self.firewall.lock().await;
        written.firewall.remove().await?;
        {
            let mut state = self.state();
            // Addresses are kept until the tasks are removed, for their connection tracking entries.
            if let Some(asked) = &mut state.network {
                asked.ports.clear();
            }
            state.ports.retain(&BTreeSet::new());
        }
        let mut repairs = Repairs::default();
        self.remove_orphans(&[], &mut repairs).await;
        if let Some(error) = repairs.failed.into_iter().next() {
            return Err(error);
        }
        let directory = self.directory.clone();
        run_on_thread("removing the node's routes", move || {
            node::remove()?;
            match std::fs::remove_dir(&directory) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    Err(Error::File { operation: "remove", path: directory, source })
                }
                _ => Ok(()),
            }
        })
        .await?;
        self.state().network = None;
        Ok(())
    }
}
