//! The verification of nodes. A node that is not verified has a taint, and each node a label, while the cluster
//! verifies nodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use warren_types::verification::MAX_CHECK_RESULTS;
use warren_types::{
    Node, NodeCheckResult, NodeId, NodeVerification, UNVERIFIED_TAINT, VERIFIED_LABEL, VerificationState,
    Violation, unverified_taint,
};

use super::ApplyContext;
use crate::state::{CommandResponse, ObjectKind, Refusal, State, StateChange};

/// Whether the cluster verifies nodes.
pub(super) fn is_enabled(state: &State) -> bool {
    state.cluster.as_ref().is_some_and(|cluster| cluster.settings.verification.enabled)
}

/// Sets the verification of a node. Only the result of checks changes the taint and the label: during checks a node
/// keeps what it has.
pub(super) fn set(node: &mut Node, verification: NodeVerification) {
    let is_verified = match verification.state {
        VerificationState::Unverified | VerificationState::Failed => Some(false),
        VerificationState::Verified => Some(true),
        VerificationState::Pending | VerificationState::InProgress => None,
    };
    if let Some(is_verified) = is_verified {
        node.taints.retain(|taint| taint.key != UNVERIFIED_TAINT);
        node.taints.extend((!is_verified).then(unverified_taint));
        node.labels.insert(VERIFIED_LABEL.to_owned(), is_verified.to_string());
    }
    node.verification = Some(Arc::new(verification));
}

/// Nodes count as verified when verification is turned on. When it is turned off, nothing is left of it.
pub(super) fn follow_settings(state: &mut State, entry: &mut ApplyContext) {
    let enabled = is_enabled(state);
    let changed: Vec<NodeId> =
        state.nodes().filter(|node| node.verification.is_some() != enabled).map(|node| node.id).collect();
    let now = entry.now;
    for id in changed {
        change(state, entry, id, |node| match enabled {
            true => set(node, NodeVerification::new(VerificationState::Verified, now)),
            false => {
                node.taints.retain(|taint| taint.key != UNVERIFIED_TAINT);
                node.labels.remove(VERIFIED_LABEL);
                node.verification = None;
            }
        });
    }
}

pub(super) fn request(
    state: &mut State,
    entry: &mut ApplyContext,
    nodes: &BTreeSet<NodeId>,
) -> Result<CommandResponse, Refusal> {
    if !is_enabled(state) {
        let message =
            "the cluster verifies no nodes; turn it on with `warren cluster update --verify-nodes on`";
        return Err(Refusal::Invalid(Violation::new("nodes", message).into()));
    }
    if let Some(missing) = nodes.iter().find(|node| !state.nodes.contains_key(*node)) {
        return Err(Refusal::not_found(ObjectKind::Node, missing));
    }
    let now = entry.now;
    for id in nodes {
        update(state, entry, *id, |verification| {
            verification.requested = now.0;
            // Checks that run now are followed by others.
            if verification.state != VerificationState::InProgress {
                (verification.state, verification.since) = (VerificationState::Pending, now);
            }
        });
    }
    Ok(CommandResponse::Done)
}

pub(super) fn begin(
    state: &mut State,
    entry: &mut ApplyContext,
    id: NodeId,
) -> Result<CommandResponse, Refusal> {
    let now = entry.now;
    update(state, entry, id, |verification| {
        (verification.state, verification.since) = (VerificationState::InProgress, now);
    });
    node_response(state, id)
}

pub(super) fn record(
    state: &mut State,
    entry: &mut ApplyContext,
    id: NodeId,
    answered: u64,
    results: &[NodeCheckResult],
) -> Result<CommandResponse, Refusal> {
    let now = entry.now;
    update(state, entry, id, |verification| {
        if verification.state != VerificationState::InProgress {
            return;
        }
        verification.results = results.iter().take(MAX_CHECK_RESULTS).cloned().collect();
        let has_failed = verification.failed_check().is_some();
        verification.failures = if has_failed { verification.failures.saturating_add(1) } else { 0 };
        verification.state = if has_failed { VerificationState::Failed } else { VerificationState::Verified };
        (verification.answered, verification.since) = (answered, now);
    });
    // The results count also if a user asked again meanwhile.
    update(state, entry, id, |verification| {
        let is_over = matches!(verification.state, VerificationState::Verified | VerificationState::Failed);
        if is_over && verification.requested > verification.answered {
            verification.state = VerificationState::Pending;
        }
    });
    node_response(state, id)
}

fn node_response(state: &State, id: NodeId) -> Result<CommandResponse, Refusal> {
    let node = state.nodes.get(&id).cloned();
    node.map(CommandResponse::Node).ok_or_else(|| Refusal::not_found(ObjectKind::Node, id))
}

/// Changes the verification of a node that has one.
fn update(state: &mut State, entry: &mut ApplyContext, id: NodeId, edit: impl FnOnce(&mut NodeVerification)) {
    let known = state.nodes.get(&id).and_then(|node| node.verification.clone());
    let Some(known) = known else { return };
    let mut verification = (*known).clone();
    edit(&mut verification);
    if verification != *known {
        change(state, entry, id, |node| set(node, verification));
    }
}

fn change(state: &mut State, entry: &mut ApplyContext, id: NodeId, edit: impl FnOnce(&mut Node)) {
    state.update_node(id, |node| {
        edit(node);
        node.version = entry.index;
    });
    state.nodes.get(&id).into_iter().for_each(|node| state.index.update_evicting_node(node));
    entry.changes.push(StateChange::Node(id));
}
