//! What a person asks for. `validate` is the one list of what a spec may say; everything behind it may rely on it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Bytes, ImageReference, MilliCpu, Resources, ServiceName, Violations};

/// More replicas than this is a typing error.
pub const MAX_REPLICAS: u32 = 1_000_000;
/// runc does not start a container with less memory than this.
pub const MIN_MEMORY_LIMIT: Bytes = Bytes(6 << 20);
/// The kernel's smallest CFS quota (1 ms of a 100 ms period).
pub const MIN_CPU_LIMIT: MilliCpu = MilliCpu(10);
/// Grace between the stop signal and SIGKILL when none is given.
pub const DEFAULT_STOP_GRACE: Duration = Duration::from_secs(10);
/// Longest grace: what stops longer holds up drains and updates for too long.
pub const MAX_STOP_GRACE: Duration = Duration::from_secs(24 * 3600);
/// Sum of all texts of a task: with the rest of an assignment it must fit in a container's 16 KiB extension.
pub const MAX_TASK_TEXT: usize = 12 << 10;
/// How many host ports a service may publish.
pub const MAX_PORTS: usize = 64;
/// How many labels an object may have.
pub const MAX_LABELS: usize = 64;

/// A service as wanted: the part a person writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceSpec {
    /// Unique in the cluster.
    pub name: ServiceName,
    /// Free key-value pairs for people and tools.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// How many tasks, and where.
    pub mode: Mode,
    /// What each task runs.
    pub task: TaskSpec,
    /// Ports opened for the service.
    #[serde(default)]
    pub ports: Vec<PublishedPort>,
}

/// How many tasks a service has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Mode {
    /// A number of interchangeable tasks in slots 1 to `replicas`.
    Replicated {
        /// Wanted number of running tasks; 0 stops the service without removing it.
        replicas: u32,
    },
}

/// What one task runs, and within which bounds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TaskSpec {
    /// The image.
    pub image: ImageReference,
    /// Replaces the image's ENTRYPOINT. The image's CMD is then dropped too, as in Docker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Replaces the image's CMD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    /// Added to the image's environment; a later one of the same name wins over an earlier.
    #[serde(default)]
    pub env: Vec<EnvVar>,
    /// What the kernel enforces.
    #[serde(default)]
    pub limits: Limits,
    /// What the scheduler sets aside on the node.
    #[serde(default)]
    pub reservations: Resources,
    /// Time between the stop signal and SIGKILL.
    #[serde(default = "default_stop_grace")]
    pub stop_grace: Duration,
}

fn default_stop_grace() -> Duration {
    DEFAULT_STOP_GRACE
}

/// One environment variable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvVar {
    /// Without `=` and NUL, not empty.
    pub name: String,
    /// Without NUL.
    pub value: String,
}

/// Bounds that the kernel enforces on a container. `None` is unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limits {
    /// CPU time per wall time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<MilliCpu>,
    /// Memory including the page cache it is charged for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
}

/// A port of the nodes that leads to a port of the service's containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PublishedPort {
    /// Only this address of the node; `None` is every address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_ip: Option<Ipv4Addr>,
    /// Port on the node.
    pub host_port: u16,
    /// Port in the container.
    pub container_port: u16,
    /// Transport.
    pub protocol: Protocol,
    /// Which nodes open the port.
    pub mode: PublishMode,
}

/// Transport of a published port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP.
    Tcp,
}

/// Which nodes open a published port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PublishMode {
    /// Each node that runs tasks of the service; new connections are spread over that node's tasks.
    Host,
}

impl PublishedPort {
    /// Both would want the same port of the same address.
    pub fn collides(&self, other: &PublishedPort) -> bool {
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
        write!(f, "{}->{}/tcp", self.host_port, self.container_port)
    }
}

impl ServiceSpec {
    /// Wanted number of tasks.
    pub fn replicas(&self) -> u32 {
        match self.mode {
            Mode::Replicated { replicas } => replicas,
        }
    }

    /// Everything wrong with the spec; paths are relative to it.
    pub fn validate(&self) -> Violations {
        let mut wrong = Violations::default();
        if self.replicas() > MAX_REPLICAS {
            wrong.add("mode.replicated.replicas", format!("{} is more than {MAX_REPLICAS}", self.replicas()));
        }
        validate_labels(&self.labels, &mut wrong);
        wrong.nest("task", self.task.validate());
        self.validate_ports(&mut wrong);
        wrong
    }

    fn validate_ports(&self, wrong: &mut Violations) {
        if self.ports.len() > MAX_PORTS {
            wrong.add("ports", format!("{} ports are more than {MAX_PORTS}", self.ports.len()));
        }
        for (i, port) in self.ports.iter().enumerate() {
            if port.host_port == 0 {
                wrong.add(format!("ports[{i}].hostPort"), "0 is not a port; give one of 1 to 65535");
            }
            if port.container_port == 0 {
                wrong.add(format!("ports[{i}].containerPort"), "0 is not a port; give one of 1 to 65535");
            }
            if let Some(earlier) = self.ports[..i].iter().position(|other| other.collides(port)) {
                let message =
                    format!("host port {} is already published by ports[{earlier}]", port.host_port);
                wrong.add(format!("ports[{i}].hostPort"), message);
            }
        }
    }
}

fn validate_labels(labels: &BTreeMap<String, String>, wrong: &mut Violations) {
    if labels.len() > MAX_LABELS {
        wrong.add("labels", format!("{} labels are more than {MAX_LABELS}", labels.len()));
    }
    for (key, value) in labels {
        if key.is_empty() || key.len() > 128 || value.len() > 1024 || key.contains('=') {
            let message = "a label's key has 1 to 128 bytes without '=', its value at most 1024";
            wrong.add(format!("labels[{key:?}]"), message);
        }
    }
}

impl TaskSpec {
    /// A task of `image` with nothing else said.
    pub fn new(image: ImageReference) -> Self {
        Self {
            image,
            command: None,
            args: None,
            env: Vec::new(),
            limits: Limits::default(),
            reservations: Resources::default(),
            stop_grace: DEFAULT_STOP_GRACE,
        }
    }

    /// Everything wrong with the spec; paths are relative to it.
    pub fn validate(&self) -> Violations {
        let mut wrong = Violations::default();
        self.validate_process(&mut wrong);
        if let Some(memory) = self.limits.memory.filter(|memory| *memory < MIN_MEMORY_LIMIT) {
            let message = format!("{memory} is below the runtime's minimum of {MIN_MEMORY_LIMIT}");
            wrong.add("limits.memory", message);
        }
        if let Some(cpu) = self.limits.cpu.filter(|cpu| *cpu < MIN_CPU_LIMIT) {
            wrong.add("limits.cpu", format!("{cpu} is below the kernel's minimum of {MIN_CPU_LIMIT}"));
        }
        let Resources { cpu, memory } = self.reservations;
        if self.limits.cpu.is_some_and(|limit| cpu > limit) {
            wrong.add("reservations.cpu", "is more than limits.cpu, so it could never be used");
        }
        if self.limits.memory.is_some_and(|limit| memory > limit) {
            wrong.add("reservations.memory", "is more than limits.memory, so it could never be used");
        }
        if self.stop_grace > MAX_STOP_GRACE {
            wrong.add("stopGrace", "is longer than 24 hours");
        }
        wrong
    }

    fn validate_process(&self, wrong: &mut Violations) {
        if self.command.as_ref().is_some_and(|command| command.first().is_none_or(String::is_empty)) {
            wrong.add("command", "is empty; leave it out to run the image's own entrypoint");
        }
        let words = self.command.iter().flatten().chain(self.args.iter().flatten());
        if words.clone().any(|word| word.contains('\0')) {
            wrong.add("args", "a NUL byte cannot be passed to a program");
        }
        let mut seen = BTreeSet::new();
        for (i, EnvVar { name, value }) in self.env.iter().enumerate() {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                wrong.add(format!("env[{i}].name"), format!("{name:?} is not a variable's name"));
            }
            if !seen.insert(name) {
                wrong.add(format!("env[{i}].name"), format!("{name} is given twice"));
            }
        }
        let env = self.env.iter().map(|var| var.name.len() + var.value.len());
        let text = words.map(String::len).sum::<usize>() + env.sum::<usize>();
        if text > MAX_TASK_TEXT {
            let message = format!("command, args and env have {text} bytes, more than {MAX_TASK_TEXT}");
            wrong.add("env", message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> ServiceSpec {
        ServiceSpec {
            name: "web".parse().unwrap(),
            labels: BTreeMap::new(),
            mode: Mode::Replicated { replicas: 2 },
            task: TaskSpec::new("nginx:1.27".parse().unwrap()),
            ports: Vec::new(),
        }
    }

    fn port(host_ip: Option<Ipv4Addr>, host_port: u16) -> PublishedPort {
        let (protocol, mode) = (Protocol::Tcp, PublishMode::Host);
        PublishedPort { host_ip, host_port, container_port: 80, protocol, mode }
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut ServiceSpec), wanted: &[&str]) {
        let mut spec = spec();
        change(&mut spec);
        let found: Vec<String> = spec.validate().0.into_iter().map(|v| v.path).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn each_fault_names_its_field() {
        check(|_| (), &[]);
        check(|s| s.mode = Mode::Replicated { replicas: MAX_REPLICAS + 1 }, &["mode.replicated.replicas"]);
        check(|s| s.task.limits.memory = Some(Bytes(1 << 20)), &["task.limits.memory"]);
        check(|s| s.task.limits.cpu = Some(MilliCpu(1)), &["task.limits.cpu"]);
        check(|s| s.task.command = Some(vec![]), &["task.command"]);
        check(|s| s.task.args = Some(vec!["a\0".into()]), &["task.args"]);
        check(|s| s.ports = vec![port(None, 0)], &["ports[0].hostPort"]);
        let var = |name: &str| EnvVar { name: name.into(), value: "v".into() };
        check(
            |s| s.task.env = vec![var("A"), var("A=B"), var("A")],
            &["task.env[1].name", "task.env[2].name"],
        );
        let long = EnvVar { name: "A".into(), value: "v".repeat(MAX_TASK_TEXT) };
        check(|s| s.task.env = vec![long], &["task.env"]);
        check(|s| s.labels = BTreeMap::from([(String::new(), String::new())]), &["labels[\"\"]"]);
    }

    #[test]
    fn a_reservation_above_the_limit_is_refused() {
        let reserve = Resources { cpu: MilliCpu(600), memory: Bytes(64 << 20) };
        check(|s| s.task.reservations = reserve, &[]);
        let limits = Limits { cpu: Some(MilliCpu(500)), memory: Some(Bytes(32 << 20)) };
        let wanted = ["task.reservations.cpu", "task.reservations.memory"];
        check(|s| (s.task.reservations, s.task.limits) = (reserve, limits), &wanted);
    }

    #[test]
    fn the_same_host_port_collides_unless_the_addresses_differ() {
        let (one, two) = (Some(Ipv4Addr::new(10, 0, 0, 1)), Some(Ipv4Addr::new(10, 0, 0, 2)));
        check(|s| s.ports = vec![port(one, 80), port(two, 80), port(None, 81)], &[]);
        check(|s| s.ports = vec![port(one, 80), port(one, 80)], &["ports[1].hostPort"]);
        check(|s| s.ports = vec![port(one, 80), port(None, 80)], &["ports[1].hostPort"]);
    }
}
