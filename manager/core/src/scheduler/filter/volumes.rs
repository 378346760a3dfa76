//! A task goes only where its volumes are.

use std::collections::BTreeMap;

use warren_types::{Availability, Node, NodeStatus};

use super::{Candidate, Filter, Group, Phrase};
use crate::state::VolumeFault;

pub(super) struct Volumes;

impl Filter for Volumes {
    fn admits(&self, group: &Group<'_>, node: &Candidate<'_>) -> bool {
        group.volumes.fault(group.state, node.node).is_none()
    }

    /// A node is counted under the first volume that keeps the tasks from it.
    fn explain(&self, group: &Group<'_>, refused: &[&Candidate<'_>]) -> Vec<Phrase> {
        let mut counts: BTreeMap<VolumeFault, usize> = BTreeMap::new();
        for fault in refused.iter().filter_map(|node| group.volumes.fault(group.state, node.node)) {
            *counts.entry(fault).or_default() += 1;
        }
        counts.into_iter().filter_map(|(fault, nodes)| phrase(group, &fault, nodes)).collect()
    }
}

fn phrase(group: &Group<'_>, fault: &VolumeFault, nodes: usize) -> Option<Phrase> {
    match fault {
        VolumeFault::Elsewhere { volume, node } => {
            let node = group.state.node(node)?;
            let standing = standing(node).map(|standing| format!(" ({standing})")).unwrap_or_default();
            let rest = format!("the volume {volume}, which is on {}{standing}", node.name);
            Phrase::of(nodes, "does not have", "do not have", rest)
        }
        VolumeFault::Lost { volume } => {
            let rest = format!(
                "its data: the volume {volume} is on a node that was removed; `warren volume rm {volume}` forgets it"
            );
            Phrase::of(nodes, "does not have", "do not have", rest)
        }
        VolumeFault::Removing { volume } => {
            let rest = format!("have the volume {volume}, which is being removed");
            Phrase::of(nodes, "cannot", "cannot", rest)
        }
        VolumeFault::Unnamed { template, fault } => {
            Phrase::of(nodes, "cannot", "cannot", format!("have the volume {template}: {fault}"))
        }
    }
}

/// Why a task cannot go to the node that has its volume; `None` when that does not say it.
fn standing(node: &Node) -> Option<&'static str> {
    let unfit = || node.conditions.iter().find(|condition| condition.keeps_tasks_away());
    match (node.status, node.availability) {
        (NodeStatus::Down | NodeStatus::Unknown, _) => Some(node.status.as_str()),
        (NodeStatus::Ready, Availability::Drain) => Some("drained"),
        (NodeStatus::Ready, Availability::Pause) => Some("paused"),
        (NodeStatus::Ready, Availability::Active) => unfit().map(|condition| condition.as_str()),
    }
}
