//! The door to a real Linux kernel.
//!
//! [`LinuxNetwork`] works in the network namespace of the threads it is called on. It keeps what it was
//! asked for ([`asked::State`]), lets tasks go on side by side, and lets a full pass go alone. Firewall
//! changes queue up at one lock; whoever gets it writes what all of them asked for, so that fifty changes at
//! once cost two writes.

mod asked;
mod attach;
mod conntrack;
mod firewall;
mod lock;
mod message;
mod namespace;
mod netlink;
mod node;
mod ports;
mod preconditions;
mod process;
mod saved;
mod sysctl;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use tokio::sync::{Mutex as AsyncMutex, RwLock};

use crate::model::{HostPort, NodeNetwork, NodeSettings, PublishedPort, Repairs, TaskKey, TaskNetwork};
use crate::wanted::{self, TaskLink, wanted};
use crate::{Error, Network};
use asked::State;
use firewall::Firewall;
pub use lock::NamespaceLock;
use process::on_thread;

/// How often, and how long apart, a port is tried that looks taken by nobody.
const PORT_ATTEMPTS: usize = 5;
const PORT_PAUSE: Duration = Duration::from_millis(20);

/// How many tasks a pass attaches or detaches at once. Side by side they share the kernel's waits, which are
/// most of the time of removing a link.
const SIDE_BY_SIDE: usize = 64;

/// The network of the machine it runs on. Cloning it gives another handle on the same one.
#[derive(Clone)]
pub struct LinuxNetwork {
    inner: Arc<Inner>,
}

struct Inner {
    /// Where the namespaces of tasks are bound.
    directory: PathBuf,
    /// Held for reading by work on one task or port, for writing by a full pass.
    gate: RwLock<()>,
    state: Mutex<State>,
    firewall: AsyncMutex<Written>,
}

#[derive(Default)]
struct Written {
    firewall: Firewall,
    /// The [`State::version`] that the firewall has.
    version: u64,
}

impl LinuxNetwork {
    /// A network that keeps the namespaces of tasks in `<run_dir>/netns`. Nothing is done yet.
    pub fn new(run_dir: impl Into<PathBuf>) -> Self {
        let inner = Inner {
            directory: run_dir.into().join("netns"),
            gate: RwLock::default(),
            state: Mutex::default(),
            firewall: AsyncMutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Runs an operation to its end, also when the caller stops waiting for it: half-done work would
    /// otherwise go on in its thread without the gate.
    async fn to_the_end<T, F>(&self, what: &str, work: impl FnOnce(Arc<Inner>) -> F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let interrupted = |_| Error::Interrupted { what: what.to_owned() };
        tokio::spawn(work(Arc::clone(&self.inner))).await.map_err(interrupted)?
    }
}

#[async_trait]
impl Network for LinuxNetwork {
    async fn check(&self) -> Result<(), Error> {
        preconditions::check().await
    }

    async fn ensure_node(&self, node: &NodeSettings) -> Result<(), Error> {
        let settings = node.clone();
        self.to_the_end("setting up the node", |inner| async move {
            let _alone = inner.gate.write().await;
            inner.state().settle(settings);
            let repairs = logged(inner.ensure_node().await);
            repairs.failed.into_iter().next().map_or(Ok(()), Err)
        })
        .await
    }

    async fn ensure_task(&self, task: &TaskNetwork) -> Result<PathBuf, Error> {
        let task = task.clone();
        self.to_the_end("attaching a task", |inner| async move {
            let _beside_others = inner.gate.read().await;
            let link = inner.state().admit(&task)?;
            inner.attach(link).await
        })
        .await
    }

    async fn remove_task(&self, task: &TaskKey) -> Result<(), Error> {
        let task = task.clone();
        self.to_the_end("detaching a task", |inner| async move {
            let _beside_others = inner.gate.read().await;
            inner.detach(task).await
        })
        .await
    }

    async fn ensure_port(&self, port: &PublishedPort) -> Result<(), Error> {
        let port = port.clone();
        self.to_the_end("publishing a port", |inner| async move {
            let _beside_others = inner.gate.read().await;
            let version = inner.publish(&port).await?;
            inner.write_firewall(version).await
        })
        .await
    }

    async fn remove_port(&self, at: HostPort) -> Result<(), Error> {
        self.to_the_end("withdrawing a port", move |inner| async move {
            let _beside_others = inner.gate.read().await;
            let version = inner.state().withdraw(at);
            inner.write_firewall(version).await?;
            // Only now: a program that takes the port next must not find it translated away.
            inner.state().let_go(at);
            Ok(())
        })
        .await
    }

    async fn ensure(&self, all: &NodeNetwork) -> Result<Repairs, Error> {
        let all = all.clone();
        self.to_the_end("making the node's network", |inner| async move {
            let _alone = inner.gate.write().await;
            let refused = inner.state().replace(&all);
            let mut repairs = logged(inner.ensure_all().await);
            repairs.failed.extend(refused);
            Ok(repairs)
        })
        .await
    }

    async fn repair(&self) -> Result<Repairs, Error> {
        self.to_the_end("repairing the node's network", |inner| async move {
            let _alone = inner.gate.write().await;
            inner.state().asked.as_ref().ok_or(Error::NoNode)?;
            Ok(logged(inner.ensure_all().await))
        })
        .await
    }

    async fn remove_node(&self) -> Result<(), Error> {
        self.to_the_end("removing the node's network", |inner| async move {
            let _alone = inner.gate.write().await;
            inner.remove_node().await
        })
        .await
    }
}

/// Tells the log what a pass changed on this machine.
fn logged(repairs: Repairs) -> Repairs {
    for repaired in &repairs.repaired {
        tracing::info!("network: {repaired}");
    }
    repairs
}

/// Adds to an error who has the port in question, if it is about a port.
async fn with_holder(error: Error) -> Error {
    on_thread("looking for a port's holder", move || Ok(ports::with_holder(error)))
        .await
        .unwrap_or_else(|e| e)
}

/// Does several things at once, but not too many, and notes what each did.
async fn side_by_side<F>(work: impl Iterator<Item = F>, repairs: &mut Repairs)
where
    F: Future<Output = Result<Vec<String>, Error>>,
{
    let mut outcomes = futures::stream::iter(work).buffer_unordered(SIDE_BY_SIDE);
    while let Some(outcome) = outcomes.next().await {
        repairs.note(outcome);
    }
}

impl Inner {
    /// The state stays whole when a thread dies while it has it: every change of it is a single step.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn attach(&self, link: TaskLink) -> Result<PathBuf, Error> {
        let directory = self.directory.clone();
        on_thread(&format!("attaching task {}", link.task), move || attach::ensure(&directory, &link)).await
    }

    async fn detach(&self, task: TaskKey) -> Result<(), Error> {
        let address = self.state().asked.as_mut().and_then(|asked| asked.tasks.remove(&task));
        let directory = self.directory.clone();
        on_thread(&format!("detaching task {task}"), move || attach::remove(&directory, &task, address)).await
    }

    /// Holds and notes a port. A program that is being started has copies of all our sockets until its own
    /// code runs, so a port that was let go a moment ago may look taken, by nobody, for some milliseconds.
    async fn publish(&self, port: &PublishedPort) -> Result<u64, Error> {
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

    /// Makes the firewall have at least the given version of what was asked for.
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
        written.firewall.change(&wanted(&node)).await?;
        written.version = newest;
        Ok(())
    }

    /// Settings, gateway, routes and chains of the node itself.
    async fn ensure_node(&self) -> Repairs {
        let mut repairs = Repairs::default();
        let (node, version) = {
            let state = self.state();
            let Some(node) = state.published() else {
                repairs.failed.push(Error::NoNode);
                return repairs;
            };
            (node, state.version)
        };
        let wanted = Arc::new(wanted(&node));
        let own = Arc::clone(&wanted);
        repairs.note(on_thread("setting up the node", move || node::ensure(&own)).await);
        let mut written = self.firewall.lock().await;
        let outcome = written.firewall.pass(&wanted).await;
        if outcome.is_ok() {
            written.version = version;
        }
        repairs.note(outcome);
        repairs
    }

    /// Everything, in the order in which it depends on each other; a part that fails does not stop the next.
    async fn ensure_all(&self) -> Repairs {
        let not_held = self.state().hold_asked();
        let mut repairs = self.ensure_node().await;
        for error in not_held {
            repairs.failed.push(with_holder(error).await);
        }
        let links = self.state().asked.as_ref().map(|asked| wanted(asked).links).unwrap_or_default();
        self.sweep(&links, &mut repairs).await;
        let directory = self.directory.clone();
        let by_task: BTreeMap<TaskKey, TaskLink> =
            links.iter().map(|link| (link.task.clone(), link.clone())).collect();
        let broken = on_thread("inspecting tasks", move || attach::inspect(&directory, &links)).await;
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
        side_by_side(again, &mut repairs).await;
        repairs
    }

    /// Removes tasks and links of ours that nobody asked for.
    async fn sweep(&self, links: &[TaskLink], repairs: &mut Repairs) {
        let (directory, wanted) = (self.directory.clone(), links.to_vec());
        let found = on_thread("looking for leftovers", move || {
            Ok((attach::stray_tasks(&directory, &wanted)?, attach::stray_links(&wanted)?))
        });
        let (tasks, names) = match found.await {
            Ok(found) => found,
            Err(error) => return repairs.failed.push(error),
        };
        let mut names: BTreeSet<String> = names.into_iter().collect();
        for task in &tasks {
            names.remove(&wanted::link_name(task));
        }
        let tasks = tasks.into_iter().map(|task| async move {
            let done = vec![format!("removed leftover task {task}")];
            self.detach(task).await.map(|()| done)
        });
        side_by_side(tasks, repairs).await;
        let links = names.into_iter().map(|name| async move {
            let done = vec![format!("removed leftover link {name}")];
            on_thread("removing a link", move || attach::remove_link(&name, None)).await.map(|()| done)
        });
        side_by_side(links, repairs).await;
    }

    async fn remove_node(&self) -> Result<(), Error> {
        // Chains first: nothing is sent to a task that is about to go, and no port is held in vain.
        let mut written = self.firewall.lock().await;
        written.firewall.remove().await?;
        {
            let mut state = self.state();
            // Addresses are kept until the tasks are gone, for their connection tracking entries.
            if let Some(asked) = &mut state.asked {
                asked.ports.clear();
            }
            state.ports.keep(&BTreeSet::new());
        }
        let mut repairs = Repairs::default();
        self.sweep(&[], &mut repairs).await;
        if let Some(error) = repairs.failed.into_iter().next() {
            return Err(error);
        }
        let directory = self.directory.clone();
        on_thread("removing the node's routes", move || {
            node::remove()?;
            match std::fs::remove_dir(&directory) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    Err(Error::File { operation: "remove", path: directory, source })
                }
                _ => Ok(()),
            }
        })
        .await?;
        self.state().asked = None;
        Ok(())
    }
}
