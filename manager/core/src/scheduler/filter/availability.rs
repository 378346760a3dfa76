//! Rejects nodes that are drained or paused.

use warren_types::Availability;

use super::{Filter, FilterExplanation, NodeInfo, TaskGroup};

pub(super) struct AvailabilityFilter;

impl Filter for AvailabilityFilter {
    fn admits(&self, _: &TaskGroup<'_>, node: &NodeInfo<'_>) -> bool {
        node.node.availability == Availability::Active
    }

    fn explain(&self, _: &TaskGroup<'_>, refused: &[&NodeInfo<'_>]) -> Vec<FilterExplanation> {
        let count = |desired| refused.iter().filter(|node| node.node.availability == desired).count();
        let drained = FilterExplanation::new(count(Availability::Drain), "is", "are", "drained");
        let paused = FilterExplanation::new(count(Availability::Pause), "is", "are", "paused");
        drained.into_iter().chain(paused).collect()
    }

    fn remedy(&self, _: &TaskGroup<'_>, refused: &[&NodeInfo<'_>]) -> String {
        let name = refused.first().map_or("NODE", |node| node.node.name.as_str());
        format!("allow tasks again: `warren node update {name} --availability active`")
    }
}
