//! What a service may have on a node, as people asked for it.

use std::net::SocketAddr;

use warren_types::spec::ConstraintKey;
use warren_types::{Availability, Constraint, Node, NodeStatus, Placement, Service};

/// What a service may have on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Claim {
    /// No task: what is there goes.
    Nothing,
    /// What is there stays, nothing comes.
    Keep,
    /// Tasks may come.
    New,
}

/// What the service may have on the node by its placement and the node's availability. Whether there is room is
/// not asked.
pub(crate) fn claim(service: &Service, node: &Node) -> Claim {
    if node.availability == Availability::Drain || !admits(&service.revision.placement, node) {
        return Claim::Nothing;
    }
    match (node.status, node.availability) {
        (NodeStatus::Ready, Availability::Active) => Claim::New,
        _ => Claim::Keep,
    }
}

/// The node fulfils all constraints.
pub(crate) fn admits(placement: &Placement, node: &Node) -> bool {
    placement.constraints.iter().all(|constraint| fulfils(constraint, node))
}

/// The node fulfils the constraint.
pub(crate) fn fulfils(constraint: &Constraint, node: &Node) -> bool {
    let test = |value: Option<&str>| constraint.test.admits(value);
    match &constraint.key {
        ConstraintKey::Id => test(Some(&node.id.to_string())),
        ConstraintKey::Name => test(Some(node.name.as_str())),
        ConstraintKey::Ip => test(Some(&host(&node.description.address))),
        ConstraintKey::Role => test(Some(node.role.as_str())),
        ConstraintKey::Arch => test(Some(&node.description.architecture)),
        ConstraintKey::Os => test(Some(&node.description.os)),
        ConstraintKey::Label(key) => test(node.label(key)),
    }
}

/// An address without its port, if it has one.
fn host(address: &str) -> String {
    address.parse::<SocketAddr>().map_or_else(|_| address.to_string(), |address| address.ip().to_string())
}
