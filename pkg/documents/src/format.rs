//! The format of documents: kinds, and the fields of each.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use warren_types::spec::Taint;
use warren_types::{Availability, NodeName, SecretObjectKind, ServiceSpec, VolumeDriver};

/// The version of the format.
pub const API_VERSION: &str = "warren.io/v1";
/// The kind of the document of the admission policy. It is no object, so it is no [`DocumentKind`].
pub(crate) const ADMISSION_POLICY: &str = "AdmissionPolicy";

/// What a document describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DocumentKind {
    /// Labels, taints and availability of a node that has joined.
    Node,
    /// A network.
    Network,
    /// A volume.
    Volume,
    /// A secret.
    Secret,
    /// A config.
    Config,
    /// A service.
    Service,
}

impl DocumentKind {
    /// All kinds, in the order in which their objects are created.
    pub const ALL: [Self; 6] =
        [Self::Node, Self::Network, Self::Volume, Self::Secret, Self::Config, Self::Service];

    /// As in documents: `Service`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Node => "Node",
            Self::Network => "Network",
            Self::Volume => "Volume",
            Self::Secret => "Secret",
            Self::Config => "Config",
            Self::Service => "Service",
        }
    }

    /// The noun of its commands: `service`.
    pub fn noun(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Network => "network",
            Self::Volume => "volume",
            Self::Secret => "secret",
            Self::Config => "config",
            Self::Service => "service",
        }
    }
}

impl From<SecretObjectKind> for DocumentKind {
    /// A credential is never a document; it counts as a secret.
    fn from(kind: SecretObjectKind) -> Self {
        match kind {
            SecretObjectKind::Config => Self::Config,
            SecretObjectKind::Secret | SecretObjectKind::Credential => Self::Secret,
        }
    }
}

/// `metadata` of a document.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Metadata<N> {
    /// The name of the object.
    pub name: N,
    /// Its labels; of a node, those of users.
    #[serde(default)]
    pub labels: Option<BTreeMap<String, String>>,
}

/// The spec of a network.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkFields {
    /// Its tasks reach nothing outside the cluster.
    #[serde(default)]
    pub internal: bool,
}

/// The spec of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VolumeFields {
    /// How it is stored.
    #[serde(default)]
    pub driver: VolumeDriver,
    /// Options for the driver.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
    /// The node of its data; without it, that of its first task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeName>,
}

/// The spec of a secret or config: at most one of the fields. Without any, the data of the existing object stays.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretObjectFields {
    /// The data in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// The data as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub string_data: Option<String>,
    /// A file with the data, relative to that of the document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// The spec of a node. What is left out is unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeFields {
    /// Whether it accepts and keeps tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub availability: Option<Availability>,
    /// All of its taints, except those that managers set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taints: Option<Vec<Taint>>,
}

/// A document. `labels` is left out if it is empty, except of a node, where that would mean that they are unchanged.
pub fn document(
    kind: DocumentKind,
    name: &str,
    labels: &BTreeMap<String, String>,
    spec: &impl Serialize,
) -> Value {
    let mut metadata = Map::from_iter([("name".to_owned(), json!(name))]);
    if !labels.is_empty() || kind == DocumentKind::Node {
        metadata.insert("labels".to_owned(), json!(labels));
    }
    let spec = serde_json::to_value(spec).unwrap_or_default();
    json!({"apiVersion": API_VERSION, "kind": kind.as_str(), "metadata": metadata, "spec": spec})
}

/// The document of a service.
pub fn service_document(spec: &ServiceSpec) -> Value {
    let mut document = document(DocumentKind::Service, spec.name.as_str(), &spec.labels, spec);
    if let Some(fields) = document.get_mut("spec").and_then(Value::as_object_mut) {
        METADATA_FIELDS.iter().for_each(|field| drop(fields.remove(*field)));
    }
    document
}

/// Fields of [`ServiceSpec`] that documents have in `metadata`.
pub(crate) const METADATA_FIELDS: [&str; 2] = ["name", "labels"];
