//! Maps applied changes to reconcile keys and to the sessions that must send something.

use std::collections::BTreeSet;

use warren_core::{State, StateChange, awaits_managers};
use warren_types::NodeId;

use crate::{ReconcileKey, ReplicaRole};

/// What must be looked at after a publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WakeUps {
    /// Keys to reconcile; none on a manager that must not plan.
    pub keys: BTreeSet<ReconcileKey>,
    /// Nodes whose session may have to send something; `None`: all.
    pub sessions: Option<BTreeSet<NodeId>>,
}

impl WakeUps {
    /// Everything, as at a resync.
    pub fn all(role: &ReplicaRole, state: &State) -> Self {
        // A new leader enqueues everything.
        let keys = if role.can_plan { ReconcileKey::all(state) } else { BTreeSet::new() };
        Self { keys, sessions: None }
    }
}

/// The term in which everything was enqueued because this manager may plan.
#[derive(Debug, Clone, Default)]
pub struct ReconcileTrigger {
    planned_term: u64,
}

impl ReconcileTrigger {
    /// What the `changes` of a publication wake; `None` if some are not known.
    pub fn wake<'a>(
        &mut self,
        role: &ReplicaRole,
        state: &State,
        changes: Option<impl Iterator<Item = &'a StateChange> + Clone>,
    ) -> WakeUps {
        let is_new_term = role.can_plan && role.term != self.planned_term;
        if is_new_term {
            self.planned_term = role.term;
        }
        match changes.filter(|_| !is_new_term) {
            None => WakeUps::all(role, state),
            Some(changes) => {
                let sessions = changed_sessions(changes.clone());
                let keys = if role.can_plan { changed_keys(state, changes) } else { BTreeSet::new() };
                WakeUps { keys, sessions }
            }
        }
    }
}

fn changed_sessions<'a>(changes: impl Iterator<Item = &'a StateChange>) -> Option<BTreeSet<NodeId>> {
    let mut nodes = BTreeSet::new();
    for change in changes {
        match *change {
            // The node's settings, name and labels, or a newer session on another manager.
            StateChange::Node(id) | StateChange::Assignment(id) => drop(nodes.insert(id)),
            // Every worker receives the addresses of managers and the ranges of the cluster.
            StateChange::Member(_) | StateChange::Cluster => return None,
            StateChange::Service(_)
            | StateChange::Task(_)
            | StateChange::Token(_)
            | StateChange::User(_)
            | StateChange::SecretObject(_)
            | StateChange::Volume(_)
            | StateChange::Network(_)
            | StateChange::Addresses
            | StateChange::ImportedImages
            | StateChange::CaRenewals
            | StateChange::KeyRotation => {}
        }
    }
    Some(nodes)
}

fn changed_keys<'a>(state: &State, changes: impl Iterator<Item = &'a StateChange>) -> BTreeSet<ReconcileKey> {
    let mut keys = BTreeSet::new();
    for change in changes {
        match *change {
            StateChange::Service(id) => {
                keys.extend([ReconcileKey::Image(id), ReconcileKey::Service(id), ReconcileKey::Reap(id)]);
            }
            StateChange::Task(id) => {
                keys.extend([ReconcileKey::Service(id.service), ReconcileKey::Reap(id.service)]);
                keys.extend(state.services_leaving_after(&id).map(ReconcileKey::Service));
            }
            StateChange::Node(id) => {
                // Liveness is checked every second anyway.
                keys.extend([ReconcileKey::Schedule, ReconcileKey::Verification, ReconcileKey::Ca]);
                keys.extend(state.affected_services(&id).into_iter().map(ReconcileKey::Service));
            }
            // A task that waits for the volume or an address may fit on a node now.
            StateChange::Volume(_) | StateChange::Addresses => drop(keys.insert(ReconcileKey::Schedule)),
            // The services that use it changed as well; an assignment follows from its tasks.
            StateChange::SecretObject(_)
            | StateChange::Assignment(_)
            | StateChange::Network(_)
            | StateChange::User(_)
            | StateChange::KeyRotation => {}
            StateChange::ImportedImages => {
                let waiting = state.services().filter(|service| awaits_managers(service));
                keys.extend(waiting.map(|service| ReconcileKey::Image(service.id)));
            }
            StateChange::Token(_) => drop(keys.insert(ReconcileKey::Tokens)),
            StateChange::CaRenewals => drop(keys.insert(ReconcileKey::Ca)),
            StateChange::Cluster => {
                keys.extend([ReconcileKey::Level, ReconcileKey::Verification, ReconcileKey::Ca])
            }
            StateChange::Member(_) => {
                keys.extend([ReconcileKey::Level, ReconcileKey::Members, ReconcileKey::Ca])
            }
        }
    }
    if !keys.is_empty() {
        keys.insert(ReconcileKey::Schedule);
    }
    keys
}
