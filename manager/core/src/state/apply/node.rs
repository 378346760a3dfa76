//! Commands on nodes.

use std::sync::Arc;

use warren_types::{Node, NodeDescription, NodeId, NodeName, NodeStatus, TaskId, Timestamp, Violation};

use super::Entry;
use crate::state::{Answer, Change, Kind, Refusal, State, digest};

pub(super) fn register(
    state: &mut State,
    entry: &mut Entry,
    id: NodeId,
    name: &NodeName,
    description: &NodeDescription,
) -> Result<Answer, Refusal> {
    if state.index.node_names.get(name).is_some_and(|owner| *owner != id) {
        return Err(Refusal::AlreadyExists { kind: Kind::Node, name: name.to_string() });
    }
    let Some(known) = state.nodes.get(&id) else { return add(state, entry, id, name, description) };
    if known.name == *name && known.description == *description {
        return Ok(Answer::Node { id, version: known.version });
    }
    state.index.node_names.remove(&known.name);
    state.index.node_names.insert(name.clone(), id);
    state.update_node(id, |node| {
        node.name = name.clone();
        node.description = description.clone();
        node.version = entry.index;
    });
    entry.changes.push(Change::Node(id));
    Ok(Answer::Node { id, version: entry.index })
}

fn add(
    state: &mut State,
    entry: &mut Entry,
    id: NodeId,
    name: &NodeName,
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
        description: description.clone(),
        subnet,
        status: NodeStatus::Unknown,
        status_since: entry.now,
        session: 0,
        assignment: entry.index,
    };
    state.index.add_node(&node);
    state.sum.add(digest::node(&node));
    state.nodes.insert(id, Arc::new(node));
    entry.changes.push(Change::Node(id));
    Ok(Answer::Node { id, version: entry.index })
}

pub(super) fn open_session(
    state: &mut State,
    entry: &mut Entry,
    id: NodeId,
    description: &NodeDescription,
) -> Result<Answer, Refusal> {
    let known = state.nodes.get(&id).ok_or_else(|| Refusal::not_found(Kind::Node, id))?;
    let number = known.session.saturating_add(1);
    state.update_node(id, |node| {
        node.session = number;
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
        state.tasks_on(&id).filter(|t| t.lost_since != lost_since).map(|t| t.id).collect();
    for task in held {
        state.update_task(entry, task, |task| task.lost_since = lost_since);
    }
}
