//! The node network, on which the networks of all tasks depend.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use warren_network::{DEFAULT_MTU, NodeNetwork, NodeNetworkSettings as Node, Repairs, TaskKey};
use warren_runtime::ProcessState;
use warren_task::AttemptPhase;
use warren_types::{DesiredTaskState, Health, NodeCondition, NodeSettings, TaskAssignment};

use super::TaskSupervisor;
use crate::tasks::container::ListedContainer;
use crate::tasks::node_network::NodeNetworkState;

/// The node network could not be set up or repaired.
#[derive(Debug, thiserror::Error)]
pub(super) enum NodeNetworkError {
    #[error("cannot list the containers that need a network")]
    List(#[from] warren_runtime::Error),
    #[error("cannot set up the node network")]
    Network(#[from] warren_network::Error),
    #[error("cannot repair parts of the node network: {0}")]
    Repair(String),
}

impl TaskSupervisor {
    /// Sets up the node network once its settings and containers are known, and repairs it afterwards.
    pub(super) async fn reconcile_network(self: &Arc<Self>) -> Result<(), NodeNetworkError> {
        let Some(settings) = self.desired_state.borrow().settings.clone() else {
            self.node_network
                .send_replace(NodeNetworkState::NotReady("this node has not received its subnet yet".into()));
            return Ok(());
        };
        let network_settings = self.network_settings.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let tended = match network_settings {
            None => self.set_up_network(&settings).await,
            Some(before) if before != settings => self.update_network(&settings).await,
            Some(_) => check_repairs(self.executor.network.repair().await?),
        };
        let sentence = tended.as_ref().err().map(error_text);
        let laid = *self.node_network.borrow() == NodeNetworkState::Ready;
        if let (Some(sentence), false) = (&sentence, laid) {
            self.node_network.send_replace(NodeNetworkState::NotReady(sentence.clone()));
        }
        self.conditions.set(NodeCondition::NetworkUnavailable, sentence);
        tended
    }

    /// The first set-up has exactly what the existing containers need. No task gets a network before, and
    /// none loses one.
    async fn set_up_network(self: &Arc<Self>, settings: &NodeSettings) -> Result<(), NodeNetworkError> {
        let _alone = self.executor.setup_lock.write().await;
        let listed = self.list().await?;
        let all = self.desired_network(settings, &listed)?;
        let repairs = self.executor.network.ensure(&all).await?;
        self.record_network_ready(settings);
        check_repairs(repairs)
    }

    async fn update_network(self: &Arc<Self>, settings: &NodeSettings) -> Result<(), NodeNetworkError> {
        self.executor.network.ensure_node(&network_settings(settings)?).await?;
        self.record_network_ready(settings);
        Ok(())
    }

    fn record_network_ready(&self, settings: &NodeSettings) {
        *self.network_settings.lock().unwrap_or_else(PoisonError::into_inner) = Some(settings.clone());
        self.node_network.send_replace(NodeNetworkState::Ready);
        self.retry_all();
    }

    fn desired_network(
        &self,
        settings: &NodeSettings,
        listed: &[ListedContainer],
    ) -> Result<NodeNetwork, NodeNetworkError> {
        let (mut tasks, mut serving) = (BTreeMap::new(), Vec::new());
        let desired_state = self.desired_state.borrow().clone();
        // A task without a process gets its network with its next process, or never again.
        for found in listed.iter().filter(|found| found.process != ProcessState::Absent) {
            let desired = desired_state.tasks.get(&found.task).cloned();
            let goes = match &desired {
                Some(task) => task.desired > DesiredTaskState::Running,
                None => desired_state.is_confirmed,
            };
            let Some(task) = desired.or_else(|| found.assignment.clone().map(Arc::new)) else { continue };
            let key = TaskKey::parse(&found.task.to_string()).map_err(warren_network::Error::from)?;
            tasks.insert(key, task.address);
            if matches!(found.process, ProcessState::Running { .. }) && !goes && was_serving(&task, found) {
                serving.push(task);
            }
        }
        let ports = self.executor.ports.adopt(&serving);
        Ok(NodeNetwork { settings: network_settings(settings)?, tasks, ports })
    }
}

/// Whether a running process gets traffic before this agent has checked it: as under the earlier agent.
fn was_serving(task: &TaskAssignment, found: &ListedContainer) -> bool {
    let recorded = found.history.as_ref().map(|history| &history.phase);
    task.spec.health.is_none()
        || matches!(recorded, Some(AttemptPhase::Started { health: Health::Healthy, .. }))
}

fn network_settings(settings: &NodeSettings) -> Result<Node, warren_network::Error> {
    Node::new(settings.ranges.clone(), settings.subnet, DEFAULT_MTU)
}

fn check_repairs(repairs: Repairs) -> Result<(), NodeNetworkError> {
    if repairs.failed.is_empty() {
        return Ok(());
    }
    let failed: Vec<String> = repairs.failed.iter().map(ToString::to_string).collect();
    Err(NodeNetworkError::Repair(failed.join("; ")))
}

/// The error with its cause.
fn error_text(error: &NodeNetworkError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
