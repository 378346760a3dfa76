//! The requested state, and the ports that are held for it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddrV4;

use super::ports::HeldPorts;
use crate::Error;
use crate::desired::{self, TaskLink};
use crate::keys::HostPort;
use crate::model::{NodeNetwork, NodeNetworkSettings, PortMapping, TaskNetwork};

#[derive(Default)]
pub(super) struct RequestedState {
    /// The requested network; `None` before the node's settings are known.
    pub network: Option<NodeNetwork>,
    pub ports: HeldPorts,
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

    /// Replaces the requested state. Tasks that conflict with each other are left out, with an error for
    /// each.
    pub fn replace(&mut self, all: &NodeNetwork) -> Vec<Error> {
        let (admitted, refused) = all.without_conflicts();
        self.network = Some(admitted);
        self.version += 1;
        refused
    }

    /// Adds a task, if it has no conflict; returns its link.
    pub fn admit(&mut self, task: &TaskNetwork) -> Result<TaskLink, Error> {
        let asked = self.network.as_mut().ok_or(Error::NodeNotConfigured)?;
        asked.admit(task)?;
        asked.tasks.insert(task.task.clone(), task.address);
        Ok(desired::task_link(asked, &task.task, task.address))
    }

    /// Binds and adds a port; returns the firewall version that includes it.
    pub fn publish(&mut self, port: PortMapping) -> Result<u64, Error> {
        let asked = self.network.as_mut().ok_or(Error::NodeNotConfigured)?;
        let held = self.ports.is_held(&port.host_port);
        self.ports.ensure(port.host_port)?;
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
        if self.network.as_ref().is_none_or(|asked| !asked.ports.contains_key(&at)) {
            self.ports.remove(at);
        }
    }

    /// The desired firewall state: only ports that are held. A port of another program is not translated.
    pub fn published(&self) -> Option<NodeNetwork> {
        let mut node = self.network.clone()?;
        node.ports.retain(|at, _| self.ports.is_held(at));
        Some(node)
    }

    /// Binds exactly the requested ports; returns an error for each that failed.
    pub fn hold_requested(&mut self) -> Vec<Error> {
        let asked: BTreeMap<HostPort, BTreeSet<SocketAddrV4>> =
            self.network.iter().flat_map(|asked| asked.ports.clone()).collect();
        self.ports.retain(&asked.keys().copied().collect());
        self.version += 1;
        asked.keys().filter_map(|at| self.ports.ensure(*at).err()).collect()
    }
}
