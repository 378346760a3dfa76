//! Objects of the cluster as documents for `warren apply`.

use std::collections::BTreeMap;

use serde_json::Value;
use warren_client::NodeChange;
use warren_documents::{
    DocumentKind, NetworkFields, NodeFields, SecretObjectFields, VolumeFields, document, service_document,
};
use warren_proto::convert::{availability, stored_service_spec};
use warren_proto::v1;
use warren_types::base64::encode_base64;
use warren_types::spec::{ParseTaintError, Taint};
use warren_types::{SecretObjectKind, Violation, Violations, VolumeDriver};

use super::invalid_response;
use crate::args::OutputFormat;
use crate::failure::CommandError;
use crate::output;

/// Labels and taints whose keys begin with this are set by managers.
const MANAGER_KEY_PREFIX: &str = "warren.io/";

/// Prints documents: as one file, or as one array for programs.
pub fn print(format: OutputFormat, documents: &[Value]) -> Result<(), CommandError> {
    if format == OutputFormat::Json {
        return output::print_documents(format, documents);
    }
    for (i, document) in documents.iter().enumerate() {
        if i > 0 {
            output::print("---\n")?;
        }
        output::print_document(OutputFormat::Yaml, document)?;
    }
    Ok(())
}

pub fn of_service(service: v1::Service) -> Result<Value, CommandError> {
    let spec = service.spec.ok_or_else(|| Violations::from(Violation::new("spec", "is missing")));
    let spec = spec.and_then(stored_service_spec).map_err(invalid_response("the service"))?;
    Ok(service_document(&spec))
}

pub fn of_network(network: &v1::Network) -> Value {
    let fields = NetworkFields { internal: network.internal };
    document(DocumentKind::Network, &network.name, &network.labels, &fields)
}

pub fn of_volume(volume: &v1::Volume) -> Result<Value, CommandError> {
    let unknown = |why: String| invalid_response("the volume")(Violation::new("driver", why).into());
    let driver = volume.driver.parse::<VolumeDriver>().map_err(unknown)?;
    let fields = VolumeFields { driver, options: volume.options.clone(), node: None };
    Ok(document(DocumentKind::Volume, &volume.name, &volume.labels, &fields))
}

/// Of a secret without its data, which stays when the document is applied.
pub fn of_secret_object(kind: SecretObjectKind, object: &v1::SecretObject, data: Option<&[u8]>) -> Value {
    let fields = match data.map(|data| (std::str::from_utf8(data), data)) {
        None => SecretObjectFields::default(),
        Some((Ok(text), _)) => {
            SecretObjectFields { string_data: Some(text.to_owned()), ..SecretObjectFields::default() }
        }
        Some((Err(_), data)) => {
            SecretObjectFields { data: Some(encode_base64(data)), ..SecretObjectFields::default() }
        }
    };
    document(DocumentKind::from(kind), &object.name, &object.labels, &fields)
}

pub fn of_node(node: &v1::Node) -> Result<Value, CommandError> {
    Ok(document(DocumentKind::Node, &node.name, &user_labels(node), &node_fields(node)?))
}

/// The labels that users have set.
pub fn user_labels(node: &v1::Node) -> BTreeMap<String, String> {
    let of_users = node.labels.iter().filter(|(key, _)| !key.starts_with(MANAGER_KEY_PREFIX));
    of_users.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Availability, and the taints that users have set.
pub fn node_fields(node: &v1::Node) -> Result<NodeFields, CommandError> {
    let unreadable = invalid_response("the node");
    let availability = availability(node.availability).map_err(&unreadable)?;
    let mut taints = Vec::new();
    for text in node.taints.iter().filter(|text| !text.starts_with(MANAGER_KEY_PREFIX)) {
        let taint: Taint =
            text.parse().map_err(|why: ParseTaintError| unreadable(Violation::new("taints", why).into()))?;
        taints.push(taint);
    }
    Ok(NodeFields { availability: Some(availability), taints: Some(taints) })
}

/// Each changed field of a node.
pub fn node_changes(change: &NodeChange) -> Vec<String> {
    let NodeChange { version: _, label_add, label_rm, availability, taint_add, taint_rm } = change;
    let labels = label_add.iter().map(|(key, value)| format!("metadata.labels +{key}={value}"));
    let labels = labels.chain(label_rm.iter().map(|key| format!("metadata.labels -{key}")));
    let availability =
        availability.iter().map(|availability| format!("spec.availability -> {}", availability.as_str()));
    let taints = taint_add.iter().map(|taint| format!("spec.taints +{taint}"));
    let taints = taints.chain(taint_rm.iter().map(|taint| format!("spec.taints -{taint}")));
    labels.chain(availability).chain(taints).collect()
}
