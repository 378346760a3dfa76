//! Events of the cluster itself and of its managers.

use std::collections::BTreeSet;

use serde_json::Value;
use warren_types::{AdmissionPolicy, MemberId, UnlockKeyId};

use super::{Comparison, EventAction, FieldChanges, ObjectEvent, action_of};
use crate::state::{Cluster, ObjectKind};

impl Comparison<'_> {
    pub(super) fn cluster(&self) -> Option<(ObjectKind, EventAction, ObjectEvent)> {
        let (before, after) = (self.before.cluster.as_ref(), self.after.cluster());
        let action = action_of(before, after)?;
        let mut changes = FieldChanges::default();
        if let (Some(before), Some(after)) = (before, after) {
            let levels = (self.before.feature_level, self.after.feature_level());
            changes.compare("featureLevel", levels.0, levels.1, u32::to_string);
            compare_settings(&mut changes, before, after);
        }
        Some((ObjectKind::Cluster, action, ObjectEvent::new("", "cluster", changes)))
    }

    pub(super) fn member(&self, id: MemberId) -> Option<(ObjectKind, EventAction, ObjectEvent)> {
        let (before, after) = (self.before.members.get(&id), self.after.member(id));
        let action = action_of(before, after)?;
        let newest = after.or(before)?;
        let mut changes = FieldChanges::default();
        if let (Some(before), Some(after)) = (before, after) {
            changes.compare("name", &before.name, &after.name, |it| it.to_string());
            changes.compare("address", &before.address, &after.address, |it| it.to_string());
            let suffrages = (before.desired_suffrage, after.desired_suffrage);
            changes.compare("suffrage", suffrages.0, suffrages.1, |it| it.as_str().to_owned());
            changes.compare("removing", before.removing, after.removing, bool::to_string);
            changes.compare("featureLevel", before.level, after.level, u32::to_string);
        }
        Some((ObjectKind::Manager, action, ObjectEvent::new(newest.manager_id, &newest.name, changes)))
    }
}

fn compare_settings(changes: &mut FieldChanges, before: &Cluster, after: &Cluster) {
    let (from, to) = (&before.settings, &after.settings);
    let replicas = (from.max_replicas_per_service, to.max_replicas_per_service);
    changes.compare("maxReplicasPerService", replicas.0, replicas.1, u32::to_string);
    let limits = (from.task_history_limit, to.task_history_limit);
    changes.compare("taskHistoryLimit", limits.0, limits.1, u32::to_string);
    changes.compare("dataPlane", from.data_plane, to.data_plane, |it| it.as_str().to_owned());
    let namespaces = (from.default_user_namespace, to.default_user_namespace);
    changes.compare("defaultUserNamespace", namespaces.0, namespaces.1, |it| it.as_str().to_owned());
    let switches = (from.no_new_privileges, to.no_new_privileges);
    changes.compare("noNewPrivileges", switches.0, switches.1, bool::to_string);
    let lifetimes = (from.node_certificate_lifetime, to.node_certificate_lifetime);
    changes.compare("nodeCertificateLifetime", lifetimes.0, lifetimes.1, |it| format!("{it:?}"));
    let ranges = |cluster: &Cluster| {
        let ranges: Vec<String> = cluster.ranges.iter().map(ToString::to_string).collect();
        ranges.join(", ")
    };
    changes.compare("ranges", ranges(before), ranges(after), String::clone);
    let phase = |cluster: &Cluster| {
        cluster.ca_rotation.as_ref().map_or("", |rotation| rotation.phase.as_str()).to_owned()
    };
    changes.compare("caRotation", phase(before), phase(after), String::clone);
    if from.admission_policy != to.admission_policy {
        compare_policies(changes, &from.admission_policy, &to.admission_policy);
    }
    let phase = |cluster: &Cluster| {
        cluster.key_rotation.as_ref().map_or("", |rotation| rotation.phase.as_str()).to_owned()
    };
    changes.compare("keyRotation", phase(before), phase(after), String::clone);
    let unlock_key = |cluster: &Cluster| cluster.unlock_key.as_ref().map(|key| key.id);
    let shown = |id: &Option<UnlockKeyId>| id.map_or("off".to_owned(), |id| format!("on, unlock key {id}"));
    changes.compare("autolock", unlock_key(before), unlock_key(after), shown);
    let (from, to) = (&from.verification, &to.verification);
    changes.compare("verification.enabled", from.enabled, to.enabled, bool::to_string);
    changes.compare("verification.removeAfter", from.remove_after, to.remove_after, u32::to_string);
    changes.compare("verification.timeout", from.timeout, to.timeout, |it| format!("{it:?}"));
    // A check may contain a command of any length.
    let names = |settings: &warren_types::VerificationSettings| {
        let names: Vec<String> = settings.checks.iter().map(|check| check.name.to_string()).collect();
        names.join(", ")
    };
    if from.checks != to.checks {
        changes.add("verification.checks", names(from), names(to));
    }
}

/// Adds the rules that differ, as `admissionPolicy.operator.RULE` and `admissionPolicy.signatures`, with their values
/// as JSON.
fn compare_policies(changes: &mut FieldChanges, from: &AdmissionPolicy, to: &AdmissionPolicy) {
    let json = |policy: &AdmissionPolicy| serde_json::to_string(&policy.signatures).unwrap_or_default();
    if from.signatures != to.signatures {
        changes.add("admissionPolicy.signatures", json(from), json(to));
    }
    let rules = |policy: &AdmissionPolicy| match serde_json::to_value(&policy.operator) {
        Ok(Value::Object(rules)) => rules,
        _ => serde_json::Map::new(),
    };
    let (from, to) = (rules(from), rules(to));
    for rule in from.keys().chain(to.keys()).collect::<BTreeSet<_>>() {
        let (from, to) = (from.get(rule), to.get(rule));
        let text = |value: Option<&Value>| value.map(Value::to_string).unwrap_or_default();
        if from != to {
            changes.add(format!("admissionPolicy.operator.{rule}"), text(from), text(to));
        }
    }
}
