//! `/_ping`, `/version` and `/info`.

use hyper::header::{CACHE_CONTROL, HeaderValue};
use serde_json::{Value, json};
use warren_client::{Client, Error};
use warren_proto::v1;

use crate::request::VERSIONS;
use crate::response::{Answer, joined, ok, text, time};
use crate::swarm;

/// What several answers need of the cluster.
pub struct ClusterView {
    pub info: v1::InfoResponse,
    pub nodes: Vec<v1::Node>,
    pub managers: Vec<v1::Manager>,
}

impl ClusterView {
    pub async fn read(client: &Client) -> Result<Self, Error> {
        let (clusters, managers, nodes) = (client.cluster(), client.managers(), client.nodes());
        let (info, managers, nodes) = futures::try_join!(clusters.info(), managers.list(), nodes.list())?;
        Ok(Self { info, nodes, managers: managers.managers })
    }

    /// The manager that answers.
    pub fn own_manager(&self) -> Option<&v1::Manager> {
        self.managers.iter().find(|manager| manager.id == self.info.manager_id)
    }

    /// The node on the host of the manager that answers.
    pub fn own_node(&self) -> Option<&v1::Node> {
        let name = &self.own_manager()?.node;
        self.nodes.iter().find(|node| node.name == *name)
    }

    /// The manager on the host of a node.
    pub fn manager_of(&self, node: &v1::Node) -> Option<&v1::Manager> {
        self.managers.iter().find(|manager| !manager.node.is_empty() && manager.node == node.name)
    }
}

/// `/_ping`.
pub async fn ping(client: &Client) -> Answer {
    // Answers also while the cluster has no leader, as a read of this manager alone.
    let is_active = client.clone().stale(true).cluster().info().await.is_ok();
    let mut response = text("OK")?;
    let headers = response.headers_mut();
    headers.insert("swarm", HeaderValue::from_static(if is_active { "active/manager" } else { "error" }));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, no-store, must-revalidate"));
    headers.insert("pragma", HeaderValue::from_static("no-cache"));
    Ok(response)
}

/// `/version`.
pub async fn version(client: &Client) -> Answer {
    let view = ClusterView::read(client).await?;
    let description = description(&view);
    let (newest, oldest) = (format!("1.{}", VERSIONS.end()), format!("1.{}", VERSIONS.start()));
    let (kernel, arch, version) = (&description.kernel, &description.architecture, &view.info.version);
    let details = json!({
        "ApiVersion": newest, "MinAPIVersion": oldest, "Arch": arch, "Os": "linux", "KernelVersion": kernel,
    });
    ok(&json!({
        "Platform": {"Name": "Warren"},
        "Components": [{"Name": "Warren", "Version": version, "Details": details}],
        "Version": version, "ApiVersion": newest, "MinAPIVersion": oldest, "GitCommit": "", "GoVersion": "",
        "Os": "linux", "Arch": arch, "KernelVersion": kernel, "BuildTime": "",
    }))
}

fn description(view: &ClusterView) -> v1::NodeDescription {
    view.own_node().and_then(|node| node.description.clone()).unwrap_or_default()
}

/// `/info`.
pub async fn info(client: &Client) -> Answer {
    let view = ClusterView::read(client).await?;
    let node = view.own_node();
    let v1::NodeDescription { resources, architecture, kernel, runtime, os, labels, .. } = description(&view);
    let resources = resources.unwrap_or_default();
    let labels: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let tasks = node.map_or(0, |node| node.tasks);
    let machine = json!({
        "ID": view.info.manager_id,
        "Name": node.map(|node| &node.name).or(view.own_manager().map(|manager| &manager.name)),
        "ServerVersion": view.info.version,
        "Containers": tasks, "ContainersRunning": tasks, "ContainersPaused": 0, "ContainersStopped": 0, "Images": 0,
        "Driver": "overlayfs", "DriverStatus": [], "LoggingDriver": "json-file",
        "CgroupDriver": "cgroupfs", "CgroupVersion": "2",
        "Plugins": {"Volume": ["local"], "Network": ["overlay"], "Authorization": null, "Log": ["json-file"]},
        "MemoryLimit": true, "SwapLimit": false, "CpuCfsPeriod": true, "CpuCfsQuota": true, "PidsLimit": true,
        "IPv4Forwarding": true, "OomKillDisable": false, "Debug": false, "ExperimentalBuild": false,
        "NEventsListener": 0, "SystemTime": time(now_ms()),
        "OSType": "linux", "OperatingSystem": if os.is_empty() { "linux".to_owned() } else { os },
        "OSVersion": "", "KernelVersion": kernel, "Architecture": architecture,
        "NCPU": resources.cpu_milli / 1000, "MemTotal": resources.memory_bytes,
    });
    let features = json!({
        "DockerRootDir": "", "IndexServerAddress": "https://index.docker.io/v1/",
        "RegistryConfig": {"InsecureRegistryCIDRs": [], "IndexConfigs": {}, "Mirrors": null},
        "GenericResources": null, "HttpProxy": "", "HttpsProxy": "", "NoProxy": "", "Labels": labels,
        "Runtimes": {"runc": {"path": "runc"}}, "DefaultRuntime": "runc", "LiveRestoreEnabled": true,
        "Isolation": "", "InitBinary": "", "SecurityOptions": ["name=seccomp,profile=builtin"],
        "ContainerdCommit": {"ID": runtime, "Expected": runtime}, "RuncCommit": {"ID": "", "Expected": ""},
        "InitCommit": {"ID": "", "Expected": ""}, "Warnings": null,
        "Swarm": swarm_of(&view),
    });
    ok(&joined(machine, features))
}

/// The part of `/info` by which clients know that the node is a manager of a swarm.
fn swarm_of(view: &ClusterView) -> Value {
    let node_of = |manager: &v1::Manager| {
        let node = view.nodes.iter().find(|node| !manager.node.is_empty() && node.name == manager.node);
        node.map_or(&manager.id, |node| &node.id).clone()
    };
    let managers = view.managers.iter();
    let remote: Vec<Value> =
        managers.map(|manager| json!({"NodeID": node_of(manager), "Addr": manager.address})).collect();
    let own = view.own_manager();
    let address = own.map_or("", |manager| &manager.address);
    json!({
        "NodeID": own.map(node_of).unwrap_or_default(),
        "NodeAddr": address.rsplit_once(':').map_or(address, |(host, _)| host),
        "LocalNodeState": "active", "ControlAvailable": true, "Error": "",
        "RemoteManagers": remote,
        "Nodes": view.info.nodes, "Managers": view.info.managers,
        "Cluster": swarm::cluster(&view.info),
    })
}

/// Milliseconds since the Unix epoch.
pub fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
