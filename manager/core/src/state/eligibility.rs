//! Which tasks a service may have on a node, by the user's settings.

use std::net::SocketAddr;

use warren_types::spec::ConstraintKey;
use warren_types::{Availability, Constraint, Node, NodeStatus, Placement, Service, Taint, TaintEffect};

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
    let placement = &service.revision.placement;
    let is_drained = node.availability == Availability::Drain;
    if is_drained
        || !meets_constraints(placement, node)
        || has_intolerable_taint(placement, node, TaintEffect::NoExecute)
    {
        return NodeEligibility::Excluded;
    }
    match (node.status, node.availability) {
        (NodeStatus::Ready, Availability::Active)
            if !has_intolerable_taint(placement, node, TaintEffect::NoSchedule) =>
        {
            NodeEligibility::Eligible
        }
        _ => NodeEligibility::KeepOnly,
    }
}

/// The taints of the node that the placement does not tolerate.
pub(crate) fn intolerable_taints<'a>(
    placement: &Placement,
    node: &'a Node,
) -> impl Iterator<Item = &'a Taint> {
    node.taints.iter().filter(|taint| !placement.tolerates(taint))
}

fn has_intolerable_taint(placement: &Placement, node: &Node, effect: TaintEffect) -> bool {
    intolerable_taints(placement, node).any(|taint| taint.effect == effect)
}

/// No taint of the node keeps new tasks away.
pub(crate) fn tolerates_taints(placement: &Placement, node: &Node) -> bool {
    let is_preference = |taint: &Taint| taint.effect == TaintEffect::PreferNoSchedule;
    intolerable_taints(placement, node).all(is_preference)
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
        ConstraintKey::Label(key) => test(node.labels.get(key).map(String::as_str)),
        ConstraintKey::EngineLabel(key) => test(node.description.labels.get(key).map(String::as_str)),
    }
}

/// An address without its port, if it has one.
fn strip_port(address: &str) -> String {
    address.parse::<SocketAddr>().map_or_else(|_| address.to_string(), |address| address.ip().to_string())
}
