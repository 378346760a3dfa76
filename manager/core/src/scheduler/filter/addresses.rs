//! Rejects nodes without a free address, once there is no further subnet for them.

use super::{Filter, FilterExplanation, NodeInfo, TaskGroup};

pub(super) struct AddressFilter;

impl Filter for AddressFilter {
    fn admits(&self, group: &TaskGroup<'_>, node: &NodeInfo<'_>) -> bool {
        let held = node.allocation.tasks.saturating_add(node.allocation.withdrawn);
        held < group.state.address_capacity(node.node)
    }

    fn explain(&self, group: &TaskGroup<'_>, refused: &[&NodeInfo<'_>]) -> Vec<FilterExplanation> {
        let most = refused.iter().map(|node| group.state.address_capacity(node.node)).max().unwrap_or(0);
        let rest = format!(
            "no free address (all {most} of its subnets are held or were until shortly ago, and it gets no further \
             subnet)"
        );
        FilterExplanation::new(refused.len(), "has", "have", rest).into_iter().collect()
    }

    fn remedy(&self, _: &TaskGroup<'_>, _: &[&NodeInfo<'_>]) -> String {
        "wait two minutes if tasks ended just now; else add nodes, or `warren cluster update --range-add CIDR`".into()
    }
}
