//! Specs of services, from Docker's form and to it.
//!
//! Docker cannot say all that a spec of Warren has. What it cannot say is left out of what it is shown, and an update
//! keeps it unless the client changed the field ([`merge`]): a client that sends back what it was shown changes
//! nothing.

mod container;
mod merge;
mod mounts;
mod paths;
mod placement;
mod policies;
mod reader;
#[cfg(test)]
mod tests;

use warren_client::SeccompConfig;
use warren_types::{
    EndpointMode, NetworkAttachment, PublishMode, PublishedPort, ServiceMode, ServiceSpec, TaskNetworkMode,
    TaskSpec, UpdatePolicy, Violations,
};

use crate::model;
use crate::object_ids::{ObjectIds, id_of, name_of};
use reader::SpecReader;

pub use reader::MountedVolume;

/// A spec that a client sent.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceivedSpec {
    pub spec: ServiceSpec,
    /// Volumes that its mounts describe; to be created unless they exist.
    pub volumes: Vec<MountedVolume>,
    /// Seccomp profiles that it contains; to be created as configs unless they exist.
    pub profiles: Vec<SeccompConfig>,
    /// What was accepted and has no effect, each a sentence.
    pub warnings: Vec<String>,
    /// New tasks also if nothing changed.
    pub force: bool,
}

/// Whether a spec that is shown has the fields that [`from_docker`] reads as the same when they are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultFields {
    Shown,
    LeftOut,
}

impl DefaultFields {
    fn show<T>(self, is_default: bool, value: impl FnOnce() -> T) -> Option<T> {
        (self == Self::Shown || !is_default).then(value)
    }
}

/// The spec of a new service.
///
/// # Errors
/// Every field that is not supported or not valid, with its path in Docker's spec.
pub fn from_docker(docker: model::ServiceSpec, ids: &ObjectIds) -> Result<ReceivedSpec, Violations> {
    let received = read(docker, ids)?;
    check(&received.spec)?;
    Ok(received)
}

/// The spec of a service that has been `before`, was shown as [`to_docker`] does, and was sent back with changes.
///
/// # Errors
/// As [`from_docker`].
pub fn updated(
    before: &ServiceSpec,
    docker: model::ServiceSpec,
    ids: &ObjectIds,
) -> Result<ReceivedSpec, Violations> {
    let mut received = read(docker, ids)?;
    let shown = read(to_docker(before, ids, DefaultFields::LeftOut), ids)?;
    received.spec = merge::merge(before, &shown.spec, &received.spec).map_err(|error| {
        let mut wrong = Violations::default();
        wrong.add("", format!("the spec cannot be combined with what Docker does not show of it: {error}"));
        wrong
    })?;
    check(&received.spec)?;
    Ok(received)
}

/// Checks the values of a spec.
///
/// # Errors
/// Every field that is not valid, with its path in Docker's spec.
pub fn check(spec: &ServiceSpec) -> Result<(), Violations> {
    let mut wrong = spec.validate();
    for violation in &mut wrong.0 {
        violation.path = paths::docker_path(&violation.path);
    }
    wrong.into_result(())
}

fn read(docker: model::ServiceSpec, ids: &ObjectIds) -> Result<ReceivedSpec, Violations> {
    let model::ServiceSpec {
        name,
        labels,
        task_template,
        mode,
        update_config,
        rollback_config,
        networks,
        endpoint_spec,
    } = docker;
    let mut reader = SpecReader::default();
    let name = reader.parse("Name", &name.unwrap_or_default());
    let task_template = task_template.unwrap_or_default();
    let force = task_template.force_update.unwrap_or_default() > 0;
    // The networks of the service are those of the oldest clients.
    let networks = (task_template.networks.clone().map(|networks| ("TaskTemplate.Networks", networks)))
        .filter(|(_, networks)| !networks.is_empty())
        .or_else(|| networks.map(|networks| ("Networks", networks)));
    let placement = task_template.placement.clone();
    let mut task = container::task(&mut reader, task_template, ids);
    if let Some((path, networks)) = networks
        && let Some(task) = &mut task
    {
        read_networks(&mut reader, path, networks, ids, task);
    }
    let mode = read_mode(&mut reader, mode.unwrap_or_default());
    let placement = placement::from_docker(&mut reader, placement.unwrap_or_default());
    let update = policies::update_from_docker(&mut reader, "UpdateConfig", update_config);
    let rollback = policies::update_from_docker(&mut reader, "RollbackConfig", rollback_config);
    let (endpoint_mode, ports) = read_endpoint(&mut reader, endpoint_spec.unwrap_or_default());
    let SpecReader { wrong, warnings, volumes, profiles } = reader;
    let (Some(name), Some(task), true) = (name, task, wrong.0.is_empty()) else { return Err(wrong) };
    let spec = ServiceSpec {
        labels: labels.unwrap_or_default(),
        mode,
        ports,
        placement,
        endpoint_mode,
        update,
        rollback,
        ..ServiceSpec::new(name, task)
    };
    Ok(ReceivedSpec { spec, volumes, profiles, warnings, force })
}

/// A spec as Docker's clients see it, without what Docker cannot say.
pub fn to_docker(spec: &ServiceSpec, ids: &ObjectIds, defaults: DefaultFields) -> model::ServiceSpec {
    let mode = match spec.mode {
        ServiceMode::Replicated { replicas } => model::ServiceMode {
            replicated: Some(model::ReplicatedMode { replicas: Some(replicas.into()) }),
            ..Default::default()
        },
        ServiceMode::Global => model::ServiceMode { global: Some(model::Empty {}), ..Default::default() },
    };
    let port = |port: &PublishedPort| model::PortConfig {
        name: None,
        protocol: Some(port.protocol.as_str().to_owned()),
        target_port: Some(port.container_port.into()),
        published_port: (port.host_port != 0).then(|| port.host_port.into()),
        publish_mode: Some(if port.is_ingress() { "ingress" } else { "host" }.to_owned()),
    };
    let policy =
        |policy: &UpdatePolicy| defaults.show(policy.is_default(), || policies::update_to_docker(policy));
    model::ServiceSpec {
        name: Some(spec.name.to_string()),
        labels: Some(spec.labels.clone()),
        task_template: Some(model::TaskSpec {
            placement: Some(placement::to_docker(&spec.placement)),
            ..task_to_docker(&spec.task, ids, defaults)
        }),
        mode: Some(mode),
        update_config: policy(&spec.update),
        rollback_config: policy(&spec.rollback),
        networks: None,
        endpoint_spec: Some(model::EndpointSpec {
            mode: Some(spec.endpoint_mode.as_str().to_owned()),
            ports: (!spec.ports.is_empty()).then(|| spec.ports.iter().map(port).collect()),
        }),
    }
}

/// The part of a task as Docker's clients see it.
pub fn task_to_docker(task: &TaskSpec, ids: &ObjectIds, defaults: DefaultFields) -> model::TaskSpec {
    let attachment = |target: String, aliases: Vec<String>| model::NetworkAttachment {
        target: Some(target),
        aliases: (!aliases.is_empty()).then_some(aliases),
        driver_opts: None,
    };
    let networks = match &task.network {
        TaskNetworkMode::Networks(networks) => networks
            .iter()
            .map(|NetworkAttachment { network, aliases }| {
                let aliases = aliases.iter().map(ToString::to_string).collect();
                attachment(id_of(&ids.networks, network.as_str()), aliases)
            })
            .collect(),
        TaskNetworkMode::Host => vec![attachment("host".to_owned(), Vec::new())],
        TaskNetworkMode::None => vec![attachment("none".to_owned(), Vec::new())],
    };
    model::TaskSpec { networks: Some(networks), ..container::to_docker(task, ids, defaults) }
}

fn read_networks(
    reader: &mut SpecReader,
    path: &str,
    networks: Vec<model::NetworkAttachment>,
    ids: &ObjectIds,
    task: &mut TaskSpec,
) {
    let mut attachments = Vec::new();
    let is_alone = networks.len() == 1;
    for (i, network) in networks.into_iter().enumerate() {
        let model::NetworkAttachment { target, aliases, driver_opts } = network;
        let path = format!("{path}[{i}]");
        let is_set = driver_opts.is_some_and(|options| !options.is_empty());
        reader.refuse_if(
            is_set,
            format!("{path}.DriverOpts"),
            "networks have no options of a driver; leave it out",
        );
        let target = target.unwrap_or_default();
        match name_of(&ids.networks, &target) {
            "host" if is_alone => task.network = TaskNetworkMode::Host,
            "none" if is_alone => task.network = TaskNetworkMode::None,
            name => {
                let Some(network) = reader.parse(format!("{path}.Target"), name) else { continue };
                let aliases = aliases.into_iter().flatten().enumerate();
                let aliases = aliases
                    .filter_map(|(n, alias)| reader.parse(format!("{path}.Aliases[{n}]"), &alias))
                    .collect();
                attachments.push(NetworkAttachment { network, aliases });
            }
        }
    }
    if !attachments.is_empty() {
        task.network = TaskNetworkMode::Networks(attachments);
    }
}

fn read_mode(reader: &mut SpecReader, mode: model::ServiceMode) -> ServiceMode {
    let model::ServiceMode { replicated, global, replicated_job, global_job } = mode;
    let message = "this version has no jobs; give Replicated or Global, and the restart condition none";
    reader.refuse_if(replicated_job.is_some(), "Mode.ReplicatedJob", message);
    reader.refuse_if(global_job.is_some(), "Mode.GlobalJob", message);
    match (replicated, global) {
        (Some(_), Some(_)) => {
            reader.refuse("Mode", "has two modes; give Replicated or Global");
            ServiceMode::default()
        }
        (None, Some(model::Empty {})) => ServiceMode::Global,
        (replicated, None) => {
            let replicas = replicated.and_then(|mode| mode.replicas).unwrap_or(1);
            let replicas = u32::try_from(replicas).unwrap_or(u32::MAX);
            ServiceMode::Replicated { replicas }
        }
    }
}

fn read_endpoint(
    reader: &mut SpecReader,
    endpoint: model::EndpointSpec,
) -> (EndpointMode, Vec<PublishedPort>) {
    let model::EndpointSpec { mode, ports } = endpoint;
    let mode = reader.parse_or_default("EndpointSpec.Mode", mode.as_deref());
    let mut read = Vec::new();
    for (i, port) in ports.into_iter().flatten().enumerate() {
        let model::PortConfig { name, protocol, target_port, published_port, publish_mode } = port;
        let path = |field: &str| format!("EndpointSpec.Ports[{i}].{field}");
        reader.refuse_if(
            name.is_some_and(|name| !name.is_empty()),
            path("Name"),
            "ports have no names; leave it out",
        );
        let mut number = |field, number: Option<u32>| {
            let number = number.unwrap_or_default();
            let message = format!("{number} is not a port; give one of 1 to 65535");
            let port = u16::try_from(number);
            reader.refuse_if(port.is_err(), path(field), message);
            port.unwrap_or_default()
        };
        let container_port = number("TargetPort", target_port);
        let host_port = number("PublishedPort", published_port);
        let protocol = reader.parse_or_default(path("Protocol"), protocol.as_deref());
        let mode = match publish_mode.as_deref().unwrap_or_default() {
            "" | "ingress" => PublishMode::Ingress,
            "host" => PublishMode::Host,
            other => {
                reader.refuse(path("PublishMode"), format!("{other:?} is not a mode; give ingress or host"));
                PublishMode::Ingress
            }
        };
        let (prefer_local, client_affinity) = (false, false);
        read.push(PublishedPort {
            host_ip: None,
            host_port,
            container_port,
            protocol,
            mode,
            prefer_local,
            client_affinity,
        });
    }
    (mode, read)
}
