//! Assigns tasks to nodes. Plans are made on a snapshot, so each assignment is checked again here; addresses
//! are allocated and volumes are bound to nodes only here, so two plans can never do it twice.

use std::net::Ipv4Addr;

use warren_types::{Availability, Node, NodeId, NodeStatus, Task, TaskId, VolumeName};

use super::{ApplyContext, address, volume};
use crate::state::{
    CommandResponse, MAX_NODE_SUBNETS, State, StateChange, digest, has_label_value, tolerates_taints,
};

pub(super) fn assign(
    state: &mut State,
    entry: &mut ApplyContext,
    placements: &[(TaskId, NodeId)],
) -> CommandResponse {
    for (task, node) in placements.iter().copied() {
        let Some(volumes) = check(state, entry, task, node) else { continue };
        let Some((address, cursor)) = assign_address(state, entry, node) else { continue };
        if let Some(before) = state.address_cursors.insert(node, cursor) {
            state.digest_sum.remove(digest::cursor(node, before));
        }
        state.digest_sum.add(digest::cursor(node, cursor));
        volume::bind(state, entry, &volumes, node);
        state.update_task(entry, task, |task| {
            task.node = Some(node);
            task.address = Some(address);
            task.rare.update(|special| special.volumes = volumes);
        });
        state.bump_assignment(entry, node);
    }
    CommandResponse::Done
}

/// A free address of the node, which gets a further subnet if it has none left, and its next address cursor.
fn assign_address(state: &mut State, entry: &mut ApplyContext, id: NodeId) -> Option<(Ipv4Addr, u32)> {
    let node = state.nodes.get(&id)?.clone();
    if let Some(free) = address::free_task_address(state, &node) {
        return Some(free);
    }
    if node.subnets.len() >= MAX_NODE_SUBNETS {
        return None;
    }
    let (subnet, cursor) = address::free_subnet(state).ok()?;
    state.subnet_cursor = cursor;
    state.update_node(id, |node| node.subnets.push(subnet));
    state.index.add_subnet(id, subnet);
    // The other nodes are told of it.
    entry.changes.push(StateChange::Node(id));
    let node = state.nodes.get(&id)?.clone();
    address::free_task_address(state, &node)
}

/// The volumes that the task gets on the node; `None` if it cannot go there any more.
fn check(state: &State, entry: &ApplyContext, task: TaskId, node: NodeId) -> Option<Vec<VolumeName>> {
    let task = state.tasks.get(&task)?;
    let node = state.nodes.get(&node)?;
    let held_back = task.not_before().is_some_and(|time| time > entry.now);
    let wants_place = task.is_live() && task.node.is_none() && !held_back;
    let takes_tasks = node.status == NodeStatus::Ready && node.availability == Availability::Active;
    let service = state.services.get(&task.id.service);
    let value = task.label_value().map(AsRef::as_ref);
    let is_tolerated =
        service.is_none_or(|it| tolerates_taints(it, node) && has_label_value(it, value, node));
    let may_be_here = task.bound_to().is_none_or(|bound| bound == node.id);
    if !wants_place || !takes_tasks || !is_tolerated || !may_be_here || !has_capacity(state, task, node) {
        return None;
    }
    state.resolve_volumes(task, node).ok()
}

fn has_capacity(state: &State, task: &Task, node: &Node) -> bool {
    let foreign = |opener| opener != task.id.service;
    let mut ports = task.revision.ports.iter();
    let most = state.services.get(&task.id.service).and_then(|it| it.revision.placement.max_per_node);
    let crowded = |most| state.count_other_tasks_on(task, node.id) >= most;
    !most.is_some_and(crowded)
        && state.node_allocation(&node.id).fits(node, task.revision.task.reservations)
        && !ports.any(|port| state.index.port_owner(node.id, port).is_some_and(foreign))
}
