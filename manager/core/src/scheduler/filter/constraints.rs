//! Rejects nodes that do not meet the service's constraints.

use std::collections::BTreeMap;

use super::{Filter, FilterExplanation, NodeInfo, TaskGroup};
use crate::state::{meets_constraint, meets_constraints};

pub(super) struct ConstraintFilter;

impl Filter for ConstraintFilter {
    fn admits(&self, group: &TaskGroup<'_>, node: &NodeInfo<'_>) -> bool {
        meets_constraints(group.placement(), node.node)
    }

    /// A node is counted under the first constraint that it does not meet.
    fn explain(&self, group: &TaskGroup<'_>, refused: &[&NodeInfo<'_>]) -> Vec<FilterExplanation> {
        let constraints = &group.placement().constraints;
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        for node in refused {
            let unmet = constraints.iter().position(|constraint| !meets_constraint(constraint, node.node));
            unmet.into_iter().for_each(|place| *counts.entry(place).or_default() += 1);
        }
        let phrase = |(place, nodes): (usize, usize)| {
            FilterExplanation::new(
                nodes,
                "does not meet",
                "do not meet",
                format!("\"{}\"", constraints[place]),
            )
        };
        counts.into_iter().filter_map(phrase).collect()
    }

    fn remedy(&self, group: &TaskGroup<'_>, _: &[&NodeInfo<'_>]) -> String {
        let name = &group.service.spec.name;
        format!(
            "label a node (`warren node update NODE --label-add KEY=VALUE`) or drop the constraint \
             (`warren service update {name} --constraint-rm ...`)"
        )
    }
}
