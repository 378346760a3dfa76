//! Rejects nodes with a condition that blocks scheduling.

use std::collections::BTreeMap;

use warren_types::NodeCondition;

use super::{Filter, FilterExplanation, NodeInfo, TaskGroup};

pub(super) struct ConditionFilter;

/// The first condition of the node that keeps the group away. Scarce disk or memory does not keep a bootstrap service
/// away: what frees them may be one.
fn first_condition(group: &TaskGroup<'_>, node: &NodeInfo<'_>) -> Option<NodeCondition> {
    let blocks = |condition: &NodeCondition| match condition {
        NodeCondition::DiskPressure | NodeCondition::MemoryPressure => !group.service.spec.bootstrap,
        condition => condition.blocks_scheduling(),
    };
    node.node.conditions.iter().copied().find(blocks)
}

impl Filter for ConditionFilter {
    fn admits(&self, group: &TaskGroup<'_>, node: &NodeInfo<'_>) -> bool {
        first_condition(group, node).is_none()
    }

    /// A node is counted under the first of its conditions.
    fn explain(&self, group: &TaskGroup<'_>, refused: &[&NodeInfo<'_>]) -> Vec<FilterExplanation> {
        let mut counts: BTreeMap<NodeCondition, usize> = BTreeMap::new();
        for condition in refused.iter().filter_map(|node| first_condition(group, node)) {
            *counts.entry(condition).or_default() += 1;
        }
        counts.into_iter().filter_map(|(condition, nodes)| phrase(condition, nodes)).collect()
    }

    fn remedy(&self, _: &TaskGroup<'_>, refused: &[&NodeInfo<'_>]) -> String {
        let name = refused.first().map_or("NODE", |node| node.node.name.as_str());
        format!("see what is wrong on the node: `warren why node/{name}`")
    }
}

fn phrase(condition: NodeCondition, nodes: usize) -> Option<FilterExplanation> {
    let (singular, plural, rest) = match condition {
        NodeCondition::RuntimeUnavailable => ("has", "have", "containerd unavailable"),
        NodeCondition::NetworkUnavailable => ("has", "have", "no working network"),
        NodeCondition::DiskPressure => ("is", "are", "under disk pressure"),
        NodeCondition::MemoryPressure => ("is", "are", "under memory pressure"),
        NodeCondition::ClockSkew => ("has", "have", "a wrong clock"),
        NodeCondition::RangeConflict => ("has", "have", "routes for addresses of the cluster"),
        NodeCondition::NetworkDegraded => ("has", "have", "a network that works only in part"),
        NodeCondition::PeersUnreachable => ("reaches", "reach", "not all nodes"),
    };
    FilterExplanation::new(nodes, singular, plural, rest)
}
