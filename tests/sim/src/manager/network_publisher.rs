//! What a manager tells the nodes of the cluster's network, in the order and with the delays of `manager/session/`.

use std::collections::BTreeSet;

use warren_core::session::{NetworkHistory, SentNetwork};
use warren_core::{State, StateChange};
use warren_replica::ChangeBatch;
use warren_types::{NetworkUpdate, NodeId};

use crate::event::{ManagerEvent, WorkerVersions};
use crate::simulation::ClusterSimulation;

/// Longest time until a change is compared with the history.
const COALESCE_TIME: u64 = 50;

/// The network history of one manager.
#[derive(Debug)]
pub struct SimNetworkPublisher {
    history: NetworkHistory,
    /// Applied, and not yet compared.
    pending: Vec<ChangeBatch>,
    /// The changes since the last comparison are not known.
    has_gap: bool,
    is_scheduled: bool,
}

impl SimNetworkPublisher {
    pub fn new(state: &State) -> Self {
        Self { history: NetworkHistory::new(state), pending: Vec::new(), has_gap: false, is_scheduled: false }
    }

    /// The session of a node with these versions.
    pub fn begin(&mut self, state: &State, has: &WorkerVersions) -> SentNetwork {
        if self.history.version() < has.network {
            self.update_all(state);
        }
        SentNetwork::new(&self.history, has.network, &has.networks)
    }

    /// The next update of the node; `None` if it has everything.
    pub fn next_update(&self, sent: &mut SentNetwork, state: &State, node: &NodeId) -> Option<NetworkUpdate> {
        let parts = sent.next_update(&self.history, state, node)?;
        Some(self.history.network_update(&parts))
    }

    fn update_all(&mut self, state: &State) {
        self.history.update(state, None::<(u64, std::iter::Empty<&StateChange>)>);
    }
}

impl ClusterSimulation {
    /// A manager has applied changes.
    pub(super) fn network_changed(&mut self, host: usize, batches: Vec<ChangeBatch>, is_replaced: bool) {
        let delay = self.rng.between(0, COALESCE_TIME);
        let Some(run) = &mut self.managers[host].run else { return };
        run.network.has_gap |= is_replaced;
        run.network.pending.extend(batches);
        if !std::mem::replace(&mut run.network.is_scheduled, true) {
            self.at_manager(host, delay, ManagerEvent::PublishNetwork);
        }
    }

    /// Compares what was applied, and tells the connected nodes. The state is sometimes newer than the known changes,
    /// and sometimes these are not known.
    pub(super) fn publish_network(&mut self, host: usize) {
        let is_unknown = self.has_faults && self.rng.one_in(40);
        let later = usize::from(self.rng.one_in(4));
        let Some(run) = &mut self.managers[host].run else { return };
        let SimNetworkPublisher { history, pending, has_gap, is_scheduled } = &mut run.network;
        *is_scheduled = false;
        let state = run.replica.state();
        let told = if std::mem::take(has_gap) || is_unknown {
            pending.clear();
            history.update(state, None::<(u64, std::iter::Empty<&StateChange>)>)
        } else {
            let known = pending.len().saturating_sub(later).max(1).min(pending.len());
            let known: Vec<ChangeBatch> = pending.drain(..known).collect();
            let until = known.last().map_or(0, |batch| batch.index);
            history.update(state, Some((until, known.iter().flat_map(|batch| batch.changes.iter()))))
        };
        let nodes: BTreeSet<NodeId> = state
            .nodes()
            .map(|node| node.id)
            .filter(|node| {
                let is_in =
                    || state.node_networks(node).iter().any(|network| told.networks.contains(network));
                told.peers || !told.networks.is_empty() && is_in()
            })
            .collect();
        if !nodes.is_empty() {
            self.wake_for_network(host, &nodes);
        }
        if self.process(host).is_some_and(|run| !run.network.pending.is_empty()) {
            self.network_changed(host, Vec::new(), false);
        }
    }
}
