//! Which tasks a service may have on a node, by the user's settings.

use std::net::SocketAddr;

use warren_types::spec::ConstraintKey;
use warren_types::spec::UNVERIFIED_TAINT;
use warren_types::{
    Availability, Constraint, Node, NodeStatus, Placement, Service, ServiceId, Taint, TaintEffect, Task,
    TaskId,
};

use super::State;

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

impl State {
    /// Which tasks the service may have on the node by its placement and the node's availability. Free resources
    /// are not checked.
    ///
    /// A bootstrap service leaves a drained node after the tasks of all other services.
    pub(crate) fn eligibility(&self, service: &Service, node: &Node) -> NodeEligibility {
        let has_no_value =
            || service.spec.per.as_ref().is_some_and(|label| label.value_of(&node.labels).is_none());
        if !meets_constraints(&service.revision.placement, node)
            || has_intolerable_taint(service, node, TaintEffect::NoExecute)
            || has_no_value()
        {
            return NodeEligibility::Excluded;
        }
        match (node.status, node.availability) {
            (_, Availability::Drain) if service.spec.bootstrap && self.has_task_of_others(node) => {
                NodeEligibility::KeepOnly
            }
            (_, Availability::Drain) => NodeEligibility::Excluded,
            (NodeStatus::Ready, Availability::Active)
                if !has_intolerable_taint(service, node, TaintEffect::NoSchedule) =>
            {
                NodeEligibility::Eligible
            }
            _ => NodeEligibility::KeepOnly,
        }
    }

    /// Whether the service may have this one of its tasks on the node.
    pub(crate) fn task_eligibility(&self, service: &Service, task: &Task, node: &Node) -> NodeEligibility {
        match has_label_value(service, task.label_value().map(AsRef::as_ref), node) {
            true => self.eligibility(service, node),
            false => NodeEligibility::Excluded,
        }
    }

    /// Whether the node has a task of a service that is no bootstrap service.
    fn has_task_of_others(&self, node: &Node) -> bool {
        self.tasks_on(&node.id)
            .any(|task| self.service(&task.id.service).is_some_and(|it| !it.spec.bootstrap))
    }

    /// The bootstrap services that may have to leave the task's drained node because the task has changed.
    pub fn services_leaving_after(&self, task: &TaskId) -> impl Iterator<Item = ServiceId> {
        let node = self.task(task).and_then(|task| self.node(&task.node?));
        let drained = node.filter(|node| node.availability == Availability::Drain);
        let services =
            drained.into_iter().flat_map(|node| self.tasks_on(&node.id)).map(|task| task.id.service);
        services.filter(|id| self.service(id).is_some_and(|service| service.spec.bootstrap))
    }
}

/// Whether the node has the value of the service's label that the task is for. A task for no value is for all.
pub(crate) fn has_label_value(service: &Service, value: Option<&str>, node: &Node) -> bool {
    match (&service.spec.per, value) {
        (Some(label), Some(value)) => label.value_of(&node.labels) == Some(value),
        _ => true,
    }
}

/// The taints of the node that the service does not tolerate. A bootstrap service tolerates that the node is not
/// verified: what checks need may be such a service.
pub(crate) fn intolerable_taints<'a>(
    service: &'a Service,
    node: &'a Node,
) -> impl Iterator<Item = &'a Taint> {
    let is_tolerated = |taint: &Taint| {
        let is_bootstrap = service.spec.bootstrap && taint.key == UNVERIFIED_TAINT;
        is_bootstrap || service.revision.placement.tolerates(taint)
    };
    node.taints.iter().filter(move |taint| !is_tolerated(taint))
}

fn has_intolerable_taint(service: &Service, node: &Node, effect: TaintEffect) -> bool {
    intolerable_taints(service, node).any(|taint| taint.effect == effect)
}

/// No taint of the node keeps new tasks away.
pub(crate) fn tolerates_taints(service: &Service, node: &Node) -> bool {
    let is_preference = |taint: &Taint| taint.effect == TaintEffect::PreferNoSchedule;
    intolerable_taints(service, node).all(is_preference)
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
