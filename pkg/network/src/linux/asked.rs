//! What callers asked for so far, and the ports that are held for it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddrV4;

use super::ports::Ports;
use crate::Error;
use crate::model::{HostPort, NodeNetwork, NodeSettings, PublishedPort, TaskNetwork};
use crate::wanted::{self, TaskLink};

#[derive(Default)]
pub(super) struct State {
    /// What callers asked for; `None` before the node's settings are known.
    pub asked: Option<NodeNetwork>,
    pub ports: Ports,
    /// Counts the changes of what the firewall depends on.
    pub version: u64,
}

impl State {
    /// Takes the node's settings, keeping its tasks and ports.
    pub fn settle(&mut self, settings: NodeSettings) {
        self.version += 1;
        match &mut self.asked {
            Some(asked) => asked.settings = settings,
            None => self.asked = Some(NodeNetwork::new(settings)),
        }
    }

    /// Replaces everything that was asked for. Tasks that cannot be had together are left out, with an error
    /// for each.
    pub fn replace(&mut self, all: &NodeNetwork) -> Vec<Error> {
        let (admitted, refused) = all.admitted();
        self.asked = Some(admitted);
        self.version += 1;
        refused
    }

    /// Notes a task, if it can be had; returns its link.
    pub fn admit(&mut self, task: &TaskNetwork) -> Result<TaskLink, Error> {
        let asked = self.asked.as_mut().ok_or(Error::NoNode)?;
        asked.admit(task)?;
        asked.tasks.insert(task.task.clone(), task.address);
        Ok(wanted::link(asked, &task.task, task.address))
    }

    /// Holds and notes a port; returns the version that the firewall must have for it.
    pub fn publish(&mut self, port: PublishedPort) -> Result<u64, Error> {
        let asked = self.asked.as_mut().ok_or(Error::NoNode)?;
        let held = self.ports.has(&port.at);
        self.ports.ensure(port.at)?;
        let before = asked.ports.insert(port.at, port.backends.clone());
        if !held || before != Some(port.backends) {
            self.version += 1;
        }
        Ok(self.version)
    }

    /// Forgets a port; returns the version that the firewall must have for it.
    pub fn withdraw(&mut self, at: HostPort) -> u64 {
        if self.asked.as_mut().is_some_and(|asked| asked.ports.remove(&at).is_some()) {
            self.version += 1;
        }
        self.version
    }

    /// Lets go of a port, unless somebody asked for it again meanwhile.
    pub fn let_go(&mut self, at: HostPort) {
        if self.asked.as_ref().is_none_or(|asked| !asked.ports.contains_key(&at)) {
            self.ports.remove(at);
        }
    }

    /// What the firewall should have: the ports that are held. A port that another program has is not ours
    /// to take.
    pub fn published(&self) -> Option<NodeNetwork> {
        let mut node = self.asked.clone()?;
        node.ports.retain(|at, _| self.ports.has(at));
        Some(node)
    }

    /// Holds exactly the ports that were asked for; returns an error for each that could not be had.
    pub fn hold_asked(&mut self) -> Vec<Error> {
        let asked: BTreeMap<HostPort, BTreeSet<SocketAddrV4>> =
            self.asked.iter().flat_map(|asked| asked.ports.clone()).collect();
        self.ports.keep(&asked.keys().copied().collect());
        self.version += 1;
        asked.keys().filter_map(|at| self.ports.ensure(*at).err()).collect()
    }
}
