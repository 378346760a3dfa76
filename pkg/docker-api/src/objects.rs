//! Services, tasks, nodes and containers as answers show them. Lists have thousands of them, which are serialized from
//! here, without a tree of JSON values between.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::model::{Empty, EndpointSpec, Pairs, PortConfig, ServiceSpec, TaskSpec};

macro_rules! objects {
    ($( $(#[$about:meta])* $name:ident { $( $(#[$with:meta])* $field:ident: $type:ty, )* } )*) => { $(
        $(#[$about])*
        #[derive(Debug, Serialize)]
        #[serde(rename_all = "PascalCase")]
        pub struct $name { $( $(#[$with])* pub $field: $type, )* }
    )* };
}

objects! {
    /// The version, creation and last change of an object.
    Meta {
        version: Version,
        created_at: String,
        updated_at: String,
    }
    Version {
        index: u64,
    }
    Service {
        #[serde(rename = "ID")]
        id: String,
        #[serde(flatten)]
        meta: Meta,
        spec: ServiceSpec,
        endpoint: Endpoint,
        #[serde(skip_serializing_if = "Option::is_none")]
        update_status: Option<UpdateStatus>,
        #[serde(skip_serializing_if = "Option::is_none")]
        service_status: Option<ServiceStatus>,
    }
    Endpoint {
        spec: EndpointSpec,
        #[serde(skip_serializing_if = "Option::is_none")]
        ports: Option<Vec<PortConfig>>,
        #[serde(rename = "VirtualIPs", skip_serializing_if = "Vec::is_empty")]
        virtual_ips: Vec<VirtualIp>,
    }
    VirtualIp {
        #[serde(rename = "NetworkID")]
        network_id: String,
        addr: String,
    }
    UpdateStatus {
        state: &'static str,
        started_at: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        completed_at: Option<String>,
        message: String,
    }
    ServiceStatus {
        running_tasks: u32,
        desired_tasks: u32,
        completed_tasks: u32,
    }
    Task {
        #[serde(rename = "ID")]
        id: String,
        #[serde(flatten)]
        meta: Meta,
        labels: Empty,
        spec: TaskSpec,
        #[serde(rename = "ServiceID")]
        service_id: String,
        /// `None` for a task of a global service.
        #[serde(skip_serializing_if = "Option::is_none")]
        slot: Option<u32>,
        #[serde(rename = "NodeID")]
        node_id: String,
        status: TaskStatus,
        desired_state: &'static str,
        networks_attachments: Vec<AttachedNetwork>,
    }
    TaskStatus {
        timestamp: String,
        state: &'static str,
        message: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        err: String,
        container_status: ContainerStatus,
        port_status: PortStatus,
    }
    ContainerStatus {
        #[serde(rename = "ContainerID")]
        container_id: String,
        #[serde(rename = "PID")]
        pid: u32,
        exit_code: i32,
    }
    PortStatus {
        #[serde(skip_serializing_if = "Vec::is_empty")]
        ports: Vec<PortConfig>,
    }
    AttachedNetwork {
        network: Network,
        addresses: [String; 1],
    }
    Network {
        #[serde(rename = "ID")]
        id: String,
        spec: NetworkSpec,
    }
    NetworkSpec {
        name: String,
        scope: &'static str,
    }
    Node {
        #[serde(rename = "ID")]
        id: String,
        #[serde(flatten)]
        meta: Meta,
        spec: NodeSpec,
        description: NodeDescription,
        status: NodeStatus,
        #[serde(skip_serializing_if = "Option::is_none")]
        manager_status: Option<ManagerStatus>,
    }
    NodeSpec {
        labels: Pairs,
        role: &'static str,
        availability: &'static str,
    }
    NodeDescription {
        hostname: String,
        platform: Platform,
        resources: NodeResources,
        engine: Engine,
        #[serde(rename = "TLSInfo")]
        tls_info: Empty,
    }
    Platform {
        architecture: String,
        #[serde(rename = "OS")]
        os: String,
    }
    NodeResources {
        #[serde(rename = "NanoCPUs")]
        nano_cpus: u64,
        memory_bytes: u64,
    }
    Engine {
        engine_version: String,
        labels: Pairs,
        plugins: [Plugin; 2],
    }
    Plugin {
        r#type: &'static str,
        name: &'static str,
    }
    NodeStatus {
        state: &'static str,
        message: String,
        addr: String,
    }
    ManagerStatus {
        leader: bool,
        reachability: &'static str,
        addr: String,
    }
    Container {
        id: String,
        names: [String; 1],
        image: String,
        #[serde(rename = "ImageID")]
        image_id: String,
        command: String,
        /// Seconds.
        created: u64,
        ports: Vec<ContainerPort>,
        labels: Pairs,
        state: &'static str,
        status: String,
        host_config: HostConfig,
        network_settings: NetworkSettings,
        mounts: Vec<MountPoint>,
    }
    ContainerPort {
        #[serde(rename = "IP")]
        ip: &'static str,
        private_port: u32,
        public_port: u32,
        r#type: String,
    }
    HostConfig {
        network_mode: String,
    }
    NetworkSettings {
        networks: BTreeMap<String, EndpointSettings>,
    }
    /// `()` is null.
    EndpointSettings {
        #[serde(rename = "NetworkID")]
        network_id: String,
        #[serde(rename = "EndpointID")]
        endpoint_id: &'static str,
        gateway: &'static str,
        #[serde(rename = "IPAddress")]
        ip_address: String,
        #[serde(rename = "IPPrefixLen")]
        ip_prefix_len: u8,
        mac_address: &'static str,
        aliases: (),
        links: (),
        #[serde(rename = "IPAMConfig")]
        ipam_config: (),
        #[serde(rename = "GlobalIPv6Address")]
        global_ipv6_address: &'static str,
        #[serde(rename = "GlobalIPv6PrefixLen")]
        global_ipv6_prefix_len: u8,
        #[serde(rename = "IPv6Gateway")]
        ipv6_gateway: &'static str,
    }
    /// A tmpfs has no name and no source.
    MountPoint {
        r#type: &'static str,
        name: Option<String>,
        source: Option<String>,
        destination: String,
        driver: &'static str,
        mode: &'static str,
        #[serde(rename = "RW")]
        rw: bool,
        propagation: &'static str,
    }
}
