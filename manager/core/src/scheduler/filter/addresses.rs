//! Rejects nodes whose subnet has no free address.

use super::{Filter, FilterExplanation, NodeInfo, TaskGroup};
use crate::state::subnet_capacity;

pub(super) struct AddressFilter;

impl Filter for AddressFilter {
    fn admits(&self, _: &TaskGroup<'_>, node: &NodeInfo<'_>) -> bool {
        node.allocation.tasks < subnet_capacity(node.node.subnet)
    }

    fn explain(&self, _: &TaskGroup<'_>, refused: &[&NodeInfo<'_>]) -> Vec<FilterExplanation> {
        let most = refused.iter().map(|node| subnet_capacity(node.node.subnet)).max().unwrap_or(0);
        let rest = format!("no free address (all {most} of the subnet are held)");
        FilterExplanation::new(refused.len(), "has", "have", rest).into_iter().collect()
    }
}
