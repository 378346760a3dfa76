//! Nodes.

use warren_types::{
    Availability, Bytes, NodeCondition, NodeDescription, NodeRole, NodeStatus, Resources, Violations,
};

use super::fields::{FieldReader, unknown_enum_value};
use crate::v1;

impl TryFrom<v1::NodeDescription> for NodeDescription {
    type Error = Violations;

    fn try_from(wire: v1::NodeDescription) -> Result<Self, Violations> {
        let mut fields = FieldReader::default();
        let resources = wire.resources.map(Resources::from);
        let resources = resources.or_else(|| fields.add_violation("resources", "is missing"));
        let built = resources.map(|resources| Self {
            resources,
            disk: Bytes(wire.disk_bytes),
            os: wire.os,
            architecture: wire.architecture,
            kernel: wire.kernel,
            runtime: wire.runtime,
            version: wire.warren_version,
            address: wire.address,
            labels: wire.labels,
        });
        fields.finish(built)
    }
}

impl From<&NodeDescription> for v1::NodeDescription {
    fn from(description: &NodeDescription) -> Self {
        Self {
            resources: Some(description.resources.into()),
            architecture: description.architecture.clone(),
            kernel: description.kernel.clone(),
            runtime: description.runtime.clone(),
            warren_version: description.version.clone(),
            address: description.address.clone(),
            os: description.os.clone(),
            disk_bytes: description.disk.0,
            labels: description.labels.clone(),
        }
    }
}

/// The condition of a node, from its number on the wire. The violation's path is empty: nest it.
pub fn node_condition(wire: i32) -> Result<NodeCondition, Violations> {
    match v1::NodeCondition::try_from(wire) {
        Ok(v1::NodeCondition::RuntimeUnavailable) => Ok(NodeCondition::RuntimeUnavailable),
        Ok(v1::NodeCondition::NetworkUnavailable) => Ok(NodeCondition::NetworkUnavailable),
        Ok(v1::NodeCondition::DiskPressure) => Ok(NodeCondition::DiskPressure),
        Ok(v1::NodeCondition::MemoryPressure) => Ok(NodeCondition::MemoryPressure),
        Ok(v1::NodeCondition::ClockSkew) => Ok(NodeCondition::ClockSkew),
        Ok(v1::NodeCondition::Unspecified) | Err(_) => {
            Err(unknown_enum_value(wire, "a condition that this version supports"))
        }
    }
}

impl From<NodeCondition> for v1::NodeCondition {
    fn from(condition: NodeCondition) -> Self {
        match condition {
            NodeCondition::RuntimeUnavailable => Self::RuntimeUnavailable,
            NodeCondition::NetworkUnavailable => Self::NetworkUnavailable,
            NodeCondition::DiskPressure => Self::DiskPressure,
            NodeCondition::MemoryPressure => Self::MemoryPressure,
            NodeCondition::ClockSkew => Self::ClockSkew,
        }
    }
}

/// The status of a node, from its number on the wire. The violation's path is empty: nest it.
pub fn node_status(wire: i32) -> Result<NodeStatus, Violations> {
    match v1::NodeStatus::try_from(wire) {
        Ok(v1::NodeStatus::Unknown) => Ok(NodeStatus::Unknown),
        Ok(v1::NodeStatus::Ready) => Ok(NodeStatus::Ready),
        Ok(v1::NodeStatus::Down) => Ok(NodeStatus::Down),
        Err(_) => Err(unknown_enum_value(wire, "UNKNOWN, READY or DOWN")),
    }
}

impl From<NodeStatus> for v1::NodeStatus {
    fn from(status: NodeStatus) -> Self {
        match status {
            NodeStatus::Unknown => Self::Unknown,
            NodeStatus::Ready => Self::Ready,
            NodeStatus::Down => Self::Down,
        }
    }
}

/// The role of a node, from its number on the wire; as [`node_status`].
pub fn node_role(wire: i32) -> Result<NodeRole, Violations> {
    match v1::NodeRole::try_from(wire) {
        Ok(v1::NodeRole::Worker) => Ok(NodeRole::Worker),
        Ok(v1::NodeRole::Manager) => Ok(NodeRole::Manager),
        Ok(v1::NodeRole::Unspecified) | Err(_) => Err(unknown_enum_value(wire, "worker or manager")),
    }
}

impl From<NodeRole> for v1::NodeRole {
    fn from(role: NodeRole) -> Self {
        match role {
            NodeRole::Worker => Self::Worker,
            NodeRole::Manager => Self::Manager,
        }
    }
}

/// The availability of a node, from its number on the wire; as [`node_status`].
pub fn availability(wire: i32) -> Result<Availability, Violations> {
    match v1::Availability::try_from(wire) {
        Ok(v1::Availability::Active) => Ok(Availability::Active),
        Ok(v1::Availability::Pause) => Ok(Availability::Pause),
        Ok(v1::Availability::Drain) => Ok(Availability::Drain),
        Ok(v1::Availability::Unspecified) | Err(_) => Err(unknown_enum_value(wire, "active, pause or drain")),
    }
}

impl From<Availability> for v1::Availability {
    fn from(availability: Availability) -> Self {
        match availability {
            Availability::Active => Self::Active,
            Availability::Pause => Self::Pause,
            Availability::Drain => Self::Drain,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_status_round_trip() {
        for status in [NodeStatus::Unknown, NodeStatus::Ready, NodeStatus::Down] {
            assert_eq!(node_status(v1::NodeStatus::from(status).into()), Ok(status));
        }
        let wrong = node_status(3).unwrap_err().0.remove(0).message;
        assert_eq!(wrong, "value 3 is not known to this version; give UNKNOWN, READY or DOWN");
    }

    #[test]
    fn description_without_resources_is_refused() {
        let wrong = NodeDescription::try_from(v1::NodeDescription::default()).unwrap_err();
        assert_eq!(wrong.to_string(), "resources: is missing");
    }
}
