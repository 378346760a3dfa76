//! A node with which something is wrong gets no tasks.

use std::collections::BTreeMap;

use warren_types::NodeCondition;

use super::{Candidate, Filter, Group, Phrase};

pub(super) struct Conditions;

fn worst(node: &Candidate<'_>) -> Option<NodeCondition> {
    node.node.conditions.iter().copied().find(|condition| condition.keeps_tasks_away())
}

impl Filter for Conditions {
    fn admits(&self, _: &Group<'_>, node: &Candidate<'_>) -> bool {
        worst(node).is_none()
    }

    /// A node is counted under the first of its conditions.
    fn explain(&self, _: &Group<'_>, refused: &[&Candidate<'_>]) -> Vec<Phrase> {
        let mut counts: BTreeMap<NodeCondition, usize> = BTreeMap::new();
        for condition in refused.iter().filter_map(|node| worst(node)) {
            *counts.entry(condition).or_default() += 1;
        }
        counts.into_iter().filter_map(|(condition, nodes)| phrase(condition, nodes)).collect()
    }
}

fn phrase(condition: NodeCondition, nodes: usize) -> Option<Phrase> {
    let (singular, plural, rest) = match condition {
        NodeCondition::RuntimeDown => ("has", "have", "containerd down"),
        NodeCondition::NetworkBroken => ("has", "have", "a broken network"),
        NodeCondition::DiskLow => ("is", "are", "low on disk"),
        NodeCondition::MemoryPressure => ("is", "are", "under memory pressure"),
        NodeCondition::ClockOff => ("has", "have", "a wrong clock"),
    };
    Phrase::of(nodes, singular, plural, rest)
}
