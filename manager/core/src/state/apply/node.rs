//! Commands on nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use warren_types::spec::{validate_labels, validate_taints};
use warren_types::{
    Availability, Health, MemberId, Node, NodeCondition, NodeDescription, NodeId, NodeName, NodeRole,
    NodeStatus, NodeVerification, PublicKeyHash, Taint, TaintSelector, Task, TaskId, TaskState, TaskStatus,
    Timestamp, VerificationState, Violation, Violations,
};

use super::{ApplyContext, address, verification, volume};
use crate::state::feature_level::MULTI_MANAGER_LEVEL;
use crate::state::{CommandResponse, ObjectKind, Refusal, State, StateChange, digest};

/// What a node joins with.
pub(super) struct NewNode<'a> {
    /// Reported by its agent.
    pub(super) description: &'a NodeDescription,
    /// Those of its token; a node that is known keeps its own.
    pub(super) labels: &'a BTreeMap<String, String>,
    /// Reported by its agent, since they only keep tasks away; a node that is known keeps its own.
    pub(super) taints: &'a BTreeSet<Taint>,
}

pub(super) fn register(
    state: &mut State,
    entry: &mut ApplyContext,
    id: NodeId,
    name: &NodeName,
    role: NodeRole,
    new: NewNode<'_>,
) -> Result<CommandResponse, Refusal> {
    if state.index.node_names.get(name).is_some_and(|owner| *owner != id) {
        return Err(Refusal::AlreadyExists { kind: ObjectKind::Node, name: name.to_string() });
    }
    let Some(known) = state.nodes.get(&id) else {
        return add(state, entry, id, name, role, new);
    };
    let description = new.description;
    if known.name == *name && known.role == role && known.description == *description {
        return Ok(CommandResponse::Node(known.clone()));
    }
    state.index.node_names.remove(&known.name);
    state.index.node_names.insert(name.clone(), id);
    state.update_node(id, |node| {
        node.name = name.clone();
        node.role = role;
        node.description = description.clone();
        node.version = entry.index;
    });
    entry.changes.push(StateChange::Node(id));
    node_response(state, id)
}

fn add(
    state: &mut State,
    entry: &mut ApplyContext,
    id: NodeId,
    name: &NodeName,
    role: NodeRole,
    NewNode { description, labels, taints }: NewNode<'_>,
) -> Result<CommandResponse, Refusal> {
    let mut wrong = Violations::default();
    validate_taints("taints", taints, &mut wrong);
    wrong.into_result(()).map_err(Refusal::Invalid)?;
    let number = address::free_node_number(state)?;
    let (subnet, cursor) = address::free_subnet(state)?;
    state.subnet_cursor = cursor;
    let mut node = Node {
        id,
        name: name.clone(),
        version: entry.index,
        created_at: entry.now,
        role,
        labels: labels.clone(),
        availability: Availability::Active,
        taints: taints.clone(),
        description: description.clone(),
        number,
        subnets: vec![subnet],
        status: NodeStatus::Unknown,
        status_since: entry.now,
        session: 0,
        assignment_index: entry.index,
        conditions: BTreeSet::new(),
        manager: None,
        verification: None,
        key: None,
    };
    if verification::is_enabled(state) {
        verification::set(&mut node, NodeVerification::new(VerificationState::Unverified, entry.now));
    }
    state.forget_removal(id);
    state.index.add_node(&node);
    state.digest_sum.add(digest::node(&node));
    let node = Arc::new(node);
    state.nodes.insert(id, node.clone());
    entry.changes.push(StateChange::Node(id));
    Ok(CommandResponse::Node(node))
}

/// Lists the key of the agent of a manager's machine.
pub(super) fn set_key(
    state: &mut State,
    entry: &mut ApplyContext,
    id: NodeId,
    key: PublicKeyHash,
) -> Result<CommandResponse, Refusal> {
    let known = state.nodes.get(&id).ok_or_else(|| Refusal::not_found(ObjectKind::Node, id))?;
    if known.key == Some(key) {
        return Ok(CommandResponse::Node(known.clone()));
    }
    state.update_node(id, |node| {
        node.key = Some(key);
        node.version = entry.index;
    });
    entry.changes.push(StateChange::Node(id));
    node_response(state, id)
}

/// The node as it is.
fn node_response(state: &State, id: NodeId) -> Result<CommandResponse, Refusal> {
    let node = state.nodes.get(&id).cloned();
    node.map(CommandResponse::Node).ok_or_else(|| Refusal::not_found(ObjectKind::Node, id))
}

/// Changes the user's settings of a node: labels and taints are those to set, and what selects those to remove.
pub(super) fn update(
    state: &mut State,
    entry: &mut ApplyContext,
    id: NodeId,
    version: Option<u64>,
    labels: (&BTreeMap<String, String>, &BTreeSet<String>),
    availability: Option<Availability>,
    (taint_add, taint_rm): (&BTreeSet<Taint>, &BTreeSet<TaintSelector>),
) -> Result<CommandResponse, Refusal> {
    let known = state.nodes.get(&id).ok_or_else(|| Refusal::not_found(ObjectKind::Node, id))?;
    let availability = availability.unwrap_or(known.availability);
    let mut desired = known.labels.clone();
    desired.extend(labels.0.iter().map(|(key, value)| (key.clone(), value.clone())));
    desired.retain(|key, _| !labels.1.contains(key));
    let mut taints = known.taints.clone();
    taints.retain(|taint| {
        !taint_rm.iter().any(|removed| removed.matches(taint))
            && !taint_add.iter().any(|new| new.excludes(taint))
    });
    taints.extend(taint_add.iter().cloned());
    if known.labels == desired && known.availability == availability && known.taints == taints {
        return Ok(CommandResponse::Node(known.clone()));
    }
    let mut wrong = Violations::default();
    validate_labels(&desired, &mut wrong);
    validate_taints("taints", &taints, &mut wrong);
    wrong.into_result(()).map_err(Refusal::Invalid)?;
    if let Some(required) = version.filter(|version| *version != known.version) {
        let (name, found) = (known.name.to_string(), known.version);
        return Err(Refusal::VersionConflict { kind: ObjectKind::Node, name, expected: required, found });
    }
    state.update_node(id, |node| {
        node.labels = desired;
        node.availability = availability;
        node.taints = taints;
        node.version = entry.index;
    });
    state.nodes.get(&id).into_iter().for_each(|node| state.index.update_evicting_node(node));
    entry.changes.push(StateChange::Node(id));
    node_response(state, id)
}

/// Deletes a node. The state of its tasks is unknown, so they count as removed: they are terminal, and hold
/// nothing. Its subnets are withdrawn: an address that one of them still uses gets no other owner soon.
pub(super) fn remove(
    state: &mut State,
    entry: &mut ApplyContext,
    id: NodeId,
    force: bool,
) -> Result<CommandResponse, Refusal> {
    let Some(node) = state.nodes.get(&id).cloned() else { return Ok(CommandResponse::Done) };
    let held: Vec<TaskId> = state.tasks_on(&id).map(|task| task.id).collect();
    if node.status == NodeStatus::Ready && !held.is_empty() && !force {
        let tasks = u32::try_from(held.len()).unwrap_or(u32::MAX);
        return Err(Refusal::NodeInUse { node: node.name.clone(), status: node.status, tasks });
    }
    let reason: Arc<str> = format!("node {} was removed from the cluster", node.name).into();
    let now = entry.now;
    for task in held {
        state.update_task(entry, task, |task| {
            mark_ended(&mut task.observed, &reason, now);
            task.observed.removed = true;
            task.rare.update(|special| special.lost_since = None);
        });
    }
    if let Some(place) = state.address_cursors.remove(&id) {
        state.digest_sum.remove(digest::cursor(id, place));
    }
    volume::forget_released(state, entry, id);
    state.index.remove_node(&node);
    address::withdraw_node(state, entry, &node);
    state.digest_sum.remove(digest::node(&node));
    state.nodes.remove(&id);
    if state.feature_level >= MULTI_MANAGER_LEVEL {
        state.record_removal(id, entry.index);
    }
    entry.changes.extend([StateChange::Node(id), StateChange::Assignment(id)]);
    Ok(CommandResponse::Node(node))
}

/// It is terminal, as far as managers can tell.
fn mark_ended(observed: &mut TaskStatus, reason: &Arc<str>, now: Timestamp) {
    if !observed.state.is_terminal() {
        observed.state = TaskState::Shutdown;
        observed.since = now;
        observed.details.update(|details| details.reason = reason.clone());
    }
    (observed.ready, observed.health) = (false, Health::None);
    observed.details.update(|details| details.next_attempt = None);
}

/// The host called `name` at `host` becomes a manager again, replacing `replaces`, and its agent is the same
/// node as before. Most likely it lost its disk and its containers: earlier reports of its tasks are void,
/// and reports of those that it creates again, whose attempts count from one, would be dropped as old. So
/// these tasks are terminal, and are replaced; the agent removes what still exists of them.
pub(super) fn reset_node(
    state: &mut State,
    entry: &mut ApplyContext,
    (name, host): (&NodeName, &str),
    replaces: Option<MemberId>,
) {
    let Some(node) = state.node_of_manager(name).filter(|node| state.is_node_at(node, host, replaces)) else {
        // The node of another host keeps running its tasks.
        return;
    };
    let node = Arc::clone(node);
    let heard_of = |task: &&Arc<Task>| task.observed.attempt > 0 && !task.observed.state.is_terminal();
    let held: Vec<TaskId> = state.tasks_on(&node.id).filter(heard_of).map(|task| task.id).collect();
    let reason: Arc<str> = format!("node {} rejoined without its data", node.name).into();
    let now = entry.now;
    for task in held {
        state.update_task(entry, task, |task| mark_ended(&mut task.observed, &reason, now));
    }
}

pub(super) fn open_session(
    state: &mut State,
    entry: &mut ApplyContext,
    id: NodeId,
    description: &NodeDescription,
    manager: MemberId,
) -> Result<CommandResponse, Refusal> {
    let known = state.nodes.get(&id).ok_or_else(|| Refusal::not_found(ObjectKind::Node, id))?;
    let number = known.session.saturating_add(1);
    state.update_node(id, |node| {
        node.session = number;
        node.manager = (manager > 0).then_some(manager);
        node.version = entry.index;
        if node.description != *description {
            node.description = description.clone();
        }
    });
    put_status(state, entry, id, NodeStatus::Ready);
    Ok(CommandResponse::Session { number })
}

pub(super) fn set_status(
    state: &mut State,
    entry: &mut ApplyContext,
    id: NodeId,
    session: u64,
    status: NodeStatus,
) -> Result<CommandResponse, Refusal> {
    let node = state.nodes.get(&id).ok_or_else(|| Refusal::not_found(ObjectKind::Node, id))?;
    if status == NodeStatus::Unknown {
        let message = "UNKNOWN is the status before the first session; give DOWN or READY";
        return Err(Refusal::Invalid(Violation::new("status", message).into()));
    }
    if session != node.session || session == 0 {
        let (node, current) = (node.name.clone(), node.session);
        return Err(Refusal::StaleSession { node, sent: session, current });
    }
    if node.status != status {
        put_status(state, entry, id, status);
    }
    Ok(CommandResponse::Done)
}

/// Sets the conditions that the node's agent reports.
pub(super) fn set_conditions(
    state: &mut State,
    entry: &mut ApplyContext,
    id: NodeId,
    session: u64,
    conditions: &BTreeSet<NodeCondition>,
) -> Result<CommandResponse, Refusal> {
    let known = state.nodes.get(&id).ok_or_else(|| Refusal::not_found(ObjectKind::Node, id))?;
    if session != known.session {
        let (node, current) = (known.name.clone(), known.session);
        return Err(Refusal::StaleSession { node, sent: session, current });
    }
    if known.conditions == *conditions {
        return Ok(CommandResponse::Done);
    }
    state.update_node(id, |node| {
        node.conditions.clone_from(conditions);
        node.version = entry.index;
    });
    entry.changes.push(StateChange::Node(id));
    Ok(CommandResponse::Done)
}

/// Sets the status, and on every task that holds the node since when it is lost.
fn put_status(state: &mut State, entry: &mut ApplyContext, id: NodeId, status: NodeStatus) {
    let Some(known) = state.nodes.get(&id) else { return };
    entry.changes.push(StateChange::Node(id));
    if known.status == status {
        return;
    }
    state.update_node(id, |node| {
        node.status = status;
        node.status_since = entry.now;
        node.version = entry.index;
    });
    let lost_since: Option<Timestamp> = (status == NodeStatus::Down).then_some(entry.now);
    let held: Vec<TaskId> =
        state.tasks_on(&id).filter(|t| t.lost_since() != lost_since).map(|t| t.id).collect();
    for task in held {
        state.update_task(entry, task, |task| task.rare.update(|special| special.lost_since = lost_since));
    }
}
