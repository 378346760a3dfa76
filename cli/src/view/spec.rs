//! What a person asked for, as they would write it in a file.

use std::collections::BTreeMap;

use serde::Serialize;
use warren_types::{
    EnvVar, HostEntry, Limits, LogLimits, Mode, Placement, PublishedPort, Resources, RestartPolicy,
    ServiceSpec, TaskSpec, Ulimit,
};

use super::duration;
use super::health::HealthView;
use super::storage::{ContentMountView, DeviceView, MountView};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SpecView {
    name: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    mode: ModeView,
    task: TaskSpecView,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ports: Vec<PortView>,
    #[serde(skip_serializing_if = "PlacementView::is_empty")]
    placement: PlacementView,
    #[serde(skip_serializing_if = "Option::is_none")]
    replace_after: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
enum ModeView {
    Replicated { replicas: u32 },
    Global,
}

/// Where tasks may run.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacementView {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    constraints: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_per_node: Option<u32>,
}

impl PlacementView {
    pub fn is_empty(&self) -> bool {
        self.constraints.is_empty() && self.max_per_node.is_none()
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskSpecView {
    image: String,
    pull: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    env: Vec<EnvView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workdir: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    groups: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hostname: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hosts: Vec<HostView>,
    tty: bool,
    init: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_signal: Option<String>,
    stop_grace: String,
    #[serde(skip_serializing_if = "AmountsView::is_empty")]
    limits: AmountsView,
    #[serde(skip_serializing_if = "AmountsView::is_empty")]
    reservations: AmountsView,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ulimits: Vec<UlimitView>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    sysctls: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shm_size: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    oom_score_adj: Option<i32>,
    privileged: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cap_add: Vec<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cap_drop: Vec<&'static str>,
    no_new_privileges: bool,
    seccomp: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    devices: Vec<DeviceView>,
    read_only: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mounts: Vec<MountView>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    secrets: Vec<ContentMountView>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    configs: Vec<ContentMountView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    health: Option<HealthView>,
    restart: RestartView,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_disconnect: Option<DisconnectView>,
    logs: LogsView,
}

/// What its node does while it reaches no manager, where that is anything.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DisconnectView {
    stop_after: String,
}

#[derive(Debug, Serialize)]
struct EnvView {
    name: String,
    value: String,
}

#[derive(Debug, Serialize)]
struct HostView {
    name: String,
    address: String,
}

/// Bounds as numbers, or `unlimited`.
#[derive(Debug, Serialize)]
struct UlimitView {
    name: &'static str,
    soft: String,
    hard: String,
}

#[derive(Debug, Serialize)]
struct RestartView {
    condition: &'static str,
    delay: String,
    max: u32,
    window: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct LogsView {
    max_size: String,
    max_files: u32,
}

/// CPU, memory and processes, each only if there is any.
#[derive(Debug, Serialize)]
struct AmountsView {
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pids: Option<u32>,
}

impl AmountsView {
    fn is_empty(&self) -> bool {
        let Self { cpu, memory, pids } = self;
        cpu.is_none() && memory.is_none() && pids.is_none()
    }
}

/// CPU and memory of a machine.
#[derive(Debug, Serialize)]
pub struct ResourcesView {
    pub cpu: String,
    pub memory: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PortView {
    #[serde(skip_serializing_if = "Option::is_none")]
    host_ip: Option<String>,
    host_port: u16,
    container_port: u16,
    protocol: &'static str,
    mode: &'static str,
}

impl From<&ServiceSpec> for SpecView {
    fn from(spec: &ServiceSpec) -> Self {
        let ServiceSpec { name, labels, mode, task, ports, placement, replace_after } = spec;
        Self {
            name: name.to_string(),
            labels: labels.clone(),
            mode: match *mode {
                Mode::Replicated { replicas } => ModeView::Replicated { replicas },
                Mode::Global => ModeView::Global,
            },
            task: task.into(),
            ports: ports.iter().map(Into::into).collect(),
            placement: placement.into(),
            replace_after: (!replace_after.is_zero()).then(|| duration(*replace_after)),
        }
    }
}

impl From<&Placement> for PlacementView {
    fn from(placement: &Placement) -> Self {
        let Placement { constraints, max_per_node } = placement;
        let constraints = constraints.iter().map(ToString::to_string).collect();
        Self { constraints, max_per_node: *max_per_node }
    }
}

impl From<&TaskSpec> for TaskSpecView {
    fn from(spec: &TaskSpec) -> Self {
        let TaskSpec {
            image,
            pull,
            command,
            args,
            env,
            workdir,
            user,
            groups,
            hostname,
            hosts,
            tty,
            init,
            stop_signal,
            stop_grace,
            limits,
            reservations,
            ulimits,
            sysctls,
            shm_size,
            oom_score_adj,
            privileged,
            cap_add,
            cap_drop,
            no_new_privileges,
            seccomp,
            devices,
            read_only,
            mounts,
            secrets,
            configs,
            health,
            restart,
            on_disconnect,
            logs,
        } = spec;
        Self {
            image: image.to_string(),
            pull: pull.as_str(),
            command: command.clone(),
            args: args.clone(),
            env: env.iter().map(Into::into).collect(),
            workdir: workdir.clone(),
            user: user.clone(),
            groups: groups.clone(),
            hostname: hostname.clone(),
            hosts: hosts.iter().map(Into::into).collect(),
            tty: *tty,
            init: *init,
            stop_signal: stop_signal.map(|signal| signal.to_string()),
            stop_grace: duration(*stop_grace),
            limits: limits.into(),
            reservations: reservations.into(),
            ulimits: ulimits.iter().map(Into::into).collect(),
            sysctls: sysctls.clone(),
            shm_size: shm_size.map(|size| size.to_string()),
            oom_score_adj: *oom_score_adj,
            privileged: *privileged,
            cap_add: cap_add.iter().map(|capability| capability.as_str()).collect(),
            cap_drop: cap_drop.iter().map(|capability| capability.as_str()).collect(),
            no_new_privileges: *no_new_privileges,
            seccomp: seccomp.to_string(),
            devices: devices.iter().map(Into::into).collect(),
            read_only: *read_only,
            mounts: mounts.iter().map(Into::into).collect(),
            secrets: secrets.iter().map(ContentMountView::secret).collect(),
            configs: configs.iter().map(ContentMountView::config).collect(),
            health: health.as_ref().map(Into::into),
            restart: restart.into(),
            on_disconnect: on_disconnect
                .stop_after()
                .map(|time| DisconnectView { stop_after: duration(time) }),
            logs: logs.into(),
        }
    }
}

impl From<&EnvVar> for EnvView {
    fn from(var: &EnvVar) -> Self {
        let EnvVar { name, value } = var;
        Self { name: name.clone(), value: value.clone() }
    }
}

impl From<&HostEntry> for HostView {
    fn from(entry: &HostEntry) -> Self {
        let HostEntry { name, address } = entry;
        Self { name: name.clone(), address: address.to_string() }
    }
}

impl From<&Ulimit> for UlimitView {
    fn from(ulimit: &Ulimit) -> Self {
        let Ulimit { name, soft, hard } = ulimit;
        let bound = |bound: &Option<u64>| bound.map_or_else(|| "unlimited".to_owned(), |b| b.to_string());
        Self { name: name.as_str(), soft: bound(soft), hard: bound(hard) }
    }
}

impl From<&RestartPolicy> for RestartView {
    fn from(policy: &RestartPolicy) -> Self {
        let RestartPolicy { condition, delay, max, window } = *policy;
        Self { condition: condition.as_str(), delay: duration(delay), max, window: duration(window) }
    }
}

impl From<&LogLimits> for LogsView {
    fn from(limits: &LogLimits) -> Self {
        let LogLimits { max_size, max_files } = *limits;
        Self { max_size: max_size.to_string(), max_files }
    }
}

impl From<&Limits> for AmountsView {
    fn from(limits: &Limits) -> Self {
        let Limits { cpu, memory, pids } = *limits;
        Self { cpu: cpu.map(|cpu| cpu.to_string()), memory: memory.map(|memory| memory.to_string()), pids }
    }
}

impl From<&Resources> for AmountsView {
    fn from(resources: &Resources) -> Self {
        let Resources { cpu, memory } = resources;
        Self {
            cpu: (cpu.0 != 0).then(|| cpu.to_string()),
            memory: (memory.0 != 0).then(|| memory.to_string()),
            pids: None,
        }
    }
}

impl From<Resources> for ResourcesView {
    fn from(resources: Resources) -> Self {
        let Resources { cpu, memory } = resources;
        Self { cpu: cpu.to_string(), memory: memory.to_string() }
    }
}

impl From<&PublishedPort> for PortView {
    fn from(port: &PublishedPort) -> Self {
        let PublishedPort { host_ip, host_port, container_port, protocol, mode } = *port;
        let warren_types::Protocol::Tcp = protocol;
        let warren_types::PublishMode::Host = mode;
        Self {
            host_ip: host_ip.map(|ip| ip.to_string()),
            host_port,
            container_port,
            protocol: "tcp",
            mode: "host",
        }
    }
}
