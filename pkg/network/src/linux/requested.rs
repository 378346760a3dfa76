//! The requested state, and the ports that are held for it.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

use super::conntrack::StaleEntries;
use super::ports::HeldPorts;
use crate::Error;
use crate::desired::{self, TaskLink};
use crate::keys::{HostPort, TaskKey};
use crate::model::{ClusterNetwork, NodeNetwork, NodeNetworkSettings, PortMapping, TaskNetwork};

#[derive(Default)]
pub(super) struct RequestedState {
    /// The requested network; `None` before the node's settings are known.
    pub network: Option<NodeNetwork>,
    pub ports: HeldPorts,
    /// Connection tracking entries that are deleted after the next write of the firewall.
    pub stale: StaleEntries,
    /// Whether the device of the overlay cannot be created: then nothing may refer to it.
    pub lacks_overlay: bool,
    /// Incremented by every change that affects the firewall.
    pub version: u64,
}

impl RequestedState {
    /// Sets the node's settings; keeps its tasks and ports.
    pub fn set_node(&mut self, settings: NodeNetworkSettings) {
        self.version += 1;
        match &mut self.network {
            Some(asked) => asked.settings = settings,
            None => self.network = Some(NodeNetwork::new(settings)),
        }
    }

    /// Replaces the requested state. Tasks and peers that conflict with each other are left out, with an
    /// error for each.
    pub fn replace(&mut self, all: &NodeNetwork) -> Vec<Error> {
        let (mut admitted, mut refused) = all.without_conflicts();
        let (cluster, left_out) = ClusterNetwork::admitted(&all.cluster);
        admitted.cluster = cluster;
        refused.extend(left_out);
        self.network = Some(admitted);
        self.version += 1;
        refused
    }

    /// Adds a task, if it has no conflict; returns its link and the firewall version that includes it.
    pub fn admit(&mut self, task: &TaskNetwork) -> Result<(TaskLink, u64), Error> {
        let asked = self.network.as_mut().ok_or(Error::NodeNotConfigured)?;
        asked.admit(task)?;
        let TaskNetwork { task, attachment, namespace: _ } = task.clone();
        let link = desired::task_link(asked, &task, attachment.address);
        if asked.tasks.get(&task) != Some(&attachment) {
            asked.tasks.insert(task, attachment);
            self.version += 1;
        }
        Ok((link, self.version))
    }

    /// Removes a task; returns its address and the firewall version without it.
    pub fn dismiss(&mut self, task: &TaskKey) -> (Option<Ipv4Addr>, u64) {
        let removed = self.network.as_mut().and_then(|asked| asked.tasks.remove(task));
        self.version += u64::from(removed.is_some());
        (removed.map(|attachment| attachment.address), self.version)
    }

    /// Replaces what is known about the cluster; returns what was known before.
    pub fn set_cluster(&mut self, cluster: Arc<ClusterNetwork>) -> Result<Arc<ClusterNetwork>, Error> {
        let asked = self.network.as_mut().ok_or(Error::NodeNotConfigured)?;
        let before = std::mem::replace(&mut asked.cluster, cluster);
        if before != asked.cluster {
            self.version += 1;
        }
        Ok(before)
    }

    /// Adds the entries that became stale since the cluster was like this.
    pub fn add_stale(&mut self, before: &ClusterNetwork) {
        let Some(asked) = &self.network else { return };
        self.stale.extend(&asked.cluster, before);
        self.stale.ports.retain(|at, _| !asked.ports.contains_key(at));
    }

    /// Binds and adds a port; returns the firewall version that includes it.
    pub fn publish(&mut self, port: PortMapping) -> Result<u64, Error> {
        let asked = self.network.as_mut().ok_or(Error::NodeNotConfigured)?;
        let held = self.ports.is_held(&port.host_port);
        self.ports.ensure(port.host_port, asked.settings.gateway())?;
        let before = asked.ports.insert(port.host_port, port.backends.clone());
        if !held || before != Some(port.backends) {
            self.version += 1;
        }
        Ok(self.version)
    }

    /// Removes a port; returns the firewall version without it.
    pub fn unpublish(&mut self, at: HostPort) -> u64 {
        if self.network.as_mut().is_some_and(|asked| asked.ports.remove(&at).is_some()) {
            self.version += 1;
        }
        self.version
    }

    /// Releases a port, unless it was requested again in the meantime.
    pub fn release(&mut self, at: HostPort) {
        let is_wanted =
            |asked: &NodeNetwork| asked.ports.contains_key(&at) || asked.cluster.ingress.contains_key(&at);
        if !self.network.as_ref().is_some_and(is_wanted) {
            self.ports.remove(at);
        }
    }

    /// What the firewall is derived from: only ports that are held, because a port of another program is
    /// not translated; and the overlay only if it works, because its port may be that of another program.
    pub fn published(&self) -> Option<NodeNetwork> {
        let mut node = self.network.clone()?;
        node.ports.retain(|at, _| self.ports.is_held(at));
        if !node.cluster.ingress.keys().all(|at| self.ports.is_held(at)) {
            Arc::make_mut(&mut node.cluster).ingress.retain(|at, _| self.ports.is_held(at));
        }
        if self.lacks_overlay {
            node.settings = node.settings.without_overlay();
        }
        Some(node)
    }

    /// Binds exactly the requested ports; returns an error for each that failed.
    pub fn hold_requested(&mut self) -> Vec<Error> {
        self.version += 1;
        let Some(asked) = &self.network else {
            self.ports.retain(&BTreeSet::new());
            return Vec::new();
        };
        let gateway = asked.settings.gateway();
        let wanted: BTreeSet<HostPort> =
            asked.ports.keys().chain(asked.cluster.ingress.keys()).copied().collect();
        self.ports.retain(&wanted);
        wanted.into_iter().filter_map(|at| self.ports.ensure(at, gateway).err()).collect()
    }

    /// Binds the requested ports in ingress mode; returns an error for each that failed.
    pub fn hold_ingress(&mut self) -> Vec<Error> {
        let Some(asked) = &self.network else { return Vec::new() };
        let ingress = asked.cluster.ingress.keys().filter(|at| !self.ports.is_held(at));
        let missing: Vec<HostPort> = ingress.copied().collect();
        let gateway = asked.settings.gateway();
        let refused: Vec<Error> =
            missing.iter().filter_map(|at| self.ports.ensure(*at, gateway).err()).collect();
        self.version += u64::from(refused.len() < missing.len());
        refused
    }
}
