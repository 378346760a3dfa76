//! Machines with an agent.

use warren_types::{NodeDescription, NodeStatus, Resources, Violations};

use super::fields::{Fields, unknown_value};
use crate::v1;

impl TryFrom<v1::NodeDescription> for NodeDescription {
    type Error = Violations;

    fn try_from(wire: v1::NodeDescription) -> Result<Self, Violations> {
        let mut fields = Fields::default();
        let resources = wire.resources.map(Resources::from);
        let resources = resources.or_else(|| fields.wrong("resources", "is missing"));
        let built = resources.map(|resources| Self {
            resources,
            architecture: wire.architecture,
            kernel: wire.kernel,
            runtime: wire.runtime,
            version: wire.warren_version,
            address: wire.address,
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
        }
    }
}

/// Whether managers hear of a node, from its number on the wire. The violation's path is empty: nest it.
pub fn node_status(wire: i32) -> Result<NodeStatus, Violations> {
    match v1::NodeStatus::try_from(wire) {
        Ok(v1::NodeStatus::Unknown) => Ok(NodeStatus::Unknown),
        Ok(v1::NodeStatus::Ready) => Ok(NodeStatus::Ready),
        Ok(v1::NodeStatus::Down) => Ok(NodeStatus::Down),
        Err(_) => Err(unknown_value(wire, "UNKNOWN, READY or DOWN")),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_survives_and_others_are_refused() {
        for status in [NodeStatus::Unknown, NodeStatus::Ready, NodeStatus::Down] {
            assert_eq!(node_status(v1::NodeStatus::from(status).into()), Ok(status));
        }
        let wrong = node_status(3).unwrap_err().0.remove(0).message;
        assert_eq!(wrong, "value 3 is not known to this version; give UNKNOWN, READY or DOWN");
    }

    #[test]
    fn a_description_without_resources_is_refused() {
        let wrong = NodeDescription::try_from(v1::NodeDescription::default()).unwrap_err();
        assert_eq!(wrong.to_string(), "resources: is missing");
    }
}
