//! The objects of Warren that a project describes, as one stack.

mod build;
mod dependencies;
mod fields;
mod health;
mod mounts;
mod policies;
mod resources;
mod service;

use std::collections::BTreeMap;
use std::path::PathBuf;

use warren_types::{
    DnsLabel, NetworkName, NodeName, Protocol, PublishedPort, SecretObjectKind, SecretObjectName,
    ServiceSpec, Volume, VolumeDriver, VolumeName,
};

pub use self::build::StackBuild;
pub use self::dependencies::{DependencyCondition, StackDependency};
use self::fields::{Fields, Report};
use crate::problem::{ComposeProblem, ValuePosition};
use crate::project::Project;
use crate::references::creation_order;

/// The label of every object of a stack, with the name of the stack: the one that Docker sets.
pub const STACK_LABEL: &str = "com.docker.stack.namespace";
/// The network of services that name none.
const DEFAULT_NETWORK: &str = "default";

/// Everything that a stack consists of.
#[derive(Debug, Clone, PartialEq)]
pub struct StackObjects {
    /// Networks to create.
    pub networks: Vec<StackNetwork>,
    /// Volumes to create.
    pub volumes: Vec<StackVolume>,
    /// Secrets and configs to create.
    pub secret_objects: Vec<StackSecretObject>,
    /// Services, each after those that it depends on.
    pub services: Vec<StackService>,
    /// What must exist.
    pub external: Vec<ExternalObject>,
    /// What has another effect than in Docker.
    pub warnings: Vec<ComposeProblem>,
}

/// A network of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackNetwork {
    /// Where it is defined, or what needs it.
    pub defined: ValuePosition,
    /// Its name in the cluster.
    pub name: NetworkName,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its tasks reach nothing outside the cluster.
    pub internal: bool,
}

/// A volume of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackVolume {
    /// Where it is defined, or what needs it.
    pub defined: ValuePosition,
    /// Its name in the cluster.
    pub name: VolumeName,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// How it is stored.
    pub driver: VolumeDriver,
    /// Options of the driver.
    pub options: BTreeMap<String, String>,
    /// The node of its data; `None` for that of its first task.
    pub node: Option<NodeName>,
}

/// A secret or config of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackSecretObject {
    /// Where it is defined, or what needs it.
    pub defined: ValuePosition,
    /// Secret or config.
    pub kind: SecretObjectKind,
    /// Its name in the cluster.
    pub name: SecretObjectName,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Where its data is.
    pub source: SecretObjectSource,
}

/// Where the data of a secret or config is. The data of a secret is never part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretObjectSource {
    /// An absolute path on the machine of the user.
    File(PathBuf),
    /// A variable of the project.
    Variable(String),
    /// The text itself; of configs only.
    Content(String),
    /// With the document of the object, which is no Compose file.
    Document,
    /// The object must exist, and keeps its data; not of Compose files.
    Existing,
}

/// A service of a stack.
#[derive(Debug, Clone, PartialEq)]
pub struct StackService {
    /// Where it is defined.
    pub defined: ValuePosition,
    /// Its spec.
    pub spec: ServiceSpec,
    /// Where each of its published ports is.
    pub ports: Vec<ValuePosition>,
    /// Services that are created before this one.
    pub dependencies: Vec<StackDependency>,
    /// How its image is built.
    pub build: Option<StackBuild>,
    /// Paths that its tasks mount from the machine of the files, so that they run only there.
    pub local_paths: Vec<LocalPath>,
}

/// A path on the machine of the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalPath {
    /// The mount.
    pub defined: ValuePosition,
    /// Absolute.
    pub path: PathBuf,
    /// Create a directory if there is nothing.
    pub create: bool,
}

/// An object that a stack uses and does not create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalObject {
    /// What it is.
    pub kind: ExternalKind,
    /// Its name in the cluster.
    pub name: String,
    /// Where it is named.
    pub defined: ValuePosition,
}

/// The kind of an object that a stack does not create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExternalKind {
    /// A network.
    Network,
    /// A volume.
    Volume,
    /// A secret or config.
    SecretObject(SecretObjectKind),
}

impl ExternalKind {
    /// The noun of its commands.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::Volume => "volume",
            Self::SecretObject(kind) => kind.as_str(),
        }
    }
}

/// Converts a project to the stack `name`.
///
/// # Errors
/// Everything that Warren cannot do, or does not allow.
pub fn stack(project: &Project, name: &DnsLabel) -> Result<StackObjects, Vec<ComposeProblem>> {
    let report = Report::default();
    let root = Fields::new(&project.root, String::new(), &report);
    let mut objects = StackObjects {
        networks: Vec::new(),
        volumes: Vec::new(),
        secret_objects: Vec::new(),
        services: Vec::new(),
        external: Vec::new(),
        warnings: Vec::new(),
    };
    let names = Names { stack: name, root: &root };
    names.networks(&mut objects);
    names.volumes(&mut objects);
    names.secret_objects(SecretObjectKind::Secret, &mut objects);
    names.secret_objects(SecretObjectKind::Config, &mut objects);
    let services: BTreeMap<&str, Fields<'_>> = root.entries("services").into_iter().collect();
    match creation_order(project) {
        Ok(order) => {
            let ordered = order.into_iter().filter_map(|name| Some((name, services.get(name)?)));
            let built = ordered.filter_map(|(key, fields)| service::service(key, fields, &names));
            let (services, profiles): (Vec<_>, Vec<_>) = built.unzip();
            objects.services = services;
            for profile in profiles.into_iter().flatten() {
                if objects
                    .secret_objects
                    .iter()
                    .any(|other| (other.kind, &other.name) == (profile.kind, &profile.name))
                {
                    let message =
                        format!("the profile becomes the config {}, which is another one", profile.name);
                    report.problems.borrow_mut().push(profile.defined.problem(message));
                }
                objects.secret_objects.push(profile);
            }
        }
        Err(problem) => report.problems.borrow_mut().push(problem),
    }
    dependencies::run_once(&mut objects.services, &services);
    build::check_names(&objects.services, &report);
    check_ports(&objects.services, &report);
    let Report { problems, warnings } = report;
    let (mut problems, mut warnings) = (problems.into_inner(), warnings.into_inner());
    problems.sort();
    warnings.sort();
    objects.warnings = warnings;
    if problems.is_empty() { Ok(objects) } else { Err(problems) }
}

/// Services do not publish the same port.
fn check_ports(services: &[StackService], report: &Report) {
    /// The port, its position, and the index of its service.
    type Publisher<'a> = (&'a PublishedPort, &'a ValuePosition, usize);
    let mut published: BTreeMap<(u16, Protocol), Vec<Publisher<'_>>> = BTreeMap::new();
    for (i, service) in services.iter().enumerate() {
        for (port, position) in
            service.spec.ports.iter().zip(&service.ports).filter(|(port, _)| port.host_port != 0)
        {
            let same = published.entry((port.host_port, port.protocol)).or_default();
            // Two ports of one service are compared by the rules of its spec.
            let other = same.iter().find(|(other, _, of)| *of != i && other.conflicts_with(port));
            if let Some((_, other, _)) = other {
                let message = format!(
                    "host port {} is also published by {} ({}); give another port",
                    port.host_port, other.path, other.at
                );
                report.problems.borrow_mut().push(position.problem(message));
            }
            same.push((port, position, i));
        }
    }
}

/// The names in the cluster of what the project defines.
struct Names<'a> {
    stack: &'a DnsLabel,
    root: &'a Fields<'a>,
}

impl Names<'_> {
    /// The name in the cluster of an entry of a section.
    fn name_of(&self, section: &str, key: &str) -> String {
        let entry = self.root.sub(section).and_then(|section| section.sub(key));
        let given = entry.as_ref().and_then(|entry| entry.text("name")).map(str::to_owned);
        let is_external = entry.is_some_and(|entry| entry.flag("external") == Some(true));
        given.unwrap_or_else(|| if is_external { key.to_owned() } else { format!("{}_{key}", self.stack) })
    }

    fn labels(&self, entry: &Fields<'_>) -> BTreeMap<String, String> {
        let mut labels = entry.pairs("labels");
        labels.insert(STACK_LABEL.to_owned(), self.stack.to_string());
        let mut wrong = warren_types::Violations::default();
        warren_types::spec::validate_labels(&labels, &mut wrong);
        for violation in wrong.0 {
            entry.fail_at("labels", violation.message);
        }
        labels
    }

    /// Whether the entry must exist; its other keys have no meaning then.
    fn is_external(
        &self,
        kind: ExternalKind,
        section: &str,
        key: &str,
        entry: &Fields<'_>,
    ) -> Option<ExternalObject> {
        if entry.flag("external") != Some(true) {
            return None;
        }
        let name = self.name_of(section, key);
        let only = ["external", "name"];
        for (other, _) in entry.node.as_map().into_iter().flatten() {
            if !only.contains(&&**other) && !other.starts_with("x-") {
                entry.fail_at(other, "has no meaning for what exists already; leave it out");
            }
        }
        Some(ExternalObject { kind, name, defined: entry.position() })
    }

    fn networks(&self, objects: &mut StackObjects) {
        let is_connected = |service: &Fields<'_>| {
            let networks = service.node.get("networks").and_then(crate::yaml::YamlNode::as_map);
            let named = networks.is_some_and(|networks| networks.contains_key(DEFAULT_NETWORK));
            named
                || (networks.is_none_or(|networks| networks.is_empty())
                    && service.text("network_mode").is_none())
        };
        let needs_default = self.root.entries("services").iter().any(|(_, service)| is_connected(service));
        let entries = self.root.entries("networks");
        if needs_default && entries.iter().all(|(key, _)| *key != DEFAULT_NETWORK) {
            let name = self.name_of("networks", DEFAULT_NETWORK);
            if let Some(name) = self.root.parse_text(&name) {
                let labels = [(STACK_LABEL.to_owned(), self.stack.to_string())].into();
                let defined = self.root.position();
                objects.networks.push(StackNetwork { defined, name, labels, internal: false });
            }
        }
        for (key, entry) in entries {
            if let Some(external) = self.is_external(ExternalKind::Network, "networks", key, &entry) {
                objects.external.push(external);
                continue;
            }
            if !matches!(entry.text("driver"), None | Some("overlay" | "bridge" | "default")) {
                entry.fail_at("driver", "there is one network driver; leave it out");
            }
            if entry.flag("enable_ipv4") == Some(false) {
                entry.fail_at("enable_ipv4", "all networks have IPv4 addresses; leave it out");
            }
            if entry.flag("enable_ipv6") == Some(true) {
                entry.fail_at("enable_ipv6", "this version has no IPv6 addresses; leave it out");
            }
            let Some(name) = entry.parse_text(&self.name_of("networks", key)) else { continue };
            let internal = entry.flag("internal").unwrap_or_default();
            let (defined, labels) = (entry.position(), self.labels(&entry));
            objects.networks.push(StackNetwork { defined, name, labels, internal });
        }
    }

    fn volumes(&self, objects: &mut StackObjects) {
        for (key, entry) in self.root.entries("volumes") {
            if let Some(external) = self.is_external(ExternalKind::Volume, "volumes", key, &entry) {
                objects.external.push(external);
                continue;
            }
            let driver = entry.parse::<VolumeDriver>("driver").unwrap_or_default();
            let options = entry.pairs("driver_opts");
            for violation in Volume::validate(driver, &options).0 {
                entry.fail_at("driver_opts", violation);
            }
            let Some(name) = entry.parse_text(&self.name_of("volumes", key)) else { continue };
            let (defined, labels) = (entry.position(), self.labels(&entry));
            objects.volumes.push(StackVolume { defined, name, labels, driver, options, node: None });
        }
    }

    fn secret_objects(&self, kind: SecretObjectKind, objects: &mut StackObjects) {
        let section = if kind == SecretObjectKind::Secret { "secrets" } else { "configs" };
        for (key, entry) in self.root.entries(section) {
            let external = ExternalKind::SecretObject(kind);
            if let Some(external) = self.is_external(external, section, key, &entry) {
                objects.external.push(external);
                continue;
            }
            let file = entry.text("file").map(|path| SecretObjectSource::File(path.into()));
            let variable =
                entry.text("environment").map(|name| SecretObjectSource::Variable(name.to_owned()));
            let content = entry.text("content").map(|text| SecretObjectSource::Content(text.to_owned()));
            let mut sources: Vec<SecretObjectSource> =
                [file, variable, content].into_iter().flatten().collect();
            if !matches!(entry.text("template_driver"), None | Some("golang")) {
                entry.fail_at("template_driver", "only golang is known");
            }
            let (Some(source), true) = (sources.pop(), sources.is_empty()) else {
                entry
                    .fail("give exactly one of `file`, `environment`, `content` of a config, and `external`");
                continue;
            };
            let Some(name) = entry.parse_text(&self.name_of(section, key)) else { continue };
            let (defined, labels) = (entry.position(), self.labels(&entry));
            objects.secret_objects.push(StackSecretObject { defined, kind, name, labels, source });
        }
    }

    /// Whether the data of a secret or config is a template.
    fn is_template(&self, section: &str, key: &str) -> bool {
        let entry = self.root.sub(section).and_then(|section| section.sub(key));
        entry.is_some_and(|entry| entry.text("template_driver").is_some())
    }
}
