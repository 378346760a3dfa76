//! `/nodes`.

use std::collections::BTreeMap;

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use warren_client::{Client, NodeChange};
use warren_proto::v1;
use warren_types::Availability;

use crate::docker_error::DockerError;
use crate::request::DockerRequest;
use crate::response::{Answer, empty, joined, meta, ok};
use crate::system::ClusterView;

const FILTERS: [&str; 6] = ["id", "label", "membership", "name", "node.label", "role"];

/// The spec of a node in an update.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct NodeSpec {
    name: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    role: Option<String>,
    availability: Option<String>,
}

/// `GET /nodes`.
pub async fn list(client: &Client, request: &DockerRequest) -> Answer {
    let filters = request.filters(&FILTERS)?;
    let view = ClusterView::read(client).await?;
    let accepted = view.nodes.iter().filter(|node| {
        let engine_labels = node.description.as_ref().map(|description| &description.labels);
        filters.id(&node.id)
            && filters.name_prefix(&node.name)
            && filters.any("role", |role| role == role_of(node))
            && filters.any("membership", |membership| membership == "accepted")
            && filters.labels("node.label", |key| node.labels.get(key))
            && filters.labels("label", |key| engine_labels?.get(key))
    });
    let nodes: Vec<Value> = accepted.map(|node| json(node, view.manager_of(node))).collect();
    ok(&nodes.into())
}

/// `GET /nodes/ID`.
pub async fn inspect(client: &Client, reference: &str) -> Answer {
    let node = client.nodes().get(reference).await?;
    let view = ClusterView::read(client).await?;
    ok(&json(&node, view.manager_of(&node)))
}

fn role_of(node: &v1::Node) -> &'static str {
    match node.role() {
        v1::NodeRole::Manager => "manager",
        v1::NodeRole::Worker | v1::NodeRole::Unspecified => "worker",
    }
}

fn availability_of(node: &v1::Node) -> &'static str {
    match node.availability() {
        v1::Availability::Pause => "pause",
        v1::Availability::Drain => "drain",
        v1::Availability::Active | v1::Availability::Unspecified => "active",
    }
}

fn json(node: &v1::Node, manager: Option<&v1::Manager>) -> Value {
    let description = node.description.clone().unwrap_or_default();
    let resources = description.resources.unwrap_or_default();
    let state = match node.status() {
        v1::NodeStatus::Ready => "ready",
        v1::NodeStatus::Down => "down",
        v1::NodeStatus::Unknown => "unknown",
    };
    let shown = json!({
        "ID": node.id,
        "Spec": {"Labels": node.labels, "Role": role_of(node), "Availability": availability_of(node)},
        "Description": {
            "Hostname": node.name,
            "Platform": {"Architecture": description.architecture, "OS": description.os},
            "Resources": {
                "NanoCPUs": resources.cpu_milli.saturating_mul(1_000_000), "MemoryBytes": resources.memory_bytes,
            },
            "Engine": {
                "EngineVersion": description.warren_version, "Labels": description.labels,
                "Plugins": [{"Type": "Network", "Name": "overlay"}, {"Type": "Volume", "Name": "local"}],
            },
            "TLSInfo": {},
        },
        "Status": {"State": state, "Message": node.reason, "Addr": description.address},
    });
    let shown = joined(meta(node.version, node.created_at, node.status_since), shown);
    let Some(manager) = manager else { return shown };
    let reachability = match manager.status() {
        v1::ManagerStatus::Ready => "reachable",
        v1::ManagerStatus::Unreachable => "unreachable",
        v1::ManagerStatus::Unspecified => "unknown",
    };
    let status = json!({"Leader": manager.leader, "Reachability": reachability, "Addr": manager.address});
    joined(shown, json!({"ManagerStatus": status}))
}

/// `POST /nodes/ID/update`: labels and availability.
pub async fn update(client: &Client, reference: &str, request: &DockerRequest) -> Answer {
    let (version, spec) = (request.version()?, request.json::<NodeSpec>()?);
    let node = client.nodes().get(reference).await?;
    if node.version != version {
        let message = format!("update out of sequence: the node has version {}, not {version}", node.version);
        return Err(DockerError::new(StatusCode::CONFLICT, message));
    }
    let NodeSpec { name, labels, role, availability } = spec;
    let labels = labels.unwrap_or_default();
    if name.is_some_and(|name| !name.is_empty() && name != node.name) {
        return Err(DockerError::invalid("Name: the name of a node is given when it joins"));
    }
    if let Some(role) = role.filter(|role| !role.is_empty() && role != role_of(&node)) {
        let message = match role.as_str() {
            "manager" => {
                "Role: a worker becomes a manager on its own machine: `warren worker leave`, then `warren \
                 manager join` with a token of `warren token create --role manager`"
            }
            "worker" => {
                "Role: remove the manager with `warren manager rm`; its machine can join as a worker then"
            }
            _ => {
                return Err(DockerError::invalid(format!(
                    "Role: {role:?} is no role; give worker or manager"
                )));
            }
        };
        return Err(DockerError::unsupported(message));
    }
    let availability = match availability.as_deref().unwrap_or_default() {
        "" => None,
        "active" => Some(Availability::Active),
        "pause" => Some(Availability::Pause),
        "drain" => Some(Availability::Drain),
        other => {
            let message = format!("Availability: {other:?} is not one; give active, pause or drain");
            return Err(DockerError::invalid(message));
        }
    };
    let change = NodeChange {
        version: Some(version),
        label_rm: node.labels.keys().filter(|key| !labels.contains_key(*key)).cloned().collect(),
        label_add: labels.into_iter().filter(|(key, value)| node.labels.get(key) != Some(value)).collect(),
        availability,
        ..NodeChange::default()
    };
    client.nodes().update(&node.id, &change).await?;
    empty(StatusCode::OK)
}

/// `DELETE /nodes/ID`.
pub async fn remove(client: &Client, reference: &str, request: &DockerRequest) -> Answer {
    client.nodes().remove(reference, request.flag("force")).await?;
    empty(StatusCode::OK)
}
