//! `/nodes`.

use std::collections::BTreeMap;

use hyper::StatusCode;
use serde::Deserialize;
use warren_client::{Client, NodeChange};
use warren_proto::v1;
use warren_types::Availability;

use crate::docker_error::DockerError;
use crate::request::DockerRequest;
use crate::response::{Answer, empty, meta, ok};
use crate::system::ClusterView;
use crate::{model, objects};

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
    let mut view = ClusterView::read(client).await?;
    let nodes = std::mem::take(&mut view.nodes).into_iter();
    let accepted = nodes.filter(|node| {
        let engine_labels = node.description.as_ref().map(|description| &description.labels);
        filters.id(&node.id)
            && filters.name_prefix(&node.name)
            && filters.any("role", |role| role == role_of(node))
            && filters.any("membership", |membership| membership == "accepted")
            && filters.labels("node.label", |key| node.labels.get(key))
            && filters.labels("label", |key| engine_labels?.get(key))
    });
    let shown = accepted.map(|node| {
        let manager = view.manager_of(&node);
        show(node, manager)
    });
    ok(&shown.collect::<Vec<_>>())
}

/// `GET /nodes/ID`.
pub async fn inspect(client: &Client, reference: &str) -> Answer {
    let node = client.nodes().get(reference).await?;
    let view = ClusterView::read(client).await?;
    let manager = view.manager_of(&node);
    ok(&show(node, manager))
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

fn show(node: v1::Node, manager: Option<&v1::Manager>) -> objects::Node {
    let (role, availability) = (role_of(&node), availability_of(&node));
    let state = match node.status() {
        v1::NodeStatus::Ready => "ready",
        v1::NodeStatus::Down => "down",
        v1::NodeStatus::Unknown => "unknown",
    };
    let manager_status = manager.map(|manager| {
        let reachability = match manager.status() {
            v1::ManagerStatus::Ready => "reachable",
            v1::ManagerStatus::Unreachable => "unreachable",
            v1::ManagerStatus::Unspecified => "unknown",
        };
        objects::ManagerStatus { leader: manager.leader, reachability, addr: manager.address.clone() }
    });
    let reported = node.description.unwrap_or_default();
    let resources = reported.resources.unwrap_or_default();
    let plugin = |r#type, name| objects::Plugin { r#type, name };
    let description = objects::NodeDescription {
        hostname: node.name,
        platform: objects::Platform { architecture: reported.architecture, os: reported.os },
        resources: objects::NodeResources {
            nano_cpus: resources.cpu_milli.saturating_mul(1_000_000),
            memory_bytes: resources.memory_bytes,
        },
        engine: objects::Engine {
            engine_version: reported.warren_version,
            labels: reported.labels,
            plugins: [plugin("Network", "overlay"), plugin("Volume", "local")],
        },
        tls_info: model::Empty {},
    };
    objects::Node {
        id: node.id,
        meta: meta(node.version, node.created_at, node.status_since),
        spec: objects::NodeSpec { labels: node.labels, role, availability },
        description,
        status: objects::NodeStatus { state, message: node.reason, addr: reported.address },
        manager_status,
    }
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
