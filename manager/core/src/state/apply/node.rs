//! Commands on nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use warren_types::spec::validate_labels;
use warren_types::{
    Availability, Health, MemberId, Node, NodeCondition, NodeDescription, NodeId, NodeName, NodeRole,
    NodeStatus, Observed, Task, TaskId, TaskState, Timestamp, Violation, Violations,
};

use super::Entry;
use crate::state::level::SEVERAL_MANAGERS;
use crate::state::{Answer, Change, Kind, Refusal, State, digest};

pub(super) fn register(
    state: &mut State,
    entry: &mut Entry,
    id: NodeId,
    name: &NodeName,
    role: NodeRole,
    description: &NodeDescription,
) -> Result<Answer, Refusal> {
    if state.index.node_names.get(name).is_some_and(|owner| *owner != id) {
        return Err(Refusal::AlreadyExists { kind: Kind::Node, name: name.to_string() });
    }
    let Some(known) = state.nodes.get(&id) else { return add(state, entry, id, name, role, description) };
    if known.name == *name && known.role == role && known.description == *description {
        return Ok(Answer::Node(known.clone()));
    }
    state.index.node_names.remove(&known.name);
    state.index.node_names.insert(name.clone(), id);
    state.update_node(id, |node| {
        node.name = name.clone();
        node.role = role;
        node.description = description.clone();
        node.version = entry.index;
    });
    entry.changes.push(Change::Node(id));
    answer(state, id)
}

fn add(
    state: &mut State,
    entry: &mut Entry,
    id: NodeId,
    name: &NodeName,
    role: NodeRole,
    description: &NodeDescription,
) -> Result<Answer, Refusal> {
    let cluster = state.cluster.as_ref().ok_or(Refusal::NoCluster)?;
    let subnet = cluster.subnet(state.subnets).ok_or(Refusal::Exhausted { given: state.subnets })?;
    state.subnets += 1;
    let node = Node {
        id,
        name: name.clone(),
        version: entry.index,
        created_at: entry.now,
        role,
        labels: BTreeMap::new(),
        availability: Availability::Active,
        description: description.clone(),
        subnet,
        status: NodeStatus::Unknown,
        status_since: entry.now,
        session: 0,
        assignment: entry.index,
        conditions: BTreeSet::new(),
        manager: None,
    };
    state.forget_removal(id);
    state.index.add_node(&node);
    state.sum.add(digest::node(&node));
    let node = Arc::new(node);
    state.nodes.insert(id, node.clone());
    entry.changes.push(Change::Node(id));
    Ok(Answer::Node(node))
}

/// The node as it is.
fn answer(state: &State, id: NodeId) -> Result<Answer, Refusal> {
    let node = state.nodes.get(&id).cloned();
    node.map(Answer::Node).ok_or_else(|| Refusal::not_found(Kind::Node, id))
}

/// Changes what people say of a node: `labels` are those to set, and the keys of those to take away.
pub(super) fn update(
    state: &mut State,
    entry: &mut Entry,
    id: NodeId,
    version: Option<u64>,
    labels: (&BTreeMap<String, String>, &BTreeSet<String>),
    availability: Option<Availability>,
) -> Result<Answer, Refusal> {
    let known = state.nodes.get(&id).ok_or_else(|| Refusal::not_found(Kind::Node, id))?;
    let availability = availability.unwrap_or(known.availability);
    let mut wanted = known.labels.clone();
    wanted.extend(labels.0.iter().map(|(key, value)| (key.clone(), value.clone())));
    wanted.retain(|key, _| !labels.1.contains(key));
    if known.labels == wanted && known.availability == availability {
        return Ok(Answer::Node(known.clone()));
    }
    let mut wrong = Violations::default();
    validate_labels(&wanted, &mut wrong);
    wrong.into_result(()).map_err(Refusal::Invalid)?;
    if let Some(wanted) = version.filter(|version| *version != known.version) {
        let (name, found) = (known.name.to_string(), known.version);
        return Err(Refusal::VersionConflict { kind: Kind::Node, name, wanted, found });
    }
    state.update_node(id, |node| {
        node.labels = wanted;
        node.availability = availability;
        node.version = entry.index;
    });
    state.index.set_availability(id, availability);
    entry.changes.push(Change::Node(id));
    answer(state, id)
}

/// Forgets a node. Nobody can say any more what became of its tasks, so they are taken for gone: they have ended,
/// and hold nothing. Its subnet is never given again, so an address that one of them still uses is no other's.
pub(super) fn remove(
    state: &mut State,
    entry: &mut Entry,
    id: NodeId,
    force: bool,
) -> Result<Answer, Refusal> {
    let Some(node) = state.nodes.get(&id).cloned() else { return Ok(Answer::Done) };
    let held: Vec<TaskId> = state.tasks_on(&id).map(|task| task.id).collect();
    if node.status == NodeStatus::Ready && !held.is_empty() && !force {
        let tasks = u32::try_from(held.len()).unwrap_or(u32::MAX);
        return Err(Refusal::NodeInUse { node: node.name.clone(), status: node.status, tasks });
    }
    let reason: Arc<str> = format!("its node {} was removed from the cluster", node.name).into();
    let now = entry.now;
    for task in held {
        state.update_task(entry, task, |task| {
            end(&mut task.observed, &reason, now);
            task.observed.removed = true;
            task.special.change(|special| special.lost_since = None);
        });
    }
    if let Some(place) = state.cursors.remove(&id) {
        state.sum.remove(digest::cursor(id, place));
    }
    state.index.remove_node(&node);
    state.sum.remove(digest::node(&node));
    state.nodes.remove(&id);
    if state.level >= SEVERAL_MANAGERS {
        state.remember_removal(id, entry.index);
    }
    entry.changes.extend([Change::Node(id), Change::Assignment(id)]);
    Ok(Answer::Node(node))
}

/// It has ended, as far as managers can tell.
fn end(observed: &mut Observed, reason: &Arc<str>, now: Timestamp) {
    if !observed.state.is_terminal() {
        observed.state = TaskState::Shutdown;
        observed.since = now;
        observed.trouble.change(|trouble| trouble.reason = reason.clone());
    }
    (observed.ready, observed.health) = (false, Health::None);
    observed.trouble.change(|trouble| trouble.next_attempt = None);
}

/// The machine called `name` at `host` becomes a manager anew, in place of `replaces`, and its agent is the same node
/// as before. It has lost its disk, mostly, and with it its containers: what was heard of its tasks says nothing any
/// more, and what the agent says of those that it makes again, which it counts from one, would pass for old words. So
/// they have ended, and others take their places; what there still is of them the agent removes.
pub(super) fn begin_anew(
    state: &mut State,
    entry: &mut Entry,
    (name, host): (&NodeName, &str),
    replaces: Option<MemberId>,
) {
    let Some(node) = state.node_of_manager(name).filter(|node| state.is_node_at(node, host, replaces)) else {
        // The node of another machine goes on with what it runs.
        return;
    };
    let node = Arc::clone(node);
    let heard_of = |task: &&Arc<Task>| task.observed.attempt > 0 && !task.observed.state.is_terminal();
    let held: Vec<TaskId> = state.tasks_on(&node.id).filter(heard_of).map(|task| task.id).collect();
    let reason: Arc<str> = format!("its node {} joined anew, without what it had", node.name).into();
    let now = entry.now;
    for task in held {
        state.update_task(entry, task, |task| end(&mut task.observed, &reason, now));
    }
}

pub(super) fn open_session(
    state: &mut State,
    entry: &mut Entry,
    id: NodeId,
    description: &NodeDescription,
    manager: MemberId,
) -> Result<Answer, Refusal> {
    let known = state.nodes.get(&id).ok_or_else(|| Refusal::not_found(Kind::Node, id))?;
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
    Ok(Answer::Session { number })
}

pub(super) fn set_status(
    state: &mut State,
    entry: &mut Entry,
    id: NodeId,
    session: u64,
    status: NodeStatus,
) -> Result<Answer, Refusal> {
    let node = state.nodes.get(&id).ok_or_else(|| Refusal::not_found(Kind::Node, id))?;
    if status == NodeStatus::Unknown {
        let message = "UNKNOWN is what a node is before its first session; give DOWN or READY";
        return Err(Refusal::Invalid(Violation::new("status", message).into()));
    }
    if session != node.session || session == 0 {
        let (node, current) = (node.name.clone(), node.session);
        return Err(Refusal::StaleSession { node, sent: session, current });
    }
    if node.status != status {
        put_status(state, entry, id, status);
    }
    Ok(Answer::Done)
}

/// What the node's agent says is wrong with it.
pub(super) fn set_conditions(
    state: &mut State,
    entry: &mut Entry,
    id: NodeId,
    session: u64,
    conditions: &BTreeSet<NodeCondition>,
) -> Result<Answer, Refusal> {
    let known = state.nodes.get(&id).ok_or_else(|| Refusal::not_found(Kind::Node, id))?;
    if session != known.session {
        let (node, current) = (known.name.clone(), known.session);
        return Err(Refusal::StaleSession { node, sent: session, current });
    }
    if known.conditions == *conditions {
        return Ok(Answer::Done);
    }
    state.update_node(id, |node| {
        node.conditions.clone_from(conditions);
        node.version = entry.index;
    });
    entry.changes.push(Change::Node(id));
    Ok(Answer::Done)
}

/// Sets the status, and on every task that holds the node since when it is lost.
fn put_status(state: &mut State, entry: &mut Entry, id: NodeId, status: NodeStatus) {
    let Some(known) = state.nodes.get(&id) else { return };
    entry.changes.push(Change::Node(id));
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
        state.update_task(entry, task, |task| task.special.change(|special| special.lost_since = lost_since));
    }
}
