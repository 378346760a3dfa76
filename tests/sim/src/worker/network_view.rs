//! The agent's view of the cluster's network. Managers send it; it is written into the kernel a little later, and
//! acknowledged after that. Its cache may be older.

use std::sync::Arc;

use warren_types::{AssignmentVersion, NetworkUpdate, NetworkUpdateError, NetworkView};

use crate::event::{WorkerEvent, WorkerMessage, WorkerVersions};
use crate::simulation::{ClusterSimulation, PlantedDefect};

/// Longest time until a change is in the cache.
const CACHE_TIME: u64 = 400;
/// Time until a failed write into the kernel is repeated.
const RETRY_TIME: u64 = 1_000;
/// Longest time for which the kernel is busy, in rare cases.
const BUSY_TIME: u64 = 4_000;

/// The view, and where it has arrived.
#[derive(Debug, Default)]
pub struct SimNetworkView {
    newest: Arc<NetworkView>,
    /// What is being written into the kernel.
    writing: Option<Arc<NetworkView>>,
    is_written: bool,
    /// The version in the kernel.
    applied: AssignmentVersion,
    is_cache_scheduled: bool,
}

impl SimNetworkView {
    /// The view of an agent that finds this in its cache.
    pub fn from_cache(cached: Option<&Arc<NetworkView>>) -> Self {
        Self { newest: cached.cloned().unwrap_or_default(), ..Self::default() }
    }

    /// The version that it reports; zero if it needs everything.
    pub fn version(&self) -> AssignmentVersion {
        self.newest.version
    }

    /// What it has, beside assignments of that version.
    pub fn versions(&self, assignment: AssignmentVersion) -> Box<WorkerVersions> {
        let networks = self.newest.catalogues.keys().copied().collect();
        Box::new(WorkerVersions { assignment, network: self.newest.version, networks })
    }
}

impl ClusterSimulation {
    /// A manager sent an update.
    pub(super) fn receive_network(&mut self, worker: usize, connection: u64, update: &NetworkUpdate) {
        let is_damaged = self.has_faults && self.rng.one_in(100);
        let Some(agent) = &mut self.workers[worker].agent else { return };
        let mut view = NetworkView::clone(&agent.network.newest);
        let before = view.version;
        let applied = if is_damaged { None } else { Some(view.apply(update.clone())) };
        if let Some(Ok(())) = applied {
            (agent.network.newest, agent.network.is_written) = (Arc::new(view), false);
            self.network_updates += 1;
            if self.defect == Some(PlantedDefect::AckBeforeKernel) {
                self.send_to_manager(connection, WorkerMessage::NetworkAck(update.version));
            }
            self.write_network(worker);
            return self.cache_network(worker);
        }
        // Requests then ask for everything; what is known stays in use.
        let zero = AssignmentVersion::default();
        view.version = zero;
        agent.network.newest = Arc::new(view);
        let has_asked = before == zero;
        let sync = WorkerMessage::Sync(agent.desired.version, zero);
        if !has_asked && update.base.is_some() {
            self.send_to_manager(connection, sync);
        }
        // An update after one that was not applied has another base.
        let is_expected = match &applied {
            None => true,
            Some(Err(NetworkUpdateError::OtherBase { .. })) => has_asked,
            Some(_) => false,
        };
        if !is_expected {
            self.check(Err(format!("updates of the network can be applied: {applied:?}")));
        }
    }

    /// The newest view is written into the kernel, unless an earlier one is just being written.
    pub(super) fn write_network(&mut self, worker: usize) {
        let delay = match self.has_faults && self.rng.one_in(50) {
            true => self.rng.between(100, BUSY_TIME),
            false => self.rng.between(0, 20),
        };
        let Some(agent) = &mut self.workers[worker].agent else { return };
        let network = &mut agent.network;
        if network.writing.is_none() && !network.is_written {
            network.is_written = true;
            network.writing = Some(network.newest.clone());
            self.at_worker(worker, delay, WorkerEvent::NetworkWritten);
        }
    }

    /// The kernel has the view, and managers are told so. If that failed, it may have it or not.
    pub(super) fn network_written(&mut self, worker: usize) {
        let fails = self.has_faults && self.rng.one_in(self.fault_rates.action_fails_one_in);
        let has_effect = !fails || self.rng.one_in(2);
        let place = &mut self.workers[worker];
        let Some(agent) = &mut place.agent else { return };
        let Some(view) = agent.network.writing.take() else { return };
        if fails {
            agent.network.is_written = false;
            self.at_worker(worker, RETRY_TIME, WorkerEvent::NetworkRetry);
        } else {
            agent.network.applied = view.version;
        }
        if has_effect {
            self.workers[worker].kernel = view;
            self.oracle_kernel(worker);
        }
        if !fails {
            self.acknowledge_network(worker);
            self.write_network(worker);
        }
    }

    /// Tells the manager what is in the kernel, also at the start of a session.
    pub(super) fn acknowledge_network(&mut self, worker: usize) {
        let Some(agent) = self.workers[worker].agent.as_ref().filter(|agent| agent.is_welcome) else {
            return;
        };
        let version = agent.network.applied;
        if let Some(connection) = agent.connection.filter(|_| version != AssignmentVersion::default()) {
            self.send_to_manager(connection, WorkerMessage::NetworkAck(version));
        }
    }

    fn cache_network(&mut self, worker: usize) {
        let delay = self.rng.between(1, CACHE_TIME);
        let Some(agent) = &mut self.workers[worker].agent else { return };
        if !std::mem::replace(&mut agent.network.is_cache_scheduled, true) {
            self.at_worker(worker, delay, WorkerEvent::NetworkCached);
        }
    }

    /// The view is in the agent's file.
    pub(super) fn network_cached(&mut self, worker: usize) {
        let place = &mut self.workers[worker];
        let Some(agent) = &mut place.agent else { return };
        agent.network.is_cache_scheduled = false;
        place.cached_view = Some(agent.network.newest.clone());
    }
}
