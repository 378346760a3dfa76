//! An in-memory network backend without a kernel. Passes the same conformance suite as the real one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use ipnet::Ipv4Net;

use crate::error::PortHolder;
use crate::keys::{HostPort, TaskKey};
use crate::model::{
    Attachment, ClusterNetwork, DEFAULT_MTU, NodeNetwork, NodeNetworkSettings, OVERLAY_OVERHEAD, PortMapping,
    RangeConflict, Repairs, TaskNetwork, Underlay,
};
use crate::{Error, NetworkBackend};

/// A network in memory.
pub struct FakeNetwork {
    run_dir: PathBuf,
    state: Mutex<FakeNetworkState>,
}

#[derive(Default)]
struct FakeNetworkState {
    requested: Option<NodeNetwork>,
    /// The existing state; differs from `requested` after [`FakeNetwork::detach_silently`].
    tasks: BTreeMap<TaskKey, Attachment>,
    held_ports: BTreeSet<HostPort>,
    occupied: BTreeMap<HostPort, PortHolder>,
}

impl FakeNetwork {
    /// A network with namespace paths below `run_dir`; creates no files.
    pub fn new(run_dir: impl Into<PathBuf>) -> Self {
        Self { run_dir: run_dir.into(), state: Mutex::default() }
    }

    /// Simulates another process that has bound a port.
    pub fn occupy(&self, at: HostPort, by: PortHolder) {
        self.state().occupied.insert(at, by);
    }

    /// Ends the simulated process.
    pub fn vacate(&self, at: HostPort) {
        self.state().occupied.remove(&at);
    }

    /// Removes a task's network without updating the request.
    pub fn detach_silently(&self, task: &TaskKey) {
        self.state().tasks.remove(task);
    }

    /// The tasks that are attached, with their addresses.
    pub fn tasks(&self) -> BTreeMap<TaskKey, Ipv4Addr> {
        let state = self.state();
        state.tasks.iter().map(|(task, attachment)| (task.clone(), attachment.address)).collect()
    }

    /// The attachment of a task.
    pub fn attachment(&self, task: &TaskKey) -> Option<Attachment> {
        self.state().tasks.get(task).cloned()
    }

    /// The node as it was requested: its settings, tasks and ports, and what is known about the cluster.
    pub fn requested(&self) -> Option<NodeNetwork> {
        self.state().requested.clone()
    }

    /// The ports that are held, with their backends.
    pub fn ports(&self) -> BTreeMap<HostPort, BTreeSet<SocketAddrV4>> {
        let state = self.state();
        let asked = state.requested.iter().flat_map(|asked| asked.ports.clone());
        asked.filter(|(at, _)| state.held_ports.contains(at)).collect()
    }

    fn state(&self) -> MutexGuard<'_, FakeNetworkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FakeNetworkState {
    fn asked(&mut self) -> Result<&mut NodeNetwork, Error> {
        self.requested.as_mut().ok_or(Error::NodeNotConfigured)
    }

    fn hold(&mut self, at: HostPort) -> Result<(), Error> {
        let overlaps = |other: &HostPort| {
            (other.port(), other.protocol()) == (at.port(), at.protocol())
                && (other.ip().is_none() || at.ip().is_none() || other.ip() == at.ip())
        };
        if self.held_ports.contains(&at) {
            return Ok(());
        }
        if let Some((_, by)) = self.occupied.iter().find(|(other, _)| overlaps(other)) {
            return Err(Error::PortTaken { port: at, by: Some(by.clone()) });
        }
        if self.held_ports.iter().any(overlaps) {
            return Err(Error::PortTaken { port: at, by: None });
        }
        self.held_ports.insert(at);
        Ok(())
    }

    fn reconcile(&mut self) -> Result<Repairs, Error> {
        let asked = self.asked()?.clone();
        let mut repairs = Repairs::default();
        for task in self.tasks.keys().filter(|task| !asked.tasks.contains_key(*task)) {
            repairs.repaired.push(format!("removed leftover task {task}"));
        }
        for task in asked.tasks.keys().filter(|task| !self.tasks.contains_key(*task)) {
            repairs.repaired.push(format!("attached task {task} again"));
        }
        self.tasks = asked.tasks;
        self.hold_requested(&mut repairs)?;
        Ok(repairs)
    }

    /// Holds exactly the requested ports of both modes.
    fn hold_requested(&mut self, repairs: &mut Repairs) -> Result<(), Error> {
        let asked = self.asked()?;
        let wanted: BTreeSet<HostPort> =
            asked.ports.keys().chain(asked.cluster.ingress.keys()).copied().collect();
        self.held_ports.retain(|at| wanted.contains(at));
        for at in wanted {
            repairs.record(self.hold(at).map(|()| Vec::new()));
        }
        Ok(())
    }
}

#[async_trait]
impl NetworkBackend for FakeNetwork {
    async fn check(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn ensure_node(&self, node: &NodeNetworkSettings) -> Result<(), Error> {
        let mut state = self.state();
        match &mut state.requested {
            Some(asked) => asked.settings = node.clone(),
            None => state.requested = Some(NodeNetwork::new(node.clone())),
        }
        Ok(())
    }

    async fn ensure_cluster(&self, cluster: &Arc<ClusterNetwork>) -> Result<Repairs, Error> {
        let mut state = self.state();
        let (admitted, failed) = ClusterNetwork::admitted(cluster);
        state.asked()?.cluster = admitted;
        let mut repairs = Repairs { failed, ..Repairs::default() };
        state.hold_requested(&mut repairs)?;
        Ok(repairs)
    }

    async fn underlay(&self, _address: Ipv4Addr, _peers: &[Ipv4Addr]) -> Result<Underlay, Error> {
        Ok(Underlay { device: "eth0".to_owned(), mtu: DEFAULT_MTU + OVERLAY_OVERHEAD })
    }

    async fn range_conflict(&self, _range: Ipv4Net) -> Result<Option<RangeConflict>, Error> {
        Ok(None)
    }

    async fn ensure_task(&self, task: &TaskNetwork) -> Result<PathBuf, Error> {
        let mut state = self.state();
        let asked = state.asked()?;
        asked.admit(task)?;
        asked.tasks.insert(task.task.clone(), task.attachment.clone());
        state.tasks.insert(task.task.clone(), task.attachment.clone());
        Ok(self.run_dir.join("netns").join(task.task.as_str()))
    }

    async fn remove_task(&self, task: &TaskKey) -> Result<(), Error> {
        let mut state = self.state();
        state.tasks.remove(task);
        if let Some(asked) = &mut state.requested {
            asked.tasks.remove(task);
        }
        Ok(())
    }

    async fn ensure_port(&self, port: &PortMapping) -> Result<(), Error> {
        let mut state = self.state();
        state.asked()?;
        state.hold(port.host_port)?;
        state.asked()?.ports.insert(port.host_port, port.backends.clone());
        Ok(())
    }

    async fn remove_port(&self, at: HostPort) -> Result<(), Error> {
        let mut state = self.state();
        let Some(asked) = &mut state.requested else { return Ok(()) };
        asked.ports.remove(&at);
        if !asked.cluster.ingress.contains_key(&at) {
            state.held_ports.remove(&at);
        }
        Ok(())
    }

    async fn ensure(&self, all: &NodeNetwork) -> Result<Repairs, Error> {
        let mut state = self.state();
        let (admitted, refused) = all.without_conflicts();
        state.requested = Some(admitted);
        let mut repairs = state.reconcile()?;
        repairs.failed.extend(refused);
        Ok(repairs)
    }

    async fn repair(&self) -> Result<Repairs, Error> {
        self.state().reconcile()
    }

    async fn remove_node(&self) -> Result<(), Error> {
        let mut state = self.state();
        let occupied = std::mem::take(&mut state.occupied);
        *state = FakeNetworkState { occupied, ..FakeNetworkState::default() };
        Ok(())
    }
}
