//! The door without a kernel: what was asked for, in memory. Held to the same conformance suite as the real
//! one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::error::PortHolder;
use crate::model::{HostPort, NodeNetwork, NodeSettings, PublishedPort, Repairs, TaskKey, TaskNetwork};
use crate::{Error, Network};

/// A network in memory.
pub struct FakeNetwork {
    run_dir: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    asked: Option<NodeNetwork>,
    /// What "is there": differs from `asked` after [`FakeNetwork::damage`].
    tasks: BTreeMap<TaskKey, Ipv4Addr>,
    held: BTreeSet<HostPort>,
    occupied: BTreeMap<HostPort, PortHolder>,
}

impl FakeNetwork {
    /// A network whose namespaces are said to be below `run_dir`; nothing is made there.
    pub fn new(run_dir: impl Into<PathBuf>) -> Self {
        Self { run_dir: run_dir.into(), state: Mutex::default() }
    }

    /// Lets a process that does not exist have a port, as if it listened there.
    pub fn occupy(&self, at: HostPort, by: PortHolder) {
        self.state().occupied.insert(at, by);
    }

    /// Lets that process end.
    pub fn vacate(&self, at: HostPort) {
        self.state().occupied.remove(&at);
    }

    /// Takes a task's network away without telling anybody.
    pub fn damage(&self, task: &TaskKey) {
        self.state().tasks.remove(task);
    }

    /// The tasks that are attached, with their addresses.
    pub fn tasks(&self) -> BTreeMap<TaskKey, Ipv4Addr> {
        self.state().tasks.clone()
    }

    /// The ports that are held, with their backends.
    pub fn ports(&self) -> BTreeMap<HostPort, BTreeSet<SocketAddrV4>> {
        let state = self.state();
        let asked = state.asked.iter().flat_map(|asked| asked.ports.clone());
        asked.filter(|(at, _)| state.held.contains(at)).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn asked(&mut self) -> Result<&mut NodeNetwork, Error> {
        self.asked.as_mut().ok_or(Error::NoNode)
    }

    fn hold(&mut self, at: HostPort) -> Result<(), Error> {
        let overlaps = |other: &HostPort| {
            other.port() == at.port() && (other.ip().is_none() || at.ip().is_none() || other.ip() == at.ip())
        };
        if self.held.contains(&at) {
            return Ok(());
        }
        if let Some((_, by)) = self.occupied.iter().find(|(other, _)| overlaps(other)) {
            return Err(Error::PortTaken { port: at, by: Some(by.clone()) });
        }
        if self.held.iter().any(overlaps) {
            return Err(Error::PortTaken { port: at, by: None });
        }
        self.held.insert(at);
        Ok(())
    }

    fn make_true(&mut self) -> Result<Repairs, Error> {
        let asked = self.asked()?.clone();
        let mut repairs = Repairs::default();
        for task in self.tasks.keys().filter(|task| !asked.tasks.contains_key(*task)) {
            repairs.repaired.push(format!("removed leftover task {task}"));
        }
        for task in asked.tasks.keys().filter(|task| !self.tasks.contains_key(*task)) {
            repairs.repaired.push(format!("attached task {task} again"));
        }
        self.tasks = asked.tasks;
        self.held.retain(|at| asked.ports.contains_key(at));
        for at in asked.ports.keys() {
            repairs.note(self.hold(*at).map(|()| Vec::new()));
        }
        Ok(repairs)
    }
}

#[async_trait]
impl Network for FakeNetwork {
    async fn check(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn ensure_node(&self, node: &NodeSettings) -> Result<(), Error> {
        let mut state = self.state();
        match &mut state.asked {
            Some(asked) => asked.settings = node.clone(),
            None => state.asked = Some(NodeNetwork::new(node.clone())),
        }
        Ok(())
    }

    async fn ensure_task(&self, task: &TaskNetwork) -> Result<PathBuf, Error> {
        let mut state = self.state();
        let asked = state.asked()?;
        asked.admit(task)?;
        asked.tasks.insert(task.task.clone(), task.address);
        state.tasks.insert(task.task.clone(), task.address);
        Ok(self.run_dir.join("netns").join(task.task.as_str()))
    }

    async fn remove_task(&self, task: &TaskKey) -> Result<(), Error> {
        let mut state = self.state();
        state.tasks.remove(task);
        if let Some(asked) = &mut state.asked {
            asked.tasks.remove(task);
        }
        Ok(())
    }

    async fn ensure_port(&self, port: &PublishedPort) -> Result<(), Error> {
        let mut state = self.state();
        state.asked()?;
        state.hold(port.at)?;
        state.asked()?.ports.insert(port.at, port.backends.clone());
        Ok(())
    }

    async fn remove_port(&self, at: HostPort) -> Result<(), Error> {
        let mut state = self.state();
        state.held.remove(&at);
        if let Some(asked) = &mut state.asked {
            asked.ports.remove(&at);
        }
        Ok(())
    }

    async fn ensure(&self, all: &NodeNetwork) -> Result<Repairs, Error> {
        let mut state = self.state();
        let (admitted, refused) = all.admitted();
        state.asked = Some(admitted);
        let mut repairs = state.make_true()?;
        repairs.failed.extend(refused);
        Ok(repairs)
    }

    async fn repair(&self) -> Result<Repairs, Error> {
        self.state().make_true()
    }

    async fn remove_node(&self) -> Result<(), Error> {
        let mut state = self.state();
        let occupied = std::mem::take(&mut state.occupied);
        *state = State { occupied, ..State::default() };
        Ok(())
    }
}
