//! Which tasks a service may have on a node, by the user's settings.

use std::net::SocketAddr;

use warren_types::spec::ConstraintKey;
use warren_types::{Availability, Constraint, Node, NodeStatus, Placement, Service};

/// Which tasks a service may have on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NodeEligibility {
    /// No task: existing ones are moved.
    Excluded,
    /// Existing tasks stay, no new ones.
    KeepOnly,
    /// New tasks are allowed.
    Eligible,
}

/// Which tasks the service may have on the node by its placement and the node's availability. Free resources
/// are not checked.
pub(crate) fn eligibility(service: &Service, node: &Node) -> NodeEligibility {
    if node.availability == Availability::Drain || !meets_constraints(&service.revision.placement, node) {
        return NodeEligibility::Excluded;
    }
    match (node.status, node.availability) {
        (NodeStatus::Ready, Availability::Active) => NodeEligibility::Eligible,
        _ => NodeEligibility::KeepOnly,
    }
}

/// The node meets all constraints.
pub(crate) fn meets_constraints(placement: &Placement, node: &Node) -> bool {
    placement.constraints.iter().all(|constraint| meets_constraint(constraint, node))
}

/// The node meets the constraint.
pub(crate) fn meets_constraint(constraint: &Constraint, node: &Node) -> bool {
    let test = |value: Option<&str>| constraint.operator.matches(value);
    match &constraint.key {
        ConstraintKey::Id => test(Some(&node.id.to_string())),
        ConstraintKey::Name => test(Some(node.name.as_str())),
        ConstraintKey::Ip => test(Some(&strip_port(&node.description.address))),
        ConstraintKey::Role => test(Some(node.role.as_str())),
        ConstraintKey::Arch => test(Some(&node.description.architecture)),
        ConstraintKey::Os => test(Some(&node.description.os)),
        ConstraintKey::Label(key) => test(node.label(key)),
    }
}

/// An address without its port, if it has one.
fn strip_port(address: &str) -> String {
    address.parse::<SocketAddr>().map_or_else(|_| address.to_string(), |address| address.ip().to_string())
}
