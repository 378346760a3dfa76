//! Reads a running Swarm through Docker's socket, as documents for `warren apply`. It changes nothing there.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::time::timeout;
use warren_documents::{
    DocumentKind, NetworkFields, SecretObjectFields, VolumeFields, document, service_document,
};
use warren_types::base64::encode_base64;
use warren_types::{MountSource, NetworkName, SecretObjectName, VolumeDriver, VolumeName};

use crate::model;
use crate::object_ids::ObjectIds;
use crate::spec;

/// For one answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Of the networks that every machine has.
const BUILT_IN_DRIVERS: [&str; 2] = ["host", "null"];
/// The largest answer in bytes.
const MAX_ANSWER: usize = 256 << 20;

/// What a Swarm has.
#[derive(Debug, Default)]
pub struct SwarmObjects {
    /// Documents of networks, configs, volumes and services.
    pub documents: Vec<Value>,
    /// What a person must know or do, a sentence each.
    pub notes: Vec<String>,
    /// Objects that have no form here, with the reason.
    pub left_out: Vec<String>,
}

/// Why a Swarm was not read.
#[derive(Debug, thiserror::Error)]
pub enum SwarmReadError {
    /// Nobody answers.
    #[error("{} cannot be reached: {source}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The failure.
        source: io::Error,
    },
    /// The connection broke.
    #[error("{path} was not read: {reason}")]
    Answer {
        /// Of the API.
        path: String,
        /// A sentence.
        reason: String,
    },
    /// Docker refused, with its message: it is no manager of a Swarm, for example.
    #[error("{message} ({path}: status {status})")]
    Refused {
        /// Of the API.
        path: String,
        /// Of HTTP.
        status: StatusCode,
        /// Docker's.
        message: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SwarmNetwork {
    name: String,
    id: String,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    driver: String,
    #[serde(default)]
    internal: bool,
    #[serde(default)]
    ingress: bool,
    #[serde(default)]
    attachable: bool,
    #[serde(default)]
    options: Option<BTreeMap<String, String>>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SwarmObject<T> {
    #[serde(rename = "ID")]
    id: String,
    spec: T,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SecretSpec {
    name: String,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    data: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SwarmNode {
    spec: NodeSpec,
    description: NodeDescription,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct NodeSpec {
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    availability: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct NodeDescription {
    hostname: String,
}

impl SwarmObjects {
    /// Reads the Swarm whose manager listens on the socket.
    ///
    /// # Errors
    /// [`SwarmReadError`].
    pub async fn read(socket: &Path) -> Result<Self, SwarmReadError> {
        let networks: Vec<SwarmNetwork> = get(socket, "/networks").await?;
        let secrets: Vec<SwarmObject<SecretSpec>> = get(socket, "/secrets").await?;
        let configs: Vec<SwarmObject<SecretSpec>> = get(socket, "/configs").await?;
        let services: Vec<SwarmObject<model::ServiceSpec>> = get(socket, "/services").await?;
        let nodes: Vec<SwarmNode> = get(socket, "/nodes").await?;
        let named = |objects: &[SwarmObject<SecretSpec>]| {
            objects.iter().map(|object| (object.spec.name.clone(), object.id.clone())).collect()
        };
        let ids = ObjectIds {
            secrets: named(&secrets),
            configs: named(&configs),
            networks: networks.iter().map(|network| (network.name.clone(), network.id.clone())).collect(),
        };
        let mut found = Self::default();
        networks.into_iter().for_each(|network| found.add_network(network));
        configs.into_iter().for_each(|config| found.add_config(config.spec));
        for SwarmObject { spec: SecretSpec { name, .. }, .. } in secrets {
            let advice =
                format!("store it with `warren secret create {name} FILE` before the documents are applied");
            found.notes.push(format!("secret {name}: nobody can read its data; {advice}"));
        }
        found.add_services(services, &ids);
        nodes.into_iter().for_each(|node| found.add_node(node));
        Ok(found)
    }

    fn leave_out(&mut self, object: &str, reason: impl std::fmt::Display) {
        self.left_out.push(format!("{object}: {reason}"));
    }

    fn add_network(&mut self, network: SwarmNetwork) {
        let SwarmNetwork { name, id: _, scope, driver, internal, ingress, attachable, options, labels } =
            network;
        if scope != "swarm" || ingress || BUILT_IN_DRIVERS.contains(&driver.as_str()) {
            return;
        }
        let object = format!("network {name}");
        if driver != "overlay" {
            return self
                .leave_out(&object, format!("its driver is {driver}, all networks here are overlays"));
        }
        if let Err(error) = name.parse::<NetworkName>() {
            return self.leave_out(&object, error);
        }
        if attachable {
            self.notes.push(format!("{object}: containers beside services cannot be attached to it"));
        }
        if options.is_some_and(|options| options.contains_key("encrypted")) {
            let advice = "`warren cluster update --data-plane wireguard` encrypts all networks";
            self.notes.push(format!("{object}: encryption is a setting of the cluster; {advice}"));
        }
        let fields = NetworkFields { internal };
        let labels = labels.unwrap_or_default();
        self.documents.push(document(DocumentKind::Network, &name, &labels, &fields));
    }

    fn add_config(&mut self, SecretSpec { name, labels, data }: SecretSpec) {
        if let Err(error) = name.parse::<SecretObjectName>() {
            return self.leave_out(&format!("config {name}"), error);
        }
        let fields = SecretObjectFields { data: Some(data.unwrap_or_default()), ..Default::default() };
        self.documents.push(document(DocumentKind::Config, &name, &labels.unwrap_or_default(), &fields));
    }

    fn add_services(&mut self, services: Vec<SwarmObject<model::ServiceSpec>>, ids: &ObjectIds) {
        let (mut volumes, mut mounted) = (BTreeMap::new(), BTreeSet::new());
        let mut profiles = BTreeMap::new();
        let mut documents = Vec::new();
        for SwarmObject { spec: mut docker, .. } in services {
            let object = format!("service {}", docker.name.as_deref().unwrap_or_default());
            // Docker's CLI adds the platforms of the image, and counts forced updates.
            if let Some(task) = &mut docker.task_template {
                task.force_update = None;
                if let Some(placement) = &mut task.placement {
                    placement.platforms = None;
                }
            }
            let received = match spec::from_docker(docker, ids) {
                Ok(received) => received,
                Err(wrong) => {
                    self.leave_out(&object, wrong);
                    continue;
                }
            };
            self.notes.extend(received.warnings.into_iter().map(|warning| format!("{object}: {warning}")));
            mounted.extend(received.spec.task.mounts.iter().filter_map(|mount| match &mount.source {
                MountSource::Volume { name, .. } => Some(name.clone()),
                _ => None,
            }));
            documents.push(service_document(&received.spec));
            profiles.extend(received.profiles.into_iter().map(|profile| (profile.name.clone(), profile)));
            for volume in received.volumes {
                volumes.entry(volume.name.clone()).or_insert(volume);
            }
        }
        for (name, profile) in profiles {
            let data = Some(encode_base64(profile.json().as_bytes()));
            let fields = SecretObjectFields { data, ..Default::default() };
            self.documents.push(document(DocumentKind::Config, name.as_str(), &BTreeMap::new(), &fields));
        }
        for (name, volume) in volumes {
            let object = format!("volume {name}");
            let driver =
                if volume.driver.is_empty() { Ok(VolumeDriver::default()) } else { volume.driver.parse() };
            match (driver, name.parse::<VolumeName>()) {
                (Ok(driver), Ok(_)) => {
                    let fields = VolumeFields { driver, options: volume.options, node: None };
                    self.documents.push(document(DocumentKind::Volume, &name, &volume.labels, &fields));
                }
                (Err(error), _) => self.leave_out(&object, error),
                (_, Err(error)) => self.leave_out(&object, error),
            }
        }
        self.notes.extend(mounted.into_iter().map(|name| format!("volume {name}: its data is not copied")));
        self.documents.append(&mut documents);
    }

    fn add_node(&mut self, SwarmNode { spec, description: NodeDescription { hostname } }: SwarmNode) {
        let labels = spec.labels.unwrap_or_default();
        let mut flags: Vec<String> =
            labels.iter().map(|(key, value)| format!("--label-add {key}={value}")).collect();
        if !matches!(spec.availability.as_str(), "" | "active") {
            flags.push(format!("--availability {}", spec.availability));
        }
        if !flags.is_empty() {
            let command = format!("warren node update {hostname} {}", flags.join(" "));
            self.notes.push(format!("node {hostname}: `{command}` once it has joined"));
        }
    }
}

/// The answer to `GET path`.
async fn get<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<T, SwarmReadError> {
    let failed = |reason: String| SwarmReadError::Answer { path: path.to_owned(), reason };
    let connect = |source| SwarmReadError::Connect { path: socket.to_owned(), source };
    let exchange = async {
        let stream = UnixStream::connect(socket).await.map_err(connect)?;
        let broken = |error: hyper::Error| failed(error.to_string());
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let connection = tokio::spawn(connection);
        let request = Request::get(path).header("host", "docker").body(Empty::<Bytes>::new());
        let request = request.map_err(|error| failed(error.to_string()))?;
        let response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        connection.abort();
        Ok((status, body.map_err(|error| failed(error.to_string()))?.to_bytes()))
    };
    let answered = timeout(TIMEOUT, exchange).await;
    let (status, body) = answered.map_err(|_| failed(format!("no answer within {TIMEOUT:?}")))??;
    if status != StatusCode::OK {
        let message = serde_json::from_slice::<Value>(&body).ok();
        let message = message.and_then(|message| Some(message.get("message")?.as_str()?.to_owned()));
        let message = message.unwrap_or_else(|| "Docker refused".to_owned());
        return Err(SwarmReadError::Refused { path: path.to_owned(), status, message });
    }
    serde_json::from_slice(&body).map_err(|error| failed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(spec: Value) -> SwarmObject<model::ServiceSpec> {
        serde_json::from_value(json!({"ID": "s1", "Spec": spec})).unwrap()
    }

    #[test]
    fn service_of_the_cli_becomes_a_document() {
        let ids = ObjectIds { networks: [("back".to_owned(), "n1".to_owned())].into(), ..Default::default() };
        let options = json!({"Labels": {"a": "b"}});
        let mount = json!({"Type": "volume", "Source": "data", "Target": "/data", "VolumeOptions": options});
        let task = json!({
            "ContainerSpec": {
                "Image": "nginx:1.27@sha256:".to_owned() + &"ab".repeat(32), "Init": false, "Isolation": "default",
                "Mounts": [mount],
            },
            "Placement": {"Platforms": [{"Architecture": "amd64", "OS": "linux"}]},
            "Networks": [{"Target": "n1"}], "ForceUpdate": 3, "Runtime": "container",
        });
        let job = json!({
            "Name": "job", "Mode": {"ReplicatedJob": {"MaxConcurrent": 1}},
            "TaskTemplate": {"ContainerSpec": {"Image": "x"}},
        });
        let web = json!({
            "Name": "web", "TaskTemplate": task, "Mode": {"Replicated": {"Replicas": 2}},
            "EndpointSpec": {"Mode": "vip"},
        });
        let mut found = SwarmObjects::default();
        found.add_services(vec![service(web), service(job)], &ids);
        let kinds: Vec<&str> = found.documents.iter().filter_map(|one| one["kind"].as_str()).collect();
        assert_eq!(kinds, ["Volume", "Service"]);
        let document = &found.documents[1];
        assert_eq!(
            document.pointer("/spec/task/network/networks/0/network"),
            Some(&json!("back")),
            "{document}"
        );
        assert!(found.left_out[0].starts_with("service job: Mode"), "{:?}", found.left_out);
        assert_eq!(found.left_out.len(), 1);
        assert_eq!(found.notes, ["volume data: its data is not copied"]);
    }

    #[test]
    fn seccomp_profiles_become_configs() {
        let json = br#"{"defaultAction":"SCMP_ACT_LOG"}"#;
        let seccomp = json!({"Mode": "custom", "Profile": encode_base64(json)});
        let services = ["web", "api"].map(|name| {
            let container = json!({"Image": "nginx", "Privileges": {"Seccomp": seccomp}});
            service(json!({
                "Name": name, "Mode": {"Replicated": {"Replicas": 2}}, "TaskTemplate": {"ContainerSpec": container},
            }))
        });
        let mut found = SwarmObjects::default();
        found.add_services(services.into(), &ObjectIds::default());
        assert!(found.left_out.is_empty(), "{:?}", found.left_out);
        let kinds: Vec<&str> = found.documents.iter().filter_map(|one| one["kind"].as_str()).collect();
        assert_eq!(kinds, ["Config", "Service", "Service"]);
        let [config, web, _] = &found.documents[..] else { panic!("{:?}", found.documents) };
        let name = config.pointer("/metadata/name").and_then(Value::as_str).unwrap();
        assert_eq!(config.pointer("/spec/data"), Some(&json!(encode_base64(json))));
        assert_eq!(web.pointer("/spec/task/seccomp"), Some(&json!(format!("config/{name}"))));
    }

    #[test]
    fn what_has_no_form_is_named() {
        let mut found = SwarmObjects::default();
        let network = |fields: Value| serde_json::from_value::<SwarmNetwork>(fields).unwrap();
        found.add_network(network(json!({"Name": "host", "Id": "1", "Scope": "local", "Driver": "host"})));
        found.add_network(network(
            json!({"Name": "macvlan", "Id": "2", "Scope": "swarm", "Driver": "macvlan"}),
        ));
        let secure = json!({
            "Name": "secure", "Id": "3", "Scope": "swarm", "Driver": "overlay", "Internal": true,
            "Options": {"encrypted": ""}, "Labels": {"a": "b"},
        });
        found.add_network(network(secure));
        let node = json!({
            "Spec": {"Labels": {"zone": "a"}, "Availability": "drain"}, "Description": {"Hostname": "vm1"},
        });
        found.add_node(serde_json::from_value(node).unwrap());
        assert_eq!(found.documents.len(), 1);
        assert_eq!(found.documents[0]["spec"], json!({"internal": true}));
        assert!(found.left_out[0].starts_with("network macvlan: "), "{:?}", found.left_out);
        assert!(found.notes[0].contains("--data-plane wireguard"), "{:?}", found.notes);
        assert!(found.notes[1].contains("warren node update vm1 --label-add zone=a --availability drain"));
    }
}
