//! Which nodes are not suitable for a task, one reason per file.

mod addresses;
mod availability;
mod bootstrap;
mod conditions;
mod constraints;
mod host_ports;
mod max_per_node;
mod resources;
mod status;
mod taints;
mod volumes;

use super::TaskGroup;
use super::view::{NodeInfo, NodeSet};

/// The filters, cheapest first. A node is counted under the first filter that rejects it, so volumes come
/// before all: the node of the data matters more than the problems of a node that does not have it.
///
/// A limit that must hold even if the state changes between plan and apply, like memory, must also be checked
/// when an assignment is applied (`state/apply/placement.rs`); a property of the node, like a label, need not.
const FILTERS: &[&dyn Filter] = &[
    &volumes::VolumeFilter,
    &status::StatusFilter,
    &availability::AvailabilityFilter,
    &conditions::ConditionFilter,
    &constraints::ConstraintFilter,
    &taints::TaintFilter,
    &bootstrap::BootstrapFilter,
    &max_per_node::MaxPerNodeFilter,
    &resources::ResourceFilter,
    &addresses::AddressFilter,
    &host_ports::HostPortFilter,
];

/// One reason why a node is not suitable.
trait Filter: Sync {
    /// Whether a task of the group may go there. Called for every node and placement: must be cheap.
    fn admits(&self, group: &TaskGroup<'_>, node: &NodeInfo<'_>) -> bool;

    /// Describes the rejected nodes. Called only when a task cannot be placed.
    fn explain(&self, group: &TaskGroup<'_>, refused: &[&NodeInfo<'_>]) -> Vec<FilterExplanation>;

    /// What a user can do so that it admits some of the rejected nodes. Called only after [`Self::explain`].
    fn remedy(&self, group: &TaskGroup<'_>, refused: &[&NodeInfo<'_>]) -> String;
}

/// Why no node is suitable.
pub(super) struct Explanation {
    /// `0 of 5 nodes fit: 3 lack memory (need 512MiB, best has 300MiB), 2 are down`.
    pub reason: String,
    /// What would help, that for most nodes first.
    pub remedies: Vec<String>,
}

impl Explanation {
    fn new(reason: &str, remedy: &str) -> Self {
        Self { reason: reason.to_owned(), remedies: vec![remedy.to_owned()] }
    }
}

/// A number of nodes and their problem.
struct FilterExplanation {
    nodes: usize,
    /// Follows the number: `lack memory`.
    text: String,
}

impl FilterExplanation {
    /// `singular` and `plural` are the verb, `rest` what follows it. `None` for no nodes.
    fn new(nodes: usize, singular: &str, plural: &str, rest: impl std::fmt::Display) -> Option<Self> {
        let verb = if nodes == 1 { singular } else { plural };
        (nodes > 0).then(|| Self { nodes, text: format!("{verb} {rest}") })
    }
}

/// Whether every filter admits it.
pub(super) fn admits(group: &TaskGroup<'_>, node: &NodeInfo<'_>) -> bool {
    group.is_for(node.node) && FILTERS.iter().all(|filter| filter.admits(group, node))
}

/// Why no node is suitable.
pub(super) fn explain(view: &NodeSet<'_>, group: &TaskGroup<'_>) -> Explanation {
    if view.nodes.is_empty() {
        let remedy = "join a worker: `warren token create --role worker` prints the command for its machine";
        return Explanation::new("no node has joined yet", remedy);
    }
    let mut remaining: Vec<&NodeInfo<'_>> =
        view.nodes.iter().filter(|node| group.is_for(node.node)).collect();
    let total = remaining.len();
    if let (0, Some(label), Some(value)) = (total, &group.service.spec.per, group.label_value) {
        let remedy = "give the label to a node again: `warren node update NODE --label-add KEY=VALUE`";
        return Explanation::new(&format!("no node has {label}={value} any more"), remedy);
    }
    if total == 0 {
        return Explanation::new("its node was removed from the cluster", "join the node again");
    }
    let (mut phrases, mut remedies) = (Vec::new(), Vec::new());
    for filter in FILTERS {
        let (admitted, refused): (Vec<_>, Vec<_>) =
            remaining.into_iter().partition(|node| filter.admits(group, node));
        phrases.extend(filter.explain(group, &refused));
        if !refused.is_empty() {
            remedies.push((refused.len(), filter.remedy(group, &refused)));
        }
        remaining = admitted;
    }
    // The sort is stable: equal counts stay in the order of the filters.
    phrases.sort_by_key(|phrase| std::cmp::Reverse(phrase.nodes));
    let phrases: Vec<_> = phrases.iter().map(|phrase| format!("{} {}", phrase.nodes, phrase.text)).collect();
    let reason = format!("{} of {total} nodes fit: {}", remaining.len(), phrases.join(", "));
    remedies.sort_by_key(|(nodes, _)| std::cmp::Reverse(*nodes));
    Explanation { reason, remedies: remedies.into_iter().map(|(_, remedy)| remedy).collect() }
}
