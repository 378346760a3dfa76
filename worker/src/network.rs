//! The networks of this node's tasks: which task is in which network, and the names that it resolves.
//!
//! Managers tell a node what it needs of the cluster's network as a [`NetworkView`]. The functions in `desired` derive
//! from it what the kernel and the DNS server should have; [`TaskNetworks`] keeps the tasks for which that is done, and
//! `dns` the server. The supervisor of the tasks decides when.

pub(crate) mod data_address;
pub(crate) mod desired;
pub(crate) mod dns;
pub(crate) mod wireguard_key;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use warren_dns::DnsCounters;
use warren_network::{
    Attachment, DEFAULT_VNI, DEFAULT_VXLAN_PORT, DEFAULT_WIREGUARD_PORT, Error, NetworkBackend, PortRange,
    TaskKey, TaskNetwork,
};
use warren_task::DesiredState;
use warren_types::{NetworkView, NodeSettings, TaskId};

use desired::{ConnectedTask, gateway};
use dns::NodeDns;

/// How long a task that is attached waits for its networks to become known. Managers describe them some 50 ms after
/// the assignment, and mostly before the image is there. Later it starts with those that are known, since the node may
/// have no manager now, and gets the others when it hears of them: until then it reaches nobody there, and names
/// that may be in these networks fail with a temporary error.
const VIEW_TIMEOUT: Duration = Duration::from_secs(1);

/// How a node takes part in the network of the cluster. All but the ports are the same on all nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkOptions {
    /// UDP port of VXLAN.
    pub vxlan_port: u16,
    /// Network identifier of VXLAN.
    pub vxlan_id: u32,
    /// UDP port of WireGuard.
    pub wireguard_port: u16,
    /// Ports of the node that containers may reach.
    pub allowed_ports: BTreeSet<PortRange>,
}

impl Default for NetworkOptions {
    fn default() -> Self {
        Self {
            vxlan_port: DEFAULT_VXLAN_PORT,
            vxlan_id: DEFAULT_VNI,
            wireguard_port: DEFAULT_WIREGUARD_PORT,
            allowed_ports: BTreeSet::new(),
        }
    }
}

/// The tasks with addresses of their own that are attached, and their DNS server.
pub(crate) struct TaskNetworks {
    backend: Arc<dyn NetworkBackend>,
    view: watch::Receiver<NetworkView>,
    desired_state: watch::Receiver<DesiredState>,
    dns: NodeDns,
    attached: Mutex<BTreeMap<TaskId, AttachedTask>>,
}

struct AttachedTask {
    task: ConnectedTask,
    /// What the kernel has; `None` during the first attempt.
    written: Option<Attachment>,
}

impl TaskNetworks {
    /// Without tasks.
    pub fn new(
        backend: Arc<dyn NetworkBackend>,
        view: watch::Receiver<NetworkView>,
        desired_state: watch::Receiver<DesiredState>,
        dns: NodeDns,
    ) -> Self {
        Self { backend, view, desired_state, dns, attached: Mutex::default() }
    }

    fn attached(&self) -> MutexGuard<'_, BTreeMap<TaskId, AttachedTask>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest view.
    pub fn view(&self) -> NetworkView {
        self.view.borrow().clone()
    }

    /// Follows the view.
    pub fn subscribe(&self) -> watch::Receiver<NetworkView> {
        self.view.clone()
    }

    /// The DNS server of the node.
    pub fn dns(&self) -> &NodeDns {
        &self.dns
    }

    /// Records a task that an earlier agent attached; returns how it should be attached now.
    pub fn adopt(&self, id: TaskId, task: ConnectedTask) -> Attachment {
        let attachment = task.attachment(&self.view.borrow());
        self.attached().insert(id, AttachedTask { task, written: Some(attachment.clone()) });
        attachment
    }

    /// Attaches a task to those of its networks that are known, and returns the path of its namespace. It gets
    /// `namespace` if one is given, a file to which one is bound.
    pub async fn attach(
        &self,
        id: TaskId,
        task: &ConnectedTask,
        namespace: Option<PathBuf>,
    ) -> Result<PathBuf, Error> {
        let mut view = self.view.clone();
        // Without them it goes on as well.
        timeout(VIEW_TIMEOUT, view.wait_for(|view| task.is_known(view))).await.map(drop).ok();
        let entry = || AttachedTask { task: task.clone(), written: None };
        self.attached().entry(id).or_insert_with(entry).task = task.clone();
        let path = self.write(id, task, namespace).await?;
        self.update_names();
        Ok(path)
    }

    /// Detaches a task. Idempotent.
    pub async fn detach(&self, id: TaskId) -> Result<(), Error> {
        self.attached().remove(&id);
        self.update_names();
        self.backend.remove_task(&task_key(id)?).await
    }

    /// Attaches the tasks again whose networks have become known, or others. No task may be detached meanwhile.
    pub async fn attach_again(&self) -> Result<(), Error> {
        let mut outcome = Ok(());
        for (id, task) in self.outdated() {
            // One that fails does not keep the others from their networks.
            outcome = outcome.and(self.write(id, &task, None).await.map(drop));
        }
        outcome
    }

    /// The tasks that are attached to other networks than they should be.
    pub fn outdated(&self) -> Vec<(TaskId, ConnectedTask)> {
        let view = self.view.borrow();
        let is_outdated = |attached: &AttachedTask| {
            attached.written.as_ref().is_some_and(|written| *written != attached.task.attachment(&view))
        };
        let attached = self.attached();
        let outdated = attached.iter().filter(|(_, attached)| is_outdated(attached));
        outdated.map(|(id, attached)| (*id, attached.task.clone())).collect()
    }

    /// Attaches the task as the newest view says, also if that changes meanwhile.
    async fn write(
        &self,
        id: TaskId,
        task: &ConnectedTask,
        namespace: Option<PathBuf>,
    ) -> Result<PathBuf, Error> {
        let key = task_key(id)?;
        loop {
            let attachment = task.attachment(&self.view.borrow());
            let network = TaskNetwork {
                task: key.clone(),
                attachment: attachment.clone(),
                namespace: namespace.clone(),
            };
            let path = self.backend.ensure_task(&network).await?;
            if let Some(attached) = self.attached().get_mut(&id) {
                attached.written = Some(attachment.clone());
            }
            if attachment == task.attachment(&self.view.borrow()) {
                return Ok(path);
            }
        }
    }

    /// Gives the DNS server the newest names and clients.
    pub fn update_names(&self) {
        let settings = self.desired_state.borrow().settings.clone();
        let Some(settings) = settings else { return };
        self.dns.update(|names| {
            // Read while nobody else updates: the last update has the newest.
            let view = self.view();
            let attached = self.attached();
            let clients =
                attached.values().map(|AttachedTask { task, .. }| (task.address, task.client(&view)));
            let clients: BTreeMap<Ipv4Addr, _> = clients.collect();
            names.table(&view, &clients, desired::node_addresses(&settings))
        });
    }

    /// What the DNS server has done since it started.
    pub fn dns_counters(&self) -> DnsCounters {
        self.dns.counters()
    }

    /// Starts the DNS server on the node's gateway address unless it runs, and gives it the upstreams of the node.
    pub async fn ensure_dns(&self, settings: &NodeSettings) -> Result<(), warren_dns::DnsError> {
        let Some(gateway) = gateway(settings) else { return Ok(()) };
        if self.dns.ensure(gateway)? {
            self.update_names();
        }
        self.dns.refresh_upstreams().await;
        Ok(())
    }
}

/// The key of a task in the network backend.
pub(crate) fn task_key(id: TaskId) -> Result<TaskKey, Error> {
    Ok(TaskKey::parse(&id.to_string())?)
}

#[cfg(test)]
mod tests;
