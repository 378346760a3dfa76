//! Rejects nodes that have as many tasks of the service as it allows per node.

use super::{Filter, FilterExplanation, NodeInfo, TaskGroup};

pub(super) struct MaxPerNodeFilter;

impl Filter for MaxPerNodeFilter {
    /// The task that this one replaces does not count: it is removed as soon as this one runs.
    fn admits(&self, group: &TaskGroup<'_>, node: &NodeInfo<'_>) -> bool {
        let Some(most) = group.placement().max_per_node else { return true };
        let replaced = group.predecessor_node == Some(node.node.id);
        node.live_tasks.saturating_sub(u32::from(replaced)) < most
    }

    fn explain(&self, group: &TaskGroup<'_>, refused: &[&NodeInfo<'_>]) -> Vec<FilterExplanation> {
        let most = group.placement().max_per_node.unwrap_or_default();
        let tasks = if most == 1 { "task" } else { "tasks" };
        let rest = format!("{most} {tasks} of the service already, as many as one node may have");
        FilterExplanation::new(refused.len(), "has", "have", rest).into_iter().collect()
    }

    fn remedy(&self, group: &TaskGroup<'_>, _: &[&NodeInfo<'_>]) -> String {
        let name = &group.service.spec.name;
        format!("add nodes, or `warren service update {name} --max-per-node N`")
    }
}
