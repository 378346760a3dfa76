//! Which nodes are checked next, and which fail for good.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use warren_types::secret_object::registry_host;
use warren_types::{
    CheckProgram, Node, NodeCondition, NodeId, NodeRole, NodeStatus, NodeVerification, PullPolicy,
    SecretObjectKind, Timestamp, UNVERIFIED_TAINT, VerificationState,
};

use crate::state::{Command, State};

/// The wait after the first failure; doubles with each further one.
const MIN_DELAY: Duration = Duration::from_secs(5);
const MAX_DELAY: Duration = Duration::from_secs(5 * 60);
/// When a node is looked at again whose checks run: their end changes nothing in the state after their result.
const RUNNING_DELAY: Duration = Duration::from_secs(1);
/// The most nodes whose checks run at once.
const MAX_CONCURRENT: usize = 16;
/// The most nodes to which a node sends packets.
const MAX_PEERS: usize = 16;
/// The most registries that a node tries to reach.
const MAX_REGISTRIES: usize = 16;

/// What must be done, and when to plan again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VerificationPlan {
    /// Nodes that are removed, in any order.
    pub commands: Vec<Command>,
    /// Nodes whose checks begin, each with [`Command::BeginVerification`].
    pub begin: Vec<NodeId>,
    /// When to plan again if nothing changes.
    pub recheck_after: Option<Duration>,
}

/// Plans the checks of nodes; `running` are those whose checks this leader has begun and not recorded.
pub fn reconcile_verification(state: &State, running: &BTreeSet<NodeId>, now: Timestamp) -> VerificationPlan {
    let mut plan = VerificationPlan::default();
    let Some(settings) = state.cluster().map(|cluster| &cluster.settings.verification) else { return plan };
    if !settings.enabled {
        return plan;
    }
    let mut due: Vec<(Timestamp, NodeId)> = Vec::new();
    let mut next: Option<Timestamp> = None;
    for node in state.nodes().filter(|node| node.status == NodeStatus::Ready) {
        let Some(verification) = node.verification.as_deref() else { continue };
        if is_given_up(node, verification, settings.remove_after) {
            plan.commands.push(Command::RemoveNode { id: node.id, force: false, at: now });
            continue;
        }
        let due_at = due_at(verification).map(|at| match running.contains(&node.id) {
            true => at.max(now + RUNNING_DELAY),
            false => at,
        });
        match due_at {
            Some(at) if at <= now => due.push((at, node.id)),
            Some(at) => next = Some(next.map_or(at, |other| other.min(at))),
            None => {}
        }
    }
    due.sort();
    let free = MAX_CONCURRENT.saturating_sub(running.len());
    // The others are planned when one of these has ended.
    plan.begin = due.into_iter().take(free).map(|(_, id)| id).collect();
    plan.recheck_after = next.map(|time| time.saturating_since(now));
    plan
}

/// When its checks should begin, unless they run; `None` if it needs none.
fn due_at(verification: &NodeVerification) -> Option<Timestamp> {
    let since = verification.since;
    match verification.state {
        VerificationState::Verified => None,
        VerificationState::Failed => Some(since + retry_delay(verification.failures)),
        // Checks in progress that do not run were begun by another leader.
        VerificationState::Unverified | VerificationState::Pending | VerificationState::InProgress => {
            Some(since)
        }
    }
}

fn retry_delay(failures: u32) -> Duration {
    MIN_DELAY.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(MAX_DELAY)
}

/// Whether it is removed. A manager is not.
fn is_given_up(node: &Node, verification: &NodeVerification, remove_after: u32) -> bool {
    let has_failed = verification.state == VerificationState::Failed;
    has_failed && remove_after > 0 && verification.failures >= remove_after && node.role == NodeRole::Worker
}

/// The nodes to which a node sends packets: READY and verified ones that follow it by number.
pub fn verification_peers<'a>(state: &'a State, node: &Node) -> Vec<&'a Arc<Node>> {
    let is_peer = |other: &&Arc<Node>| {
        other.id != node.id
            && other.status == NodeStatus::Ready
            && other.verification.is_some()
            && !other.taints.iter().any(|taint| taint.key == UNVERIFIED_TAINT)
            && !other.conditions.contains(&NodeCondition::NetworkUnavailable)
    };
    let mut peers: Vec<_> = state.nodes().filter(is_peer).collect();
    peers.sort_by_key(|other| (other.number < node.number, other.number));
    peers.truncate(MAX_PEERS);
    peers
}

/// A registry from which nodes pull images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedRegistry {
    /// Its host, with its port if that is given.
    pub host: String,
    /// A node that cannot reach it is not verified.
    pub is_required: bool,
}

/// The registries of services and of the checks' images. One without a credential is not required: the images may have
/// been imported.
pub fn used_registries(state: &State) -> Vec<UsedRegistry> {
    let services = state.services().map(|service| &service.revision.task);
    let mut images: Vec<_> =
        services.filter(|task| task.pull != PullPolicy::Never).map(|task| &task.image).collect();
    let checks = state.cluster().into_iter().flat_map(|cluster| &cluster.settings.verification.checks);
    images.extend(checks.filter_map(|check| match &check.program {
        CheckProgram::Image { image, .. } => Some(image),
        CheckProgram::Command(_) => None,
    }));
    let hosts: BTreeSet<String> = images.into_iter().map(registry_host).collect();
    let credentials: BTreeSet<&str> = state
        .secret_objects()
        .filter(|object| object.kind == SecretObjectKind::Credential)
        .map(|object| object.name.as_str())
        .collect();
    let registry = |host: String| UsedRegistry { is_required: credentials.contains(host.as_str()), host };
    hosts.into_iter().map(registry).take(MAX_REGISTRIES).collect()
}
