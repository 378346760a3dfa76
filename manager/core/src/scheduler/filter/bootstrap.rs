//! Rejects nodes on which a bootstrap service has not started yet, for tasks of other services.

use std::collections::BTreeMap;

use warren_types::ServiceName;

use super::{Filter, FilterExplanation, NodeInfo, TaskGroup};

pub(super) struct BootstrapFilter;

impl Filter for BootstrapFilter {
    fn admits(&self, group: &TaskGroup<'_>, node: &NodeInfo<'_>) -> bool {
        node.awaited_service.is_none() || group.service.spec.bootstrap
    }

    /// A node is counted under the first service that it waits for.
    fn explain(&self, _: &TaskGroup<'_>, refused: &[&NodeInfo<'_>]) -> Vec<FilterExplanation> {
        let mut counts: BTreeMap<&ServiceName, usize> = BTreeMap::new();
        for service in refused.iter().filter_map(|node| node.awaited_service) {
            *counts.entry(service).or_default() += 1;
        }
        let phrase = |(service, nodes): (&ServiceName, usize)| {
            FilterExplanation::new(nodes, "waits", "wait", format!("for bootstrap service \"{service}\""))
        };
        counts.into_iter().filter_map(phrase).collect()
    }

    fn remedy(&self, _: &TaskGroup<'_>, refused: &[&NodeInfo<'_>]) -> String {
        match refused.iter().find_map(|node| node.awaited_service) {
            Some(service) => format!("see what holds the bootstrap service: `warren why service/{service}`"),
            None => "see the bootstrap services with `warren service ls`".to_owned(),
        }
    }
}
