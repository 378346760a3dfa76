//! Settings of the cluster.

use warren_types::{ClusterSettings, ClusterSettingsChange, Violation, Violations};

use super::wire_form::{WireForm, read_field, required_messages};
use crate::v1;

impl From<&ClusterSettings> for v1::ClusterSettings {
    fn from(settings: &ClusterSettings) -> Self {
        let ClusterSettings { max_replicas_per_service, task_history_limit, data_plane } = *settings;
        Self {
            max_replicas_per_service: Some(max_replicas_per_service),
            task_history_limit: Some(task_history_limit),
            range_add: Vec::new(),
            data_plane: Some(data_plane.to_wire()),
        }
    }
}

impl From<&ClusterSettingsChange> for v1::ClusterSettings {
    fn from(change: &ClusterSettingsChange) -> Self {
        let ClusterSettingsChange { max_replicas_per_service, task_history_limit, data_plane, range_add } =
            change;
        Self {
            max_replicas_per_service: *max_replicas_per_service,
            task_history_limit: *task_history_limit,
            range_add: range_add.to_wire(),
            data_plane: data_plane.to_wire(),
        }
    }
}

impl WireForm<v1::ClusterSettings> for ClusterSettingsChange {
    fn to_wire(&self) -> v1::ClusterSettings {
        self.into()
    }

    fn from_wire(wire: v1::ClusterSettings) -> Result<Self, Violations> {
        let v1::ClusterSettings { max_replicas_per_service, task_history_limit, range_add, data_plane } =
            wire;
        let range_add = read_field("rangeAdd", range_add)?;
        let data_plane = read_field("dataPlane", data_plane)?;
        Ok(Self { max_replicas_per_service, task_history_limit, data_plane, range_add })
    }
}

required_messages! { ClusterSettingsChange as ClusterSettings }
