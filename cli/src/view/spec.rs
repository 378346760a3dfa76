//! What a person asked for, as they would write it in a file.

use std::collections::BTreeMap;

use serde::Serialize;
use warren_types::{Limits, Mode, PublishedPort, Resources, ServiceSpec, TaskSpec};

use super::duration;

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
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
enum ModeView {
    Replicated { replicas: u32 },
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskSpecView {
    image: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    env: Vec<EnvView>,
    #[serde(skip_serializing_if = "AmountsView::is_empty")]
    limits: AmountsView,
    #[serde(skip_serializing_if = "AmountsView::is_empty")]
    reservations: AmountsView,
    stop_grace: String,
}

#[derive(Debug, Serialize)]
struct EnvView {
    name: String,
    value: String,
}

/// CPU and memory, each only if there is any.
#[derive(Debug, Serialize)]
struct AmountsView {
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<String>,
}

impl AmountsView {
    fn is_empty(&self) -> bool {
        self.cpu.is_none() && self.memory.is_none()
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
        let Mode::Replicated { replicas } = spec.mode;
        Self {
            name: spec.name.to_string(),
            labels: spec.labels.clone(),
            mode: ModeView::Replicated { replicas },
            task: (&spec.task).into(),
            ports: spec.ports.iter().map(Into::into).collect(),
        }
    }
}

impl From<&TaskSpec> for TaskSpecView {
    fn from(spec: &TaskSpec) -> Self {
        let TaskSpec { image, command, args, env, limits, reservations, stop_grace } = spec;
        let var = |var: &warren_types::EnvVar| EnvView { name: var.name.clone(), value: var.value.clone() };
        Self {
            image: image.to_string(),
            command: command.clone(),
            args: args.clone(),
            env: env.iter().map(var).collect(),
            limits: limits.into(),
            reservations: reservations.into(),
            stop_grace: duration(*stop_grace),
        }
    }
}

impl From<&Limits> for AmountsView {
    fn from(limits: &Limits) -> Self {
        Self {
            cpu: limits.cpu.map(|cpu| cpu.to_string()),
            memory: limits.memory.map(|memory| memory.to_string()),
        }
    }
}

impl From<&Resources> for AmountsView {
    fn from(resources: &Resources) -> Self {
        Self {
            cpu: (resources.cpu.0 != 0).then(|| resources.cpu.to_string()),
            memory: (resources.memory.0 != 0).then(|| resources.memory.to_string()),
        }
    }
}

impl From<Resources> for ResourcesView {
    fn from(resources: Resources) -> Self {
        Self { cpu: resources.cpu.to_string(), memory: resources.memory.to_string() }
    }
}

impl From<&PublishedPort> for PortView {
    fn from(port: &PublishedPort) -> Self {
        let warren_types::Protocol::Tcp = port.protocol;
        let warren_types::PublishMode::Host = port.mode;
        Self {
            host_ip: port.host_ip.map(|ip| ip.to_string()),
            host_port: port.host_port,
            container_port: port.container_port,
            protocol: "tcp",
            mode: "host",
        }
    }
}
