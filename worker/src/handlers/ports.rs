//! Which tasks of this node share which host port.
//!
//! A port belongs to one service at a time. Many tasks change their shares at once when a service starts;
//! the changes of one port that wait for each other are written as one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddrV4;
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Mutex as AsyncMutex;
use warren_network::{HostPort, Network, PublishedPort};
use warren_types::{ServiceId, TaskAssignment, TaskId};

/// The backends of each host port, as the network takes them.
pub(crate) type Backends = BTreeMap<HostPort, BTreeSet<SocketAddrV4>>;

/// The shares of all tasks, and the network that they are written to.
pub(crate) struct Ports {
    network: Arc<dyn Network>,
    shares: Mutex<BTreeMap<HostPort, Share>>,
}

/// One host port.
struct Share {
    service: ServiceId,
    /// The tasks that need the port; those that get traffic with their address.
    tasks: BTreeMap<TaskId, Option<SocketAddrV4>>,
    /// Counts the changes of `tasks`.
    version: u64,
    /// The version that the network has. Whoever holds it writes.
    written: Arc<AsyncMutex<u64>>,
}

/// Why a task does not have its share.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PortsError {
    #[error(transparent)]
    Network(#[from] warren_network::Error),
    #[error("port {port} still belongs to service {service}, whose tasks on this node are being stopped")]
    OfAnotherService { port: HostPort, service: ServiceId },
    #[error("0 is not a port; publish one of 1 to 65535")]
    Zero,
}

/// The ports that a task asks for, each with where its traffic goes.
fn wanted(task: &TaskAssignment) -> Result<Vec<(HostPort, SocketAddrV4)>, PortsError> {
    let each = |port: &warren_types::PublishedPort| {
        let number = NonZeroU16::new(port.host_port).ok_or(PortsError::Zero)?;
        let at = HostPort::new(port.host_ip, number);
        Ok((at, SocketAddrV4::new(task.address, port.container_port)))
    };
    task.ports.iter().map(each).collect()
}

impl Ports {
    /// Nobody has a share.
    pub fn new(network: Arc<dyn Network>) -> Self {
        Self { network, shares: Mutex::default() }
    }

    fn shares(&self) -> MutexGuard<'_, BTreeMap<HostPort, Share>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over what an earlier agent served: the backends that the network should start with.
    pub fn adopt(&self, serving: &[Arc<TaskAssignment>]) -> Backends {
        for task in serving {
            for (at, backend) in wanted(task).unwrap_or_default() {
                self.note(task, at, Some(backend)).ok();
            }
        }
        let shares = self.shares();
        shares.iter().map(|(at, share)| (*at, share.backends())).collect()
    }

    /// Takes the task's ports without traffic for it.
    pub async fn hold(&self, task: &TaskAssignment) -> Result<(), PortsError> {
        self.set(task, false).await
    }

    /// Takes the task's ports and sends it its share of their traffic.
    pub async fn serve(&self, task: &TaskAssignment) -> Result<(), PortsError> {
        self.set(task, true).await
    }

    async fn set(&self, task: &TaskAssignment, serving: bool) -> Result<(), PortsError> {
        for (at, backend) in wanted(task)? {
            let version = self.note(task, at, serving.then_some(backend))?;
            if let Err(error) = self.write(at, version).await {
                self.strike(&task.id, at);
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Takes the task out of all ports; a port that nobody needs any more is free.
    pub async fn release(&self, task: &TaskId) -> Result<(), PortsError> {
        let held: Vec<HostPort> = {
            let shares = self.shares();
            let has = |share: &Share| share.tasks.contains_key(task);
            shares.iter().filter(|(_, share)| has(share)).map(|(at, _)| *at).collect()
        };
        for at in held {
            let backend = self.shares().get(&at).and_then(|share| share.tasks.get(task).copied()).flatten();
            let Some(version) = self.strike(task, at) else { continue };
            if let Err(error) = self.write(at, version).await {
                // Still ours to release: the next try must find it.
                self.put_back(task, at, backend);
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Notes the task's share and answers the version that has it.
    fn note(
        &self,
        task: &TaskAssignment,
        at: HostPort,
        backend: Option<SocketAddrV4>,
    ) -> Result<u64, PortsError> {
        let mut shares = self.shares();
        let service = task.service_id();
        let share = shares.entry(at).or_insert_with(|| Share::of(service));
        if share.service != service {
            if !share.tasks.is_empty() {
                return Err(PortsError::OfAnotherService { port: at, service: share.service });
            }
            share.service = service;
        }
        share.tasks.insert(task.id, backend);
        share.version += 1;
        Ok(share.version)
    }

    fn strike(&self, task: &TaskId, at: HostPort) -> Option<u64> {
        let mut shares = self.shares();
        let share = shares.get_mut(&at)?;
        share.tasks.remove(task)?;
        share.version += 1;
        Some(share.version)
    }

    fn put_back(&self, task: &TaskId, at: HostPort, backend: Option<SocketAddrV4>) {
        let mut shares = self.shares();
        let share = shares.entry(at).or_insert_with(|| Share::of(task.service));
        if share.service == task.service {
            share.tasks.insert(*task, backend);
            share.version += 1;
        }
    }

    /// Makes the network have at least `version` of the port. Whoever comes first writes what all want by
    /// then.
    async fn write(&self, at: HostPort, version: u64) -> Result<(), warren_network::Error> {
        let Some(written) = self.shares().get(&at).map(|share| Arc::clone(&share.written)) else {
            return Ok(());
        };
        let mut written = written.lock().await;
        if *written >= version {
            return Ok(());
        }
        let newest = self.shares().get(&at).map(|share| (share.version, share.backends(), share.is_free()));
        let Some((version, backends, free)) = newest else { return Ok(()) };
        if free {
            self.network.remove_port(at).await?;
            self.shares().retain(|other, share| *other != at || share.version != version);
        } else {
            self.network.ensure_port(&PublishedPort { at, backends }).await?;
        }
        *written = version;
        Ok(())
    }
}

impl Share {
    fn of(service: ServiceId) -> Self {
        Self { service, tasks: BTreeMap::new(), version: 0, written: Arc::default() }
    }

    fn backends(&self) -> BTreeSet<SocketAddrV4> {
        self.tasks.values().copied().flatten().collect()
    }

    fn is_free(&self) -> bool {
        self.tasks.is_empty()
    }
}

#[cfg(test)]
mod tests;
