//! Shares of this node's tasks in host ports.
//!
//! A port belongs to one service at a time. Many tasks change their shares at once when a service starts;
//! queued changes of one port are written as one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddrV4;
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Mutex as AsyncMutex;
use warren_network::{HostPort, NetworkBackend, PortMapping};
use warren_types::{PublishMode, ServiceId, TaskAssignment, TaskId};

use crate::network::desired::protocol_of;

/// The backends of each host port, as the network backend takes them.
pub(crate) type PortBackends = BTreeMap<HostPort, BTreeSet<SocketAddrV4>>;

/// The shares of all tasks, and the network backend that they are written to.
pub(crate) struct HostPortShares {
    network: Arc<dyn NetworkBackend>,
    shares: Mutex<BTreeMap<HostPort, PortShare>>,
}

/// One host port.
struct PortShare {
    service: ServiceId,
    /// The tasks that reserve the port; those with traffic have an address.
    tasks: BTreeMap<TaskId, Option<SocketAddrV4>>,
    /// Counts the changes of `tasks`.
    version: u64,
    /// The written version. The holder of the lock writes.
    written: Arc<AsyncMutex<u64>>,
}

/// A task cannot get its share.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HostPortError {
    #[error(transparent)]
    Network(#[from] warren_network::Error),
    #[error("port {port} still belongs to service {service}, whose tasks on this node are being stopped")]
    OwnedByOtherService { port: HostPort, service: ServiceId },
    #[error("0 is not a port; publish one of 1 to 65535")]
    Zero,
}

/// The ports that a task publishes in host mode, each with the target of its traffic.
fn requested_ports(task: &TaskAssignment) -> Result<Vec<(HostPort, SocketAddrV4)>, HostPortError> {
    let each = |port: &warren_types::PublishedPort| {
        let number = NonZeroU16::new(port.host_port).ok_or(HostPortError::Zero)?;
        let at = HostPort::new(port.host_ip, number, protocol_of(port.protocol));
        Ok((at, SocketAddrV4::new(task.address, port.container_port)))
    };
    task.ports.iter().filter(|port| port.mode == PublishMode::Host).map(each).collect()
}

impl HostPortShares {
    /// Without shares.
    pub fn new(network: Arc<dyn NetworkBackend>) -> Self {
        Self { network, shares: Mutex::default() }
    }

    fn shares(&self) -> MutexGuard<'_, BTreeMap<HostPort, PortShare>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adopts the shares of an earlier agent; returns the initial backends of the network.
    pub fn adopt(&self, serving: &[Arc<TaskAssignment>]) -> PortBackends {
        for task in serving {
            for (at, backend) in requested_ports(task).unwrap_or_default() {
                self.record(task, at, Some(backend)).ok();
            }
        }
        let shares = self.shares();
        shares.iter().map(|(at, share)| (*at, share.backends())).collect()
    }

    /// Reserves the task's ports without traffic.
    pub async fn reserve(&self, task: &TaskAssignment) -> Result<(), HostPortError> {
        self.set(task, false).await
    }

    /// Reserves the task's ports and routes its share of traffic.
    pub async fn route(&self, task: &TaskAssignment) -> Result<(), HostPortError> {
        self.set(task, true).await
    }

    async fn set(&self, task: &TaskAssignment, serving: bool) -> Result<(), HostPortError> {
        for (at, backend) in requested_ports(task)? {
            let version = self.record(task, at, serving.then_some(backend))?;
            if let Err(error) = self.write(at, version).await {
                self.withdraw(&task.id, at);
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Removes the task from all ports; a port without tasks is free.
    pub async fn release(&self, task: &TaskId) -> Result<(), HostPortError> {
        let held: Vec<HostPort> = {
            let shares = self.shares();
            let has = |share: &PortShare| share.tasks.contains_key(task);
            shares.iter().filter(|(_, share)| has(share)).map(|(at, _)| *at).collect()
        };
        for at in held {
            let backend = self.shares().get(&at).and_then(|share| share.tasks.get(task).copied()).flatten();
            let Some(version) = self.withdraw(task, at) else { continue };
            if let Err(error) = self.write(at, version).await {
                // The share is kept, so that the retry finds it.
                self.restore(task, at, backend);
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Records the task's share and returns the version that has it.
    fn record(
        &self,
        task: &TaskAssignment,
        at: HostPort,
        backend: Option<SocketAddrV4>,
    ) -> Result<u64, HostPortError> {
        let mut shares = self.shares();
        let service = task.service_id();
        let share = shares.entry(at).or_insert_with(|| PortShare::new(service));
        if share.service != service {
            if !share.tasks.is_empty() {
                return Err(HostPortError::OwnedByOtherService { port: at, service: share.service });
            }
            share.service = service;
        }
        share.tasks.insert(task.id, backend);
        share.version += 1;
        Ok(share.version)
    }

    fn withdraw(&self, task: &TaskId, at: HostPort) -> Option<u64> {
        let mut shares = self.shares();
        let share = shares.get_mut(&at)?;
        share.tasks.remove(task)?;
        share.version += 1;
        Some(share.version)
    }

    fn restore(&self, task: &TaskId, at: HostPort, backend: Option<SocketAddrV4>) {
        let mut shares = self.shares();
        let share = shares.entry(at).or_insert_with(|| PortShare::new(task.service));
        if share.service == task.service {
            share.tasks.insert(*task, backend);
            share.version += 1;
        }
    }

    /// Writes at least `version` of the port. The first caller writes the changes of all.
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
            self.network.ensure_port(&PortMapping { host_port: at, backends }).await?;
        }
        *written = version;
        Ok(())
    }
}

impl PortShare {
    fn new(service: ServiceId) -> Self {
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
