//! Assignments and node settings.

use std::time::Duration;

use warren_types::{
    Assignment, AssignmentVersion, NodeSettings, RetainedLog, TaskAssignment, Violations, VolumeAssignment,
};

use super::fields::{FieldReader, optional_text};
use super::report::desired_task_state;
use super::spec::millis;
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

impl TryFrom<v1::Assignment> for Assignment {
    type Error = Violations;

    fn try_from(wire: v1::Assignment) -> Result<Self, Violations> {
        let mut fields = FieldReader::default();
        let version = wire.version.map(AssignmentVersion::from);
        let version = version.or_else(|| fields.add_violation("version", "is missing"));
        let tasks = fields.list("tasks", wire.tasks);
        let retained = fields.list("retained", wire.retained);
        let built = || Some(Self { version: version?, tasks: tasks?, retained: retained? });
        fields.finish(built())
    }
}

impl From<&Assignment> for v1::Assignment {
    fn from(assignment: &Assignment) -> Self {
        let tasks = assignment.tasks.iter().map(Into::into).collect();
        let retained = assignment.retained.iter().map(Into::into).collect();
        Self { version: Some(assignment.version.into()), tasks, retained }
    }
}

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

impl TryFrom<v1::TaskAssignment> for TaskAssignment {
    type Error = Violations;

    fn try_from(wire: v1::TaskAssignment) -> Result<Self, Violations> {
        let mut fields = FieldReader::default();
        let id = fields.parse("id", &wire.id);
        let service = fields.parse("service", &wire.service);
        let spec = fields.required("spec", wire.spec);
        let ports = fields.list("ports", wire.ports);
        let address = fields.parse("address", &wire.address);
        let desired = fields.nest("desired", desired_task_state(wire.desired));
        let digest = fields.parse_optional("digest", &wire.digest);
        let volumes = fields.list("volumes", wire.volumes);
        let built = || {
            Some(Self {
                id: id?,
                service: service?,
                slot: wire.slot,
                revision: wire.revision,
                spec: spec?,
                digest: digest?,
                ports: ports?,
                address: address?,
                desired: desired?,
                service_labels: wire.service_labels,
                volumes: volumes?,
            })
        };
        fields.finish(built())
    }
}

impl From<&TaskAssignment> for v1::TaskAssignment {
    fn from(task: &TaskAssignment) -> Self {
        Self {
            id: task.id.to_string(),
            service: task.service.to_string(),
            slot: task.slot,
            revision: task.revision,
            spec: Some((&task.spec).into()),
            ports: task.ports.iter().map(Into::into).collect(),
            address: task.address.to_string(),
            desired: v1::DesiredTaskState::from(task.desired).into(),
            digest: optional_text(task.digest.as_ref()),
            service_labels: task.service_labels.clone(),
            volumes: task.volumes.iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<v1::VolumeAssignment> for VolumeAssignment {
    type Error = Violations;

    fn try_from(wire: v1::VolumeAssignment) -> Result<Self, Violations> {
        let mut fields = FieldReader::default();
        let name = fields.parse("name", &wire.name);
        let built = || Some(Self { name: name?, options: wire.options });
        fields.finish(built())
    }
}

impl From<&VolumeAssignment> for v1::VolumeAssignment {
    fn from(volume: &VolumeAssignment) -> Self {
        Self { name: volume.name.to_string(), options: volume.options.clone() }
    }
}

impl TryFrom<v1::NodeSettings> for NodeSettings {
    type Error = Violations;

    fn try_from(wire: v1::NodeSettings) -> Result<Self, Violations> {
        let mut fields = FieldReader::default();
        let cluster = fields.parse("clusterId", &wire.cluster_id);
        let node = fields.parse("nodeId", &wire.node_id);
        let name = fields.parse("name", &wire.name);
        let subnet = fields.parse("subnet", &wire.subnet);
        let ranges = fields.parse_list("ranges", &wire.ranges);
        let heartbeat = period(&mut fields, "heartbeatMs", wire.heartbeat_ms);
        let sync = period(&mut fields, "syncMs", wire.sync_ms);
        let managers = fields.parse_list("managers", &wire.managers);
        let built = || {
            Some(Self {
                cluster: cluster?,
                node: node?,
                name: name?,
                labels: wire.labels,
                subnet: subnet?,
                ranges: ranges?,
                heartbeat: heartbeat?,
                sync: sync?,
                managers: managers?,
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
            subnet: settings.subnet.to_string(),
            ranges: settings.ranges.iter().map(ToString::to_string).collect(),
            heartbeat_ms: millis(settings.heartbeat),
            sync_ms: millis(settings.sync),
            managers: settings.managers.iter().map(ToString::to_string).collect(),
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
        let expected = ["clusterId", "nodeId", "name", "subnet", "ranges[1]", "heartbeatMs", "syncMs"];
        assert_eq!(paths(NodeSettings::try_from(wire)), expected);
    }
}
