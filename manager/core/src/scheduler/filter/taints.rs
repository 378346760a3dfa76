//! Rejects nodes with a taint that the service does not tolerate.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use warren_types::{Taint, TaintEffect};

use super::{Filter, FilterExplanation, NodeInfo, TaskGroup};
use crate::state::{intolerable_taints, tolerates_taints};

/// How many taints an explanation names.
const MAX_NAMED: usize = 3;

pub(super) struct TaintFilter;

impl Filter for TaintFilter {
    fn admits(&self, group: &TaskGroup<'_>, node: &NodeInfo<'_>) -> bool {
        tolerates_taints(group.service, node.node)
    }

    /// Names the taints of most nodes.
    fn explain(&self, group: &TaskGroup<'_>, refused: &[&NodeInfo<'_>]) -> Vec<FilterExplanation> {
        let taints = refused.iter().flat_map(|node| intolerable_taints(group.service, node.node));
        let mut counts: BTreeMap<&Taint, usize> = BTreeMap::new();
        for taint in taints.filter(|taint| taint.effect != TaintEffect::PreferNoSchedule) {
            *counts.entry(taint).or_default() += 1;
        }
        let mut counts: Vec<(&Taint, usize)> = counts.into_iter().collect();
        counts.sort_by_key(|(_, nodes)| Reverse(*nodes));
        let mut named: Vec<String> =
            counts.iter().take(MAX_NAMED).map(|(taint, _)| taint.to_string()).collect();
        if let further @ 1.. = counts.len().saturating_sub(MAX_NAMED) {
            named.push(format!("{further} more"));
        }
        let taints = format!("a taint that the service does not tolerate: {}", named.join(" and "));
        FilterExplanation::new(refused.len(), "has", "have", taints).into_iter().collect()
    }

    fn remedy(&self, group: &TaskGroup<'_>, refused: &[&NodeInfo<'_>]) -> String {
        let (service, name) = (&group.service.spec.name, "NODE");
        let name = refused.first().map_or(name, |node| node.node.name.as_str());
        format!(
            "remove the taint (`warren node update {name} --taint-rm KEY`) or tolerate it (`warren service update \
             {service} --toleration-add KEY`)"
        )
    }
}
