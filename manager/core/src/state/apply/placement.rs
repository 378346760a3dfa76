//! Giving tasks to nodes. Plans are made on a snapshot, so each placement is looked at again here;
//! addresses are given out and volumes are bound to nodes only here, so two plans can never do it twice.

use std::net::Ipv4Addr;

use warren_types::{Availability, Node, NodeId, NodeStatus, Task, TaskId, VolumeName};

use super::{Entry, volume};
use crate::state::{Answer, State, address, digest};

pub(super) fn assign(state: &mut State, entry: &mut Entry, placements: &[(TaskId, NodeId)]) -> Answer {
    for (task, node) in placements.iter().copied() {
        let Some(Place { address, cursor, volumes }) = place(state, entry, task, node) else { continue };
        if let Some(before) = state.cursors.insert(node, cursor) {
            state.sum.remove(digest::cursor(node, before));
        }
        state.sum.add(digest::cursor(node, cursor));
        volume::settle(state, entry, &volumes, node);
        state.update_task(entry, task, |task| {
            task.node = Some(node);
            task.address = Some(address);
            task.special.change(|special| special.volumes = volumes);
        });
        state.touch_assignment(entry, node);
    }
    Answer::Done
}

/// What a task gets on a node.
struct Place {
    address: Ipv4Addr,
    /// The node's next address cursor.
    cursor: u32,
    volumes: Vec<VolumeName>,
}

/// What the task gets on the node; `None` if it cannot go there any more.
fn place(state: &State, entry: &Entry, task: TaskId, node: NodeId) -> Option<Place> {
    let task = state.tasks.get(&task)?;
    let node = state.nodes.get(&node)?;
    let held_back = task.not_before().is_some_and(|time| time > entry.now);
    let wants_place = task.is_live() && task.node.is_none() && !held_back;
    let takes_tasks = node.status == NodeStatus::Ready && node.availability == Availability::Active;
    let may_be_here = task.bound_to().is_none_or(|bound| bound == node.id);
    if !wants_place || !takes_tasks || !may_be_here || !has_room(state, task, node) {
        return None;
    }
    let cursor = state.cursors.get(&node.id).copied().unwrap_or(0);
    let volumes = state.volumes_at(task, node).ok()?;
    let taken = |address: Ipv4Addr| state.index.addresses.get(address.into()).is_some();
    let (address, cursor) = address::next_free(node.subnet, cursor, taken)?;
    Some(Place { address, cursor, volumes })
}

fn has_room(state: &State, task: &Task, node: &Node) -> bool {
    let foreign = |opener| opener != task.id.service;
    let mut ports = task.revision.ports.iter();
    let most = state.services.get(&task.id.service).and_then(|it| it.revision.placement.max_per_node);
    let crowded = |most| state.crowd(task, node.id) >= most;
    !most.is_some_and(crowded)
        && state.usage(&node.id).fits(node, task.revision.task.reservations)
        && !ports.any(|port| state.index.opener(node.id, port).is_some_and(foreign))
}
