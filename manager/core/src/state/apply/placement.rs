//! Assigns tasks to nodes. Plans are made on a snapshot, so each assignment is checked again here; addresses
//! are allocated and volumes are bound to nodes only here, so two plans can never do it twice.

use std::net::Ipv4Addr;

use warren_types::{Availability, Node, NodeId, NodeStatus, Task, TaskId, VolumeName};

use super::{ApplyContext, volume};
use crate::state::{CommandResponse, State, address, digest};

pub(super) fn assign(
    state: &mut State,
    entry: &mut ApplyContext,
    placements: &[(TaskId, NodeId)],
) -> CommandResponse {
    for (task, node) in placements.iter().copied() {
        let Some(Allocation { address, cursor, volumes }) = allocate(state, entry, task, node) else {
            continue;
        };
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

/// What a task gets on a node.
struct Allocation {
    address: Ipv4Addr,
    /// The node's next address cursor.
    cursor: u32,
    volumes: Vec<VolumeName>,
}

/// What the task gets on the node; `None` if it cannot go there any more.
fn allocate(state: &State, entry: &ApplyContext, task: TaskId, node: NodeId) -> Option<Allocation> {
    let task = state.tasks.get(&task)?;
    let node = state.nodes.get(&node)?;
    let held_back = task.not_before().is_some_and(|time| time > entry.now);
    let wants_place = task.is_live() && task.node.is_none() && !held_back;
    let takes_tasks = node.status == NodeStatus::Ready && node.availability == Availability::Active;
    let may_be_here = task.bound_to().is_none_or(|bound| bound == node.id);
    if !wants_place || !takes_tasks || !may_be_here || !has_capacity(state, task, node) {
        return None;
    }
    let cursor = state.address_cursors.get(&node.id).copied().unwrap_or(0);
    let volumes = state.resolve_volumes(task, node).ok()?;
    let taken = |address: Ipv4Addr| state.index.tasks_by_address.get(address.into()).is_some();
    let (address, cursor) = address::next_free(node.subnet, cursor, taken)?;
    Some(Allocation { address, cursor, volumes })
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
