//! Rejects nodes that are not READY.

use warren_types::NodeStatus;

use super::{Filter, FilterExplanation, NodeInfo, TaskGroup};

pub(super) struct StatusFilter;

impl Filter for StatusFilter {
    fn admits(&self, _: &TaskGroup<'_>, node: &NodeInfo<'_>) -> bool {
        node.node.status == NodeStatus::Ready
    }

    fn explain(&self, _: &TaskGroup<'_>, refused: &[&NodeInfo<'_>]) -> Vec<FilterExplanation> {
        let count = |status| refused.iter().filter(|node| node.node.status == status).count();
        let down = FilterExplanation::new(count(NodeStatus::Down), "is", "are", "down");
        let silent =
            FilterExplanation::new(count(NodeStatus::Unknown), "has", "have", "joined but not connected yet");
        down.into_iter().chain(silent).collect()
    }

    fn remedy(&self, _: &TaskGroup<'_>, refused: &[&NodeInfo<'_>]) -> String {
        let name = refused.first().map_or("NODE", |node| node.node.name.as_str());
        format!("start the machine and its agent again: `warren why node/{name}`")
    }
}
