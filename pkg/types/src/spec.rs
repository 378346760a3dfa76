//! Specs, written by users. `validate` is the only list of what a spec may contain; all code after it relies
//! on it.

pub(crate) mod check;
mod health;
mod image;
mod ingress;
mod limits;
mod mode;
mod network;
mod on_disconnect;
mod placement;
mod private_users;
mod process;
mod restart;
mod secret_object;
mod security;
pub(crate) mod storage;
mod sysctl;
mod taint;
mod task;
mod templates;
#[cfg(test)]
mod tests;
mod update;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use check::is_host_name;
pub use health::{HealthCheck, HttpHeader, MIN_HEALTH_INTERVAL, MIN_HEALTH_TIMEOUT, Probe};
pub use image::{AWAITS_IMAGE_PIN, IMAGE_NOT_ADMITTED, IMAGE_NOT_RESOLVED, ImageResolver, PullPolicy};
pub use limits::{DEFAULT_PIDS_LIMIT, Limits, LogLimits, MAX_PIDS_LIMIT, MIN_CPU_LIMIT, MIN_MEMORY_LIMIT};
pub use mode::ServiceMode;
pub use network::{DEFAULT_NETWORK, DnsSettings, MAX_NETWORKS, NetworkAttachment, TaskNetworkMode};
pub use on_disconnect::{MAX_DISCONNECT_TIME, MIN_STOP_AFTER, OnDisconnect};
pub use placement::{
    Constraint, ConstraintKey, ConstraintOperator, MAX_CONSTRAINTS, MAX_PREFERENCES, NodeLabel,
    ParseConstraintError, ParseNodeLabelError, ParsePreferenceError, Placement, PlacementPreference,
};
pub use process::{EnvVar, LifecycleHook, MAX_HOOKS};
pub use restart::{
    MAX_RESTART_DELAY, MAX_RESTART_WINDOW, MAX_RESTARTS, MIN_RESTART_DELAY, RestartCondition, RestartPolicy,
};
pub use secret_object::{MAX_TASK_SECRET_OBJECTS, SecretObjectMount};
pub use security::{
    AppArmor, Capability, Device, DeviceAccess, NoNewPrivileges, Seccomp, Ulimit, UlimitName, UserNamespace,
};
pub use storage::{MAX_MOUNTS, MIN_TMPFS, Mount, MountSource, Propagation, is_normalized_relative};
pub use sysctl::sysctl_fault;
pub use taint::{
    MAX_TAINTS, ParseTaintError, Taint, TaintEffect, TaintSelector, UNVERIFIED_TAINT, validate_taints,
};
pub use task::{
    DEFAULT_DRAIN_DELAY, DEFAULT_STOP_GRACE, HostEntry, MAX_STOP_GRACE, TaskSpec, WITHDRAWAL_TIMEOUT,
};
pub use update::{
    DEFAULT_UPDATE_MONITOR, FailureAction, FailureRatio, MAX_UPDATE_PERIOD, Parallelism, UpdateOrder,
    UpdatePolicy,
};

use crate::name::is_label_key;
use crate::{EndpointMode, ServiceName, Violations};

/// The most replicas; a larger number is a typing error.
pub const MAX_REPLICAS: u32 = 1_000_000;
/// The most host ports of a service.
pub const MAX_PORTS: usize = 256;
/// Host ports that are chosen for a service that leaves its own open.
pub const AUTOMATIC_PORTS: std::ops::RangeInclusive<u16> = 30_000..=32_767;
/// The most labels of an object.
pub const MAX_LABELS: usize = 64;
/// Task and ports as JSON: with the rest of an assignment they must fit in a container's 16 KiB extension.
pub const MAX_TASK_JSON_SIZE: usize = 15 << 10;
/// The most bytes that an assignment adds for each volume: its name and the options of its driver, as JSON.
const MAX_VOLUME_JSON_SIZE: usize = 160;

/// The desired state of a service, written by the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceSpec {
    /// Unique in the cluster.
    pub name: ServiceName,
    /// Labels for users and tools.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// How many tasks, and on which nodes.
    #[serde(default)]
    pub mode: ServiceMode,
    /// Of a global service: one task for each value that this label has on eligible nodes, not one on each node. It
    /// cannot be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per: Option<NodeLabel>,
    /// Of a global service: tasks of other services wait for those of this one on their node. It does not shape
    /// tasks, so it is not part of a revision.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bootstrap: bool,
    /// What each task runs.
    pub task: TaskSpec,
    /// Published ports of the service.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<PublishedPort>,
    /// On which nodes its tasks may run.
    #[serde(default, skip_serializing_if = "check::is_default")]
    pub placement: Placement,
    /// How long a task may be lost before it is replaced: its node may return. It does not shape tasks, so it
    /// is not part of a revision.
    #[serde(default, skip_serializing_if = "Duration::is_zero", with = "crate::text::duration")]
    pub replace_after: Duration,
    /// What its name resolves to. It does not shape tasks, so it is not part of a revision.
    #[serde(default, skip_serializing_if = "check::is_default")]
    pub endpoint_mode: EndpointMode,
    /// The nodes that open its ports in ingress mode: those that satisfy all of them. It does not shape tasks, so it is
    /// not part of a revision.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub publish_on: Vec<Constraint>,
    /// How an update replaces tasks.
    #[serde(default, skip_serializing_if = "UpdatePolicy::is_default")]
    pub update: UpdatePolicy,
    /// How a rollback replaces tasks.
    #[serde(default, skip_serializing_if = "UpdatePolicy::is_default")]
    pub rollback: UpdatePolicy,
}

/// A port of the nodes that is forwarded to a port of the service's containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PublishedPort {
    /// Only this address of the node; `None` is every address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_ip: Option<Ipv4Addr>,
    /// Port on the node. 0 in a request: one of [`AUTOMATIC_PORTS`] is chosen, and kept by updates.
    #[serde(default)]
    pub host_port: u16,
    /// Port in the container.
    pub container_port: u16,
    /// Transport.
    #[serde(default)]
    pub protocol: Protocol,
    /// Which nodes open the port.
    #[serde(default)]
    pub mode: PublishMode,
    /// In ingress mode: ready tasks of the node that accepts a connection get it, those of others only while it has
    /// none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub prefer_local: bool,
    /// In ingress mode: connections from one address lead to the same task through every node, as long as the task is
    /// ready.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub client_affinity: bool,
}

/// Transport of a published port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// All protocols.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// As in files and flags: `tcp`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

impl std::fmt::Display for Protocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

impl std::str::FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|protocol| protocol.as_str() == text);
        known.ok_or_else(|| format!("{text:?} is not a protocol; give tcp, udp or sctp"))
    }
}

/// Which nodes open a published port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PublishMode {
    /// Each node that runs tasks of the service; new connections are spread over that node's tasks.
    Host,
    /// Every node, or those of [`ServiceSpec::publish_on`]; new connections are spread over all tasks of the service.
    #[default]
    Ingress,
}

impl PublishMode {
    /// Ingress, as in Docker Swarm, unless the port belongs to an address of one node.
    pub fn default_for(host_ip: Option<Ipv4Addr>) -> Self {
        if host_ip.is_some() { Self::Host } else { Self::Ingress }
    }
}

impl PublishedPort {
    /// Whether also nodes without tasks of the service open the port.
    pub fn is_ingress(&self) -> bool {
        self.mode == PublishMode::Ingress
    }

    /// The same without what concerns only nodes that accept connections, not tasks.
    pub fn mapping(&self) -> Self {
        Self { prefer_local: false, client_affinity: false, ..*self }
    }

    /// Whether both need the same port of the same address, or are the same request for an automatic one.
    pub fn conflicts_with(&self, other: &PublishedPort) -> bool {
        if self.host_port == 0 || other.host_port == 0 {
            return self == other;
        }
        let same_address = match (self.host_ip, other.host_ip) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        };
        self.host_port == other.host_port && self.protocol == other.protocol && same_address
    }
}

impl std::fmt::Display for PublishedPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(ip) = self.host_ip {
            write!(f, "{ip}:")?;
        }
        write!(f, "{}->{}/{}", self.host_port, self.container_port, self.protocol)
    }
}

impl ServiceSpec {
    /// A service with one task, and defaults for everything else.
    pub fn new(name: ServiceName, task: TaskSpec) -> Self {
        Self {
            name,
            labels: BTreeMap::new(),
            mode: ServiceMode::default(),
            per: None,
            bootstrap: false,
            task,
            ports: Vec::new(),
            placement: Placement::default(),
            replace_after: Duration::ZERO,
            endpoint_mode: EndpointMode::default(),
            publish_on: Vec::new(),
            update: UpdatePolicy::default(),
            rollback: UpdatePolicy::default(),
        }
    }

    /// Desired number of tasks; `None` if it depends on the nodes.
    pub fn replicas(&self) -> Option<u32> {
        match self.mode {
            ServiceMode::Replicated { replicas } => Some(replicas),
            ServiceMode::Global => None,
        }
    }

    /// All violations of the spec; paths are relative to it.
    pub fn validate(&self) -> Violations {
        let mut wrong = Violations::default();
        if let Some(replicas) = self.replicas().filter(|replicas| *replicas > MAX_REPLICAS) {
            wrong.add("mode.replicated.replicas", format!("{replicas} is more than {MAX_REPLICAS}"));
        }
        self.validate_mode(&mut wrong);
        validate_labels(&self.labels, &mut wrong);
        wrong.nest("task", self.task.validate());
        wrong.nest("task", templates::validate(&self.task, &self.labels));
        self.validate_ports(&mut wrong);
        self.validate_publish_on(&mut wrong);
        wrong.nest("placement", self.placement.validate());
        if self.replace_after > MAX_DISCONNECT_TIME {
            wrong.add("replaceAfter", "is longer than 30 days");
        }
        self.validate_policies(&mut wrong);
        let texts = (&self.task, &self.ports, self.template_labels());
        let volume = |mount: &&Mount| matches!(mount.source, MountSource::Volume { .. });
        let volumes = self.task.mounts.iter().filter(volume).count() * MAX_VOLUME_JSON_SIZE;
        let text = serde_json::to_vec(&texts).map_or(usize::MAX, |text| text.len() + volumes);
        if text > MAX_TASK_JSON_SIZE {
            let message =
                format!("the texts of the task have {text} bytes in total, more than {MAX_TASK_JSON_SIZE}");
            wrong.add("task.env", message);
        }
        wrong
    }

    fn validate_policies(&self, wrong: &mut Violations) {
        for (path, policy) in [("update", &self.update), ("rollback", &self.rollback)] {
            wrong.nest(path, policy.validate());
            if policy.order == Some(UpdateOrder::StartFirst) && self.task.writes_to_volumes() {
                let message = "two tasks would write to the same volume at a time; leave it out: the old task is \
                               stopped first";
                wrong.add(format!("{path}.order"), message);
            }
        }
        if self.rollback.on_failure == Some(FailureAction::Rollback) {
            wrong.add("rollback.onFailure", "a rollback is not rolled back; give pause or continue");
        }
    }

    /// The labels of the service that templates of its tasks use: they shape tasks, so a revision has them.
    pub fn template_labels(&self) -> BTreeMap<String, String> {
        let mut secret_objects = self.task.secrets.iter().chain(&self.task.configs);
        if secret_objects.any(|content| content.template) {
            // Which labels templates in secret objects use is known only after they are unsealed.
            return self.labels.clone();
        }
        let asked = templates::service_labels(&self.task);
        let had = |key: String| self.labels.get(&key).cloned().map(|value| (key, value));
        asked.into_iter().filter_map(had).collect()
    }

    fn validate_ports(&self, wrong: &mut Violations) {
        if !self.ports.is_empty() && !self.task.network.has_address() {
            let message = "only a task with an address of its own can publish ports; leave them out: with the network \
                           host its ports are those of the node";
            wrong.add("ports", message);
        }
        if self.ports.len() > MAX_PORTS {
            wrong.add("ports", format!("{} ports are more than {MAX_PORTS}", self.ports.len()));
        }
        for (i, port) in self.ports.iter().enumerate() {
            if port.container_port == 0 {
                wrong.add(format!("ports[{i}].containerPort"), "0 is not a port; give one of 1 to 65535");
            }
            if port.is_ingress() && port.host_ip.is_some() {
                let message = "mode=ingress opens the port on all addresses of every node; leave the address out, or \
                               give mode=host";
                wrong.add(format!("ports[{i}].hostIp"), message);
            }
            if !port.is_ingress() {
                let options = [("preferLocal", port.prefer_local), ("clientAffinity", port.client_affinity)];
                for (option, _) in options.into_iter().filter(|(_, is_set)| *is_set) {
                    wrong.add(format!("ports[{i}].{option}"), "is an option of mode=ingress; leave it out");
                }
            }
            if let Some(earlier) = self.ports[..i].iter().position(|other| other.conflicts_with(port)) {
                let message = match port.host_port {
                    0 => format!(
                        "an automatic port for the same port is requested by ports[{earlier}] already"
                    ),
                    number => format!("host port {number} is already published by ports[{earlier}]"),
                };
                wrong.add(format!("ports[{i}].hostPort"), message);
            }
        }
    }
}

/// The format of a label, for messages.
pub const LABEL_FORMAT: &str =
    "a label's key has 1 to 128 letters, digits, '.', '_', '-' or '/', its value at most 1024 bytes";

/// Adds every invalid label; paths begin with `labels`.
pub fn validate_labels(labels: &BTreeMap<String, String>, wrong: &mut Violations) {
    validate_labels_at("labels", labels, wrong);
}

fn validate_labels_at(path: &str, labels: &BTreeMap<String, String>, wrong: &mut Violations) {
    if labels.len() > MAX_LABELS {
        wrong.add(path, format!("{} labels are more than {MAX_LABELS}", labels.len()));
    }
    for (key, value) in labels {
        if !is_label_key(key) || value.len() > 1024 {
            wrong.add(format!("{path}[{key:?}]"), LABEL_FORMAT);
        }
    }
}
