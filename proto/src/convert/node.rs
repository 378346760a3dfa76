//! Nodes.

use warren_types::{NodeCheckResult, NodeDescription, NodeVerification, Violation, Violations};

use super::fields::FieldReader;
use super::wire_form::{WireForm, convert_by_wire_form, field, required_messages, wire_structs};
use crate::v1;

wire_structs! {
    NodeDescription as NodeDescription {
        resources, architecture, kernel, runtime, warren_version: version, address, os, disk_bytes: disk, labels,
        data_address, wireguard_key, apparmor_missing
    };
    NodeCheckResult as NodeCheckResult { name, outcome, message };
    NodeVerification as NodeVerification { state, since, failures, requested, answered, results };
}
convert_by_wire_form! { NodeCheckResult NodeDescription NodeVerification }
required_messages! { NodeDescription as NodeDescription }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_without_resources_is_refused() {
        let wrong = NodeDescription::try_from(v1::NodeDescription::default()).unwrap_err();
        assert_eq!(wrong.to_string(), "resources: is missing");
    }
}
