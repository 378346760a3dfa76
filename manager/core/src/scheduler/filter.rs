//! Which nodes a task cannot go to, one reason per file.

mod addresses;
mod availability;
mod conditions;
mod constraints;
mod host_ports;
mod max_per_node;
mod resources;
mod status;
mod volumes;

use super::Group;
use super::view::{Candidate, View};

/// The filters, cheapest first. A node is counted under the first that refuses it, so volumes come before all: where
/// the data is matters more than what else is wrong with a node that does not have it.
///
/// What a filter protects must also be looked at when a placement is applied (`state/apply/placement.rs`)
/// if it must hold whatever happens between plan and application, like memory; a wish, like a constraint,
/// need not.
const FILTERS: [&dyn Filter; 9] = [
    &volumes::Volumes,
    &status::Status,
    &availability::Available,
    &conditions::Conditions,
    &constraints::Constraints,
    &max_per_node::MaxPerNode,
    &resources::FreeResources,
    &addresses::FreeAddresses,
    &host_ports::HostPorts,
];

/// One reason why a node does not fit.
trait Filter: Sync {
    /// Whether a task of the group may go there. Asked for every node and placement: must be cheap.
    fn admits(&self, group: &Group<'_>, node: &Candidate<'_>) -> bool;

    /// The refused nodes in words. Asked only when a task goes nowhere.
    fn explain(&self, group: &Group<'_>, refused: &[&Candidate<'_>]) -> Vec<Phrase>;
}

/// Some nodes, and what is wrong with them.
struct Phrase {
    nodes: usize,
    /// Follows the number: `lack memory`.
    words: String,
}

impl Phrase {
    /// `singular` and `plural` are the verb, `rest` what follows it. Nothing for no nodes.
    fn of(nodes: usize, singular: &str, plural: &str, rest: impl std::fmt::Display) -> Option<Self> {
        let verb = if nodes == 1 { singular } else { plural };
        (nodes > 0).then(|| Self { nodes, words: format!("{verb} {rest}") })
    }
}

/// Whether every filter admits it.
pub(super) fn admits(group: &Group<'_>, node: &Candidate<'_>) -> bool {
    FILTERS.iter().all(|filter| filter.admits(group, node))
}

/// Why no node fits: `0 of 5 nodes fit: 3 lack memory (need 512MiB, best has 300MiB), 2 are down`.
pub(super) fn explain(view: &View<'_>, group: &Group<'_>) -> String {
    if view.candidates.is_empty() {
        return "no node has joined yet".into();
    }
    let asked = |node: &&Candidate<'_>| group.bound_to.is_none_or(|bound| bound == node.node.id);
    let mut remaining: Vec<&Candidate<'_>> = view.candidates.iter().filter(asked).collect();
    let total = remaining.len();
    if total == 0 {
        return "the node that it is for was removed".into();
    }
    let mut phrases = Vec::new();
    for filter in FILTERS {
        let (admitted, refused): (Vec<_>, Vec<_>) =
            remaining.into_iter().partition(|node| filter.admits(group, node));
        phrases.extend(filter.explain(group, &refused));
        remaining = admitted;
    }
    // The sort is stable: equal counts stay in the order of the filters.
    phrases.sort_by_key(|phrase| std::cmp::Reverse(phrase.nodes));
    let phrases: Vec<_> = phrases.iter().map(|phrase| format!("{} {}", phrase.nodes, phrase.words)).collect();
    format!("{} of {total} nodes fit: {}", remaining.len(), phrases.join(", "))
}
