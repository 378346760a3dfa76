//! The node's own part of the network, which every task's stands on.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use warren_network::{DEFAULT_MTU, NodeNetwork, NodeSettings as Node, Repairs, TaskKey};
use warren_runtime::Process;
use warren_task::Phase;
use warren_types::{Desired, Health, NodeCondition, NodeSettings, TaskAssignment};

use crate::tasks::container::Listed;
use crate::tasks::supervisor::Supervisor;

/// Why tasks have no network while [`Ground::Awaited`].
pub(crate) const NOT_YET: &str = "the node's network is not made yet";

/// Whether tasks can be given a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ground {
    /// The agent has just started and not tried yet.
    Awaited,
    /// The node's own part is made.
    Laid,
    /// It is not, for this reason.
    Missing(String),
}

/// Why the node's network is not as it should be.
#[derive(Debug, thiserror::Error)]
pub(super) enum GroundError {
    #[error("the containers that need a network are not known")]
    List(#[from] warren_runtime::Error),
    #[error("the node's network cannot be made")]
    Network(#[from] warren_network::Error),
    #[error("parts of the node's network could not be repaired: {0}")]
    Repair(String),
}

impl Supervisor {
    /// Makes the node's network once its settings and its containers are known, and repairs it after that.
    pub(super) async fn tend_ground(self: &Arc<Self>) -> Result<(), GroundError> {
        let Some(settings) = self.wishes.borrow().settings.clone() else {
            self.ground.send_replace(Ground::Missing("no manager has told this node its subnet yet".into()));
            return Ok(());
        };
        let made_with = self.made_with.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let tended = match made_with {
            None => self.lay_ground(&settings).await,
            Some(before) if before != settings => self.change_ground(&settings).await,
            Some(_) => repaired(self.driver.network.repair().await?),
        };
        let sentence = tended.as_ref().err().map(words);
        let laid = *self.ground.borrow() == Ground::Laid;
        if let (Some(sentence), false) = (&sentence, laid) {
            self.ground.send_replace(Ground::Missing(sentence.clone()));
        }
        self.health.note(NodeCondition::NetworkBroken, sentence);
        tended
    }

    /// The first time: exactly what the containers that are there need. No task gets a network before, and none
    /// loses one meanwhile.
    async fn lay_ground(self: &Arc<Self>, settings: &NodeSettings) -> Result<(), GroundError> {
        let _alone = self.driver.laying.write().await;
        let listed = self.list().await?;
        let all = self.network_of(settings, &listed)?;
        let repairs = self.driver.network.ensure(&all).await?;
        self.laid(settings);
        repaired(repairs)
    }

    async fn change_ground(self: &Arc<Self>, settings: &NodeSettings) -> Result<(), GroundError> {
        self.driver.network.ensure_node(&node(settings)?).await?;
        self.laid(settings);
        Ok(())
    }

    fn laid(&self, settings: &NodeSettings) {
        *self.made_with.lock().unwrap_or_else(PoisonError::into_inner) = Some(settings.clone());
        self.ground.send_replace(Ground::Laid);
        self.retry_all();
    }

    fn network_of(&self, settings: &NodeSettings, listed: &[Listed]) -> Result<NodeNetwork, GroundError> {
        let (mut tasks, mut serving) = (BTreeMap::new(), Vec::new());
        let wishes = self.wishes.borrow().clone();
        // A task without a process gets its network with its next one, or has lost it for good.
        for found in listed.iter().filter(|found| found.process != Process::None) {
            let wanted = wishes.tasks.get(&found.task).cloned();
            let goes = match &wanted {
                Some(task) => task.desired > Desired::Running,
                None => wishes.confirmed,
            };
            let Some(task) = wanted.or_else(|| found.assignment.clone().map(Arc::new)) else { continue };
            tasks.insert(TaskKey::parse(&found.task.to_string())?, task.address);
            if matches!(found.process, Process::Running { .. }) && !goes && was_well(&task, found) {
                serving.push(task);
            }
        }
        let ports = self.driver.ports.adopt(&serving);
        Ok(NodeNetwork { settings: node(settings)?, tasks, ports })
    }
}

/// Whether a process that runs gets traffic before this agent has checked it: as it did from the agent before.
fn was_well(task: &TaskAssignment, found: &Listed) -> bool {
    let recorded = found.ledger.as_ref().map(|ledger| &ledger.phase);
    task.spec.health.is_none() || matches!(recorded, Some(Phase::Started { health: Health::Healthy, .. }))
}

fn node(settings: &NodeSettings) -> Result<Node, warren_network::Error> {
    Node::new(settings.ranges.clone(), settings.subnet, DEFAULT_MTU)
}

fn repaired(repairs: Repairs) -> Result<(), GroundError> {
    if repairs.failed.is_empty() {
        return Ok(());
    }
    let failed: Vec<String> = repairs.failed.iter().map(ToString::to_string).collect();
    Err(GroundError::Repair(failed.join("; ")))
}

/// The error with its cause, for people.
fn words(error: &GroundError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
