//! Which nodes open the ports of a service in ingress mode.

use std::collections::BTreeSet;

use warren_types::{Constraint, Node, ServiceSpec};

use crate::state::{State, meets_constraint};

/// The numbers of these nodes; `None`: all.
pub(super) fn entry_nodes(state: &State, spec: &ServiceSpec) -> Option<BTreeSet<u16>> {
    let selected = || state.nodes().filter(|node| opens_ports(&spec.publish_on, node));
    (!spec.publish_on.is_empty()).then(|| selected().map(|node| node.number).collect())
}

/// Without a number, a node is told nothing of the network.
fn opens_ports(publish_on: &[Constraint], node: &Node) -> bool {
    node.number > 0 && publish_on.iter().all(|constraint| meets_constraint(constraint, node))
}

/// Whether the listed numbers are not right for a node, which may have had another number `before`.
pub(super) fn is_outdated(
    listed: Option<&BTreeSet<u16>>,
    spec: &ServiceSpec,
    before: Option<u16>,
    node: Option<&Node>,
) -> bool {
    let is_listed = |number: u16| listed.is_some_and(|listed| listed.contains(&number));
    let number = node.map(|node| node.number);
    let is_gone = before.is_some_and(|before| Some(before) != number && is_listed(before));
    is_gone || node.is_some_and(|node| is_listed(node.number) != opens_ports(&spec.publish_on, node))
}
