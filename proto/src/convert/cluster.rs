//! Settings of the cluster.

use warren_types::{ClusterSettings, ClusterSettingsChange, Violation, Violations};

use super::wire_form::{WireForm, required_messages};
use crate::v1;

impl From<&ClusterSettings> for v1::ClusterSettings {
    fn from(settings: &ClusterSettings) -> Self {
        let ClusterSettings { max_replicas_per_service, task_history_limit } = *settings;
        Self {
            max_replicas_per_service: Some(max_replicas_per_service),
            task_history_limit: Some(task_history_limit),
        }
    }
}

impl From<&ClusterSettingsChange> for v1::ClusterSettings {
    fn from(change: &ClusterSettingsChange) -> Self {
        let ClusterSettingsChange { max_replicas_per_service, task_history_limit } = *change;
        Self { max_replicas_per_service, task_history_limit }
    }
}

impl From<v1::ClusterSettings> for ClusterSettingsChange {
    fn from(wire: v1::ClusterSettings) -> Self {
        let v1::ClusterSettings { max_replicas_per_service, task_history_limit } = wire;
        Self { max_replicas_per_service, task_history_limit }
    }
}

impl WireForm<v1::ClusterSettings> for ClusterSettingsChange {
    fn to_wire(&self) -> v1::ClusterSettings {
        self.into()
    }

    fn from_wire(wire: v1::ClusterSettings) -> Result<Self, Violations> {
        Ok(wire.into())
    }
}

required_messages! { ClusterSettingsChange as ClusterSettings }
