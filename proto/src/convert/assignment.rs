//! Assignments and node settings.

use std::time::Duration;

use warren_types::{
    Assignment, AssignmentVersion, NodeSettings, RetainedLog, TaskAssignment, Violations, VolumeAssignment,
};

use super::fields::{FieldReader, millis};
use super::wire_form::{WireForm, convert_by_wire_form, field, wire_form_by_convert, wire_structs};
use crate::v1;

impl From<v1::AssignmentVersion> for AssignmentVersion {
    fn from(wire: v1::AssignmentVersion) -> Self {
        Self { incarnation: wire.incarnation, index: wire.index }
    }
}

impl From<AssignmentVersion> for v1::AssignmentVersion {
    fn from(version: AssignmentVersion) -> Self {
        Self { incarnation: version.incarnation, index: version.index }
    }
}

wire_structs! {
    Assignment as Assignment { version, tasks, retained };
    TaskAssignment as TaskAssignment {
        id, service, slot, revision, spec, ports, address, desired, digest, service_labels, volumes,
        bootstrap
    };
    VolumeAssignment as VolumeAssignment { name, options };
}
convert_by_wire_form! { Assignment TaskAssignment }
wire_form_by_convert! { RetainedLog: RetainedLog::try_from; }

impl TryFrom<v1::RetainedLog> for RetainedLog {
    type Error = Violations;

    fn try_from(wire: v1::RetainedLog) -> Result<Self, Violations> {
        let mut fields = FieldReader::default();
        let task = fields.parse("taskId", &wire.task_id);
        let limits = wire.limits.map(Into::into).unwrap_or_default();
        let built = || Some(Self { task: task?, slot: wire.slot, limits });
        fields.finish(built())
    }
}

impl From<&RetainedLog> for v1::RetainedLog {
    fn from(log: &RetainedLog) -> Self {
        Self { task_id: log.task.to_string(), slot: log.slot, limits: Some(log.limits.into()) }
    }
}

impl TryFrom<v1::NodeSettings> for NodeSettings {
    type Error = Violations;

    fn try_from(wire: v1::NodeSettings) -> Result<Self, Violations> {
        let mut fields = FieldReader::default();
        let cluster = fields.parse("clusterId", &wire.cluster_id);
        let node = fields.parse("nodeId", &wire.node_id);
        let name = fields.parse("name", &wire.name);
        let number = field(&mut fields, "number", WireForm::from_wire(wire.number));
        let subnets = match wire.subnets.is_empty() {
            true => fields.add_violation("subnets", "is empty; a node has at least one"),
            false => fields.parse_list("subnets", &wire.subnets),
        };
        let ranges = fields.parse_list("ranges", &wire.ranges);
        let data_plane = field(&mut fields, "dataPlane", WireForm::from_wire(wire.data_plane));
        let heartbeat = period(&mut fields, "heartbeatMs", wire.heartbeat_ms);
        let sync = period(&mut fields, "syncMs", wire.sync_ms);
        let managers = fields.parse_list("managers", &wire.managers);
        let authority = field(&mut fields, "authority", WireForm::from_wire(wire.authority));
        let revoked_managers = fields.parse_list("revokedManagers", &wire.revoked_managers);
        let built = || {
            Some(Self {
                cluster: cluster?,
                node: node?,
                name: name?,
                labels: wire.labels,
                number: number?,
                subnets: subnets?,
                ranges: ranges?,
                data_plane: data_plane?,
                heartbeat: heartbeat?,
                sync: sync?,
                managers: managers?,
                authority: authority?,
                revoked_managers: revoked_managers?,
            })
        };
        fields.finish(built())
    }
}

/// A period of zero would make the worker spin.
fn period(fields: &mut FieldReader, path: &str, wire: u64) -> Option<Duration> {
    match wire {
        0 => fields.add_violation(path, "is missing; a period has at least one millisecond"),
        _ => Some(Duration::from_millis(wire)),
    }
}

impl From<&NodeSettings> for v1::NodeSettings {
    fn from(settings: &NodeSettings) -> Self {
        Self {
            cluster_id: settings.cluster.to_string(),
            node_id: settings.node.to_string(),
            name: settings.name.to_string(),
            labels: settings.labels.clone(),
            number: settings.number.to_wire(),
            subnets: settings.subnets.to_wire(),
            ranges: settings.ranges.iter().map(ToString::to_string).collect(),
            data_plane: settings.data_plane.to_wire(),
            heartbeat_ms: millis(settings.heartbeat),
            sync_ms: millis(settings.sync),
            managers: settings.managers.iter().map(ToString::to_string).collect(),
            authority: settings.authority.to_wire(),
            revoked_managers: settings.revoked_managers.iter().map(ToString::to_string).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths<T: std::fmt::Debug>(result: Result<T, Violations>) -> Vec<String> {
        result.unwrap_err().0.into_iter().map(|v| v.path).collect()
    }

    #[test]
    fn assignment_without_version_is_refused() {
        assert_eq!(paths(Assignment::try_from(v1::Assignment::default())), ["version"]);
    }

    #[test]
    fn task_violation_has_list_index() {
        let wire = v1::Assignment {
            version: Some(v1::AssignmentVersion::default()),
            tasks: vec![Default::default()],
            retained: Vec::new(),
        };
        let fields = ["id", "service", "spec", "address", "desired"].map(|field| format!("tasks[0].{field}"));
        assert_eq!(paths(Assignment::try_from(wire)), fields);
    }

    #[test]
    fn invalid_settings_name_each_field() {
        let wire = v1::NodeSettings { ranges: vec!["10.0.0.0/8".into(), "x".into()], ..Default::default() };
        let expected =
            ["clusterId", "nodeId", "name", "number", "subnets", "ranges[1]", "heartbeatMs", "syncMs"];
        assert_eq!(paths(NodeSettings::try_from(wire)), expected);
    }
}
