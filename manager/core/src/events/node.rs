//! Events of nodes.

use warren_types::{Node, NodeCheckOutcome, NodeId, NodeStatus, NodeVerification};

use super::{Comparison, EventAction, FieldChanges, ObjectEvent, action_of};
use crate::state::ObjectKind;

impl Comparison<'_> {
    pub(super) fn node(&self, id: &NodeId) -> Option<(ObjectKind, EventAction, ObjectEvent)> {
        let (before, after) = (self.before.nodes.get(id), self.after.node(id));
        let action = action_of(before, after)?;
        let name = after.or(before).map(|node| node.name.clone())?;
        let mut changes = FieldChanges::default();
        let mut reason = String::new();
        if let (Some(before), Some(after)) = (before, after) {
            self.compare_nodes(&mut changes, before, after);
            reason = self.node_reason(before, after);
        }
        let found = ObjectEvent { reason: reason.into(), ..ObjectEvent::new(id, name, changes) };
        Some((ObjectKind::Node, action, found))
    }

    fn compare_nodes(&self, changes: &mut FieldChanges, before: &Node, after: &Node) {
        changes.compare("name", &before.name, &after.name, |it| it.to_string());
        changes.compare("role", before.role, after.role, |it| it.as_str().to_owned());
        changes.compare("status", before.status, after.status, |it| it.as_str().to_owned());
        changes.compare("availability", before.availability, after.availability, |it| it.as_str().to_owned());
        let conditions = |node: &Node| joined(node.conditions.iter().map(|it| it.as_str()));
        changes.compare("conditions", conditions(before), conditions(after), String::clone);
        let taints = |node: &Node| joined(node.taints.iter().map(ToString::to_string));
        changes.compare("taints", taints(before), taints(after), String::clone);
        changes.compare_labels(&before.labels, &after.labels);
        let verification = |node: &Node| {
            let state = node.verification.as_deref().map(|it| it.state.as_str().to_owned());
            state.unwrap_or_default()
        };
        changes.compare("verification", verification(before), verification(after), String::clone);
        let manager = |node: &Node| {
            let member =
                node.manager.and_then(|id| self.after.member(id).or_else(|| self.before.members.get(&id)));
            member.map(|member| member.name.to_string()).unwrap_or_default()
        };
        changes.compare("manager", manager(before), manager(after), String::clone);
        changes.compare("session", before.session, after.session, u64::to_string);
        let subnets = |node: &Node| joined(node.subnets.iter().map(ToString::to_string));
        changes.compare("subnets", subnets(before), subnets(after), String::clone);
        let (from, to) = (&before.description, &after.description);
        changes.compare("version", &from.version, &to.version, |it| (*it).clone());
        changes.compare("address", &from.address, &to.address, |it| (*it).clone());
        let address = |it: &Option<std::net::Ipv4Addr>| it.map(|it| it.to_string()).unwrap_or_default();
        changes.compare("dataAddress", from.data_address, to.data_address, address);
        changes.compare("runtime", &from.runtime, &to.runtime, |it| (*it).clone());
        changes.compare("kernel", &from.kernel, &to.kernel, |it| (*it).clone());
        changes.compare("cpu", from.resources.cpu, to.resources.cpu, ToString::to_string);
        changes.compare("memory", from.resources.memory, to.resources.memory, ToString::to_string);
    }

    fn node_reason(&self, before: &Node, after: &Node) -> String {
        let went_down = before.status != NodeStatus::Down && after.status == NodeStatus::Down;
        match (&after.verification, self.after.cluster()) {
            (_, Some(cluster)) if went_down => {
                format!("no manager has heard of it for {} s", cluster.node_down_after.as_secs())
            }
            (Some(now), _) if before.verification.as_ref() != Some(now) => failed_checks(now),
            _ => String::new(),
        }
    }
}

/// `dns: no answer, disk: full`; empty if no check failed.
fn failed_checks(verification: &NodeVerification) -> String {
    let failed = verification.results.iter().filter(|result| result.outcome == NodeCheckOutcome::Failed);
    joined(failed.map(|result| format!("{}: {}", result.name, result.message)))
}

fn joined<S: Into<String>>(items: impl Iterator<Item = S>) -> String {
    items.map(Into::into).collect::<Vec<String>>().join(", ")
}
