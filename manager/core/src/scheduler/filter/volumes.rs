//! Rejects nodes that do not have the task's volumes.

use std::collections::BTreeMap;

use warren_types::{Availability, Node, NodeStatus};

use super::{Filter, FilterExplanation, NodeInfo, TaskGroup};
use crate::state::VolumeFault;

pub(super) struct VolumeFilter;

impl Filter for VolumeFilter {
    fn admits(&self, group: &TaskGroup<'_>, node: &NodeInfo<'_>) -> bool {
        group.volumes.find_fault(group.state, node.node).is_none()
    }

    /// A node is counted under the first volume that keeps the tasks from it.
    fn explain(&self, group: &TaskGroup<'_>, refused: &[&NodeInfo<'_>]) -> Vec<FilterExplanation> {
        let mut counts: BTreeMap<VolumeFault, usize> = BTreeMap::new();
        for fault in refused.iter().filter_map(|node| group.volumes.find_fault(group.state, node.node)) {
            *counts.entry(fault).or_default() += 1;
        }
        counts.into_iter().filter_map(|(fault, nodes)| phrase(group, &fault, nodes)).collect()
    }

    fn remedy(&self, _: &TaskGroup<'_>, _: &[&NodeInfo<'_>]) -> String {
        "see where the data is and what its node lacks: `warren volume ls --all`, `warren why volume/NAME`"
            .into()
    }
}

fn phrase(group: &TaskGroup<'_>, fault: &VolumeFault, nodes: usize) -> Option<FilterExplanation> {
    match fault {
        VolumeFault::OnOtherNode { volume, node } => {
            let node = group.state.node(node)?;
            let standing = node_problem(node).map(|standing| format!(" ({standing})")).unwrap_or_default();
            let rest = format!("the volume {volume}, which is on {}{standing}", node.name);
            FilterExplanation::new(nodes, "does not have", "do not have", rest)
        }
        VolumeFault::Lost { volume } => {
            let rest = format!(
                "its data: the volume {volume} is on a node that was removed; delete its record \
                 with `warren volume rm {volume}`"
            );
            FilterExplanation::new(nodes, "does not have", "do not have", rest)
        }
        VolumeFault::Removing { volume } => {
            let rest = format!("have the volume {volume}, which is being removed");
            FilterExplanation::new(nodes, "cannot", "cannot", rest)
        }
        VolumeFault::Released { volume, node } => {
            let node = group.state.node(node).map_or("a removed node", |node| node.name.as_str());
            let rest = format!(
                "have the volume {volume}, which was removed and whose data is still on {node}; use it with \
                 `warren volume create {volume} --reuse` or delete it with `warren volume purge {volume}`"
            );
            FilterExplanation::new(nodes, "cannot", "cannot", rest)
        }
        VolumeFault::InvalidName { template, fault } => {
            FilterExplanation::new(nodes, "cannot", "cannot", format!("have the volume {template}: {fault}"))
        }
    }
}

/// Why a task cannot go to the node that has its volume; `None` if the node itself has no problem.
fn node_problem(node: &Node) -> Option<&'static str> {
    let unfit = || node.conditions.iter().find(|condition| condition.blocks_scheduling());
    match (node.status, node.availability) {
        (NodeStatus::Down | NodeStatus::Unknown, _) => Some(node.status.as_str()),
        (NodeStatus::Ready, Availability::Drain) => Some("drained"),
        (NodeStatus::Ready, Availability::Pause) => Some("paused"),
        (NodeStatus::Ready, Availability::Active) => unfit().map(|condition| condition.as_str()),
    }
}
