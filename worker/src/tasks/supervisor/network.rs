//! The node network, on which the networks of all tasks depend.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::time::sleep;
use warren_control::BackgroundTaskHandle;
use warren_daemon::error_chain;
use warren_network::{
    DEFAULT_MTU, Error as NetworkError, NodeNetwork, NodeNetworkSettings, RangeConflict, Repairs,
};
use warren_runtime::ProcessState;
use warren_task::AttemptPhase;
use warren_types::{DesiredTaskState, Health, NetworkView, NodeCondition, NodeSettings, TaskAssignment};

use super::TaskSupervisor;
use crate::network::desired::{ConnectedTask, OwnNode, cluster_network, node_settings, task_mtu};
use crate::network::task_key;
use crate::tasks::container::ListedContainer;
use crate::tasks::node_network::NodeNetworkState;

/// Delay before a network view is applied again that could not be.
const VIEW_RETRY_DELAY: Duration = Duration::from_secs(5);

/// What the links of tasks depend on beside the settings of the node.
#[derive(Clone)]
struct TaskLinks {
    /// In bytes.
    mtu: u32,
    /// Name of the device with the data address, if known.
    device: Option<String>,
}

/// The node network could not be set up or repaired.
#[derive(Debug, thiserror::Error)]
pub(super) enum NodeNetworkError {
    #[error("cannot list the containers that need a network")]
    List(#[from] warren_runtime::Error),
    #[error("cannot set up the node network")]
    Network(#[from] NetworkError),
    #[error("cannot repair parts of the node network: {0}")]
    Repair(String),
    #[error("containers resolve no names")]
    Dns(#[from] warren_dns::DnsError),
}

impl TaskSupervisor {
    /// Sets up the node network once its settings and containers are known, and repairs it afterwards. What fails is a
    /// condition of the node; the rest works.
    pub(super) async fn reconcile_network(self: &Arc<Self>) -> Result<(), NodeNetworkError> {
        let Some(settings) = self.desired_state.borrow().settings.clone() else {
            self.node_network
                .send_replace(NodeNetworkState::NotReady("this node has not received its subnet yet".into()));
            return Ok(());
        };
        let measured = self.task_links(&settings).await;
        let links = measured.as_ref().map_or_else(|_| self.applied_links(), Clone::clone);
        let tended = self.tend_network(&settings, links).await;
        let is_ready = *self.node_network.borrow() == NodeNetworkState::Ready;
        if let (Err(error), false) = (&tended, is_ready) {
            self.node_network.send_replace(NodeNetworkState::NotReady(error_chain(error)));
        }
        let serves = match is_ready {
            true => self.executor.task_networks.ensure_dns(&settings).await,
            false => Ok(()),
        };
        let (degraded, tended) =
            tended.map_or_else(|error| (None, Err(error)), |degraded| (degraded, Ok(())));
        let outcomes = [tended, measured.map(drop).map_err(Into::into), serves.map_err(Into::into)];
        let failures: Vec<NodeNetworkError> = outcomes.into_iter().filter_map(Result::err).collect();
        let sentences: Vec<String> = failures.iter().map(|error| error_chain(error)).collect();
        let sentence = (!sentences.is_empty()).then(|| sentences.join("; "));
        self.conditions.set(NodeCondition::NetworkUnavailable, sentence);
        self.conditions.set(NodeCondition::NetworkDegraded, degraded);
        self.conditions.set(NodeCondition::RangeConflict, self.range_conflict(&settings).await);
        failures.into_iter().next().map_or(Ok(()), Err)
    }

    /// Which route of the node leads elsewhere with addresses of the cluster. Routes that cannot be read are none.
    async fn range_conflict(&self, settings: &NodeSettings) -> Option<String> {
        for range in settings.ranges.iter().copied() {
            if let Ok(Some(RangeConflict { destination, device })) =
                self.executor.network.range_conflict(range).await
            {
                let on = device.map_or_else(String::new, |device| format!(" on {device}"));
                return Some(format!(
                    "the route to {destination}{on} leads elsewhere with addresses of the range {range} of the \
                     cluster; remove it, or give the cluster another range when it is created (--cluster-range)"
                ));
            }
        }
        None
    }

    /// Returns what does not work, although tasks of this node have their networks.
    async fn tend_network(
        self: &Arc<Self>,
        settings: &NodeSettings,
        links: TaskLinks,
    ) -> Result<Option<String>, NodeNetworkError> {
        let desired = self.node_settings(settings, links)?;
        match self.applied_settings() {
            None => self.set_up_network(settings, desired).await,
            Some(before) if before != desired => self.update_network(desired).await,
            Some(_) => check_repairs(self.executor.network.repair().await?),
        }
    }

    fn applied_settings(&self) -> Option<NodeNetworkSettings> {
        self.network_settings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn node_settings(
        &self,
        settings: &NodeSettings,
        links: TaskLinks,
    ) -> Result<NodeNetworkSettings, NetworkError> {
        let TaskLinks { mtu, device } = links;
        let (address, key) = (self.executor.data_address.current(), self.private_key.clone());
        let node = OwnNode { address, device, private_key: key, options: &self.network_options };
        node_settings(settings, node, mtu)
    }

    /// Whether the node network was not set up with the present settings and data address.
    pub(super) fn has_new_network_settings(&self) -> bool {
        let Some(settings) = self.desired_state.borrow().settings.clone() else { return false };
        let applied = self.applied_settings();
        applied.is_none() || self.node_settings(&settings, self.applied_links()).ok() != applied
    }

    fn applied_links(&self) -> TaskLinks {
        let applied = self.applied_settings();
        let routes = applied.as_ref().and_then(NodeNetworkSettings::direct_routes);
        TaskLinks {
            mtu: applied.as_ref().map_or(DEFAULT_MTU, NodeNetworkSettings::mtu),
            device: routes.map(|routes| routes.device().to_owned()),
        }
    }

    /// What the network between the nodes allows.
    async fn task_links(&self, settings: &NodeSettings) -> Result<TaskLinks, NetworkError> {
        let view = self.executor.task_networks.view();
        let peers = view.peers.iter().filter(|(number, _)| **number != settings.number);
        let peers: Vec<_> = peers.map(|(_, peer)| peer.address).collect();
        let underlay = match self.executor.data_address.current() {
            Some(address) => Some(self.executor.network.underlay(address, &peers).await?),
            None => None,
        };
        let mtu = task_mtu(settings.data_plane, underlay.as_ref())?;
        Ok(TaskLinks { mtu, device: underlay.map(|underlay| underlay.device) })
    }

    /// The first set-up has exactly what the existing containers need. No task gets a network before, and
    /// none loses one.
    async fn set_up_network(
        self: &Arc<Self>,
        settings: &NodeSettings,
        desired: NodeNetworkSettings,
    ) -> Result<Option<String>, NodeNetworkError> {
        let _alone = self.executor.setup_lock.write().await;
        let listed = self.list().await?;
        let all = self.desired_network(settings, desired.clone(), &listed)?;
        let repairs = self.executor.network.ensure(&all).await?;
        // Before the first container starts; a failure is reported when this is repeated.
        self.executor.task_networks.ensure_dns(settings).await.ok();
        self.record_network_ready(desired);
        check_repairs(repairs)
    }

    async fn update_network(
        self: &Arc<Self>,
        desired: NodeNetworkSettings,
    ) -> Result<Option<String>, NodeNetworkError> {
        let outcome = self.executor.network.ensure_node(&desired).await;
        self.executor.task_networks.update_names();
        // What failed is repaired with the rest.
        self.record_network_ready(desired);
        outcome?;
        Ok(None)
    }

    fn record_network_ready(&self, desired: NodeNetworkSettings) {
        *self.network_settings.lock().unwrap_or_else(PoisonError::into_inner) = Some(desired);
        self.node_network.send_replace(NodeNetworkState::Ready);
        self.retry_all();
    }

    fn desired_network(
        &self,
        settings: &NodeSettings,
        desired: NodeNetworkSettings,
        listed: &[ListedContainer],
    ) -> Result<NodeNetwork, NodeNetworkError> {
        let (mut tasks, mut serving) = (BTreeMap::new(), Vec::new());
        let desired_state = self.desired_state.borrow().clone();
        // A task without a process gets its network with its next process, or never again.
        for found in listed.iter().filter(|found| found.process != ProcessState::Absent) {
            let wanted = desired_state.tasks.get(&found.task).cloned();
            let goes = match &wanted {
                Some(task) => task.desired > DesiredTaskState::Running,
                None => desired_state.is_confirmed,
            };
            let Some(task) = wanted.or_else(|| found.assignment.clone().map(Arc::new)) else { continue };
            let Some(connected) = ConnectedTask::of(&task) else { continue };
            tasks.insert(task_key(found.task)?, self.executor.task_networks.adopt(found.task, connected));
            if matches!(found.process, ProcessState::Running { .. }) && !goes && was_serving(&task, found) {
                serving.push(task);
            }
        }
        let ports = self.executor.ports.adopt(&serving);
        let cluster = Arc::new(cluster_network(&self.executor.task_networks.view(), settings.number));
        Ok(NodeNetwork { tasks, ports, cluster, ..NodeNetwork::new(desired) })
    }

    /// Follows the network view once the node network is set up. Several changes during one application are applied
    /// together.
    pub(super) async fn watch_network_view(self: Arc<Self>, network: BackgroundTaskHandle) {
        let (mut ready, mut view) = (self.node_network.subscribe(), self.executor.task_networks.subscribe());
        let stop = self.shutdown.token();
        tokio::select! {
            () = stop.cancelled() => return,
            ready = ready.wait_for(|state| *state == NodeNetworkState::Ready) => if ready.is_err() { return },
        }
        loop {
            let newest = view.borrow_and_update().clone();
            let outcome = self.apply_network_view(&newest, &network).await;
            let pause = async {
                match outcome {
                    Ok(()) => {
                        self.applied_network.send_replace(newest.version);
                        std::future::pending().await
                    }
                    Err(error) => {
                        tracing::warn!(error = error_chain(&error), "cannot apply the network view");
                        // Its repair also says on the node what is wrong.
                        network.wake();
                        sleep(VIEW_RETRY_DELAY).await;
                    }
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                changed = view.changed() => if changed.is_err() { return },
                () = pause => {}
            }
        }
    }

    /// Writes the view into the kernel, then into the names. A part that fails does not stop the next.
    async fn apply_network_view(
        &self,
        view: &NetworkView,
        network: &BackgroundTaskHandle,
    ) -> Result<(), NodeNetworkError> {
        let networks = &self.executor.task_networks;
        let own = self.desired_state.borrow().settings.as_ref().map_or(0, |settings| settings.number);
        let cluster = Arc::new(cluster_network(view, own));
        let written = self.executor.network.ensure_cluster(&cluster).await;
        let attached = match networks.outdated().is_empty() {
            true => Ok(()),
            false => {
                let _alone = self.executor.setup_lock.write().await;
                networks.attach_again().await
            }
        };
        networks.update_names();
        // The rest of the view is applied. The repair reports what is missing.
        if check_repairs(written?)?.is_some() {
            network.wake();
        }
        Ok(attached?)
    }
}

/// Whether a running process gets traffic before this agent has checked it: as under the earlier agent.
fn was_serving(task: &TaskAssignment, found: &ListedContainer) -> bool {
    let recorded = found.history.as_ref().map(|history| &history.phase);
    task.spec.health.is_none()
        || matches!(recorded, Some(AttemptPhase::Started { health: Health::Healthy, .. }))
}

/// The failures that leave tasks of this node without their networks as an error, and the others as a sentence. What is
/// wrong with another node is none of these.
fn check_repairs(repairs: Repairs) -> Result<Option<String>, NodeNetworkError> {
    let (mut failed, mut degraded) = (Vec::new(), Vec::new());
    for error in repairs.failed {
        match error {
            NetworkError::InvalidPeer { .. } => tracing::warn!("{error}"),
            NetworkError::PeersElsewhere { .. }
            | NetworkError::PortTaken { .. }
            | NetworkError::BindPort { .. } => degraded.push(error_chain(&error)),
            error => failed.push(error_chain(&error)),
        }
    }
    match failed.is_empty() {
        true => Ok((!degraded.is_empty()).then(|| degraded.join("; "))),
        false => Err(NodeNetworkError::Repair(failed.join("; "))),
    }
}
