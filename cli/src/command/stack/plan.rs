//! What a deployment changes, as a pure function of the objects and of what exists.

use std::collections::{BTreeMap, BTreeSet};

use warren_client::NodeChange;
use warren_compose::ValuePosition;
use warren_compose::stack::{
    DependencyCondition, ExternalKind, SecretObjectSource, StackDependency, StackNetwork, StackObjects,
    StackSecretObject, StackService, StackVolume,
};
use warren_proto::convert::stored_service_spec;
use warren_proto::v1;
use warren_types::spec::AUTOMATIC_PORTS;
use warren_types::{PublishMode, PublishedPort, SecretObjectKind, ServiceName, ServiceSpec};

use super::members::{StackMembers, is_bootstrap, service_labels, service_name, stack_of};

/// Which objects a deployment may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeployScope<'a> {
    /// Those of the stack with this name. Others are conflicts.
    Stack(&'a str),
    /// Those that the documents name, whatever stack they are of.
    Documents,
}

/// The steps of a deployment in order, and what prevents it.
#[derive(Debug, Default)]
pub struct DeployPlan {
    pub steps: Vec<DeployStep>,
    pub conflicts: Vec<String>,
    pub warnings: Vec<String>,
}

/// One step.
#[derive(Debug)]
pub enum DeployStep {
    UpdateNode {
        change: Box<NodeChange>,
        found: Box<v1::Node>,
    },
    CreateNetwork(StackNetwork),
    CreateVolume(StackVolume),
    CreateSecretObject(StackSecretObject),
    /// Nothing changes if the data is the same.
    UpdateSecretObject {
        object: StackSecretObject,
        found: Box<v1::SecretObject>,
    },
    /// Of documents: an object is as it should be.
    Keep {
        kind: &'static str,
        name: String,
    },
    CreateService {
        spec: Box<ServiceSpec>,
        after: Vec<StackDependency>,
    },
    UpdateService {
        spec: Box<ServiceSpec>,
        after: Vec<StackDependency>,
        found: Box<v1::Service>,
    },
    KeepService {
        spec: Box<ServiceSpec>,
        after: Vec<StackDependency>,
        found: Box<v1::Service>,
    },
    RemoveService {
        found: Box<v1::Service>,
    },
    RemoveSecretObject {
        kind: SecretObjectKind,
        found: Box<v1::SecretObject>,
    },
    RemoveVolume {
        found: Box<v1::Volume>,
    },
    RemoveNetwork {
        found: Box<v1::Network>,
    },
}

/// Compares objects with what exists. The services of `prunable` that are not among the objects are removed.
pub fn plan(
    scope: DeployScope<'_>,
    objects: &StackObjects,
    existing: &StackMembers,
    prunable: Vec<v1::Service>,
) -> DeployPlan {
    let mut plan = DeployPlan::default();
    plan.check_external(objects, existing);
    plan.networks(scope, objects, existing);
    plan.volumes(scope, objects, existing);
    plan.secret_objects(scope, objects, existing);
    let by_name: BTreeMap<&str, &v1::Service> =
        existing.services.iter().map(|one| (service_name(one), one)).collect();
    let mut ports = PublishedPorts::of(&existing.services);
    let named: BTreeSet<&str> = objects.services.iter().map(|service| service.spec.name.as_str()).collect();
    let removed = prunable.into_iter().filter(|found| !named.contains(service_name(found)));
    let (kept, mut removed): (Vec<_>, Vec<_>) = removed.partition(is_bootstrap);
    for name in kept.iter().map(service_name) {
        plan.warnings.push(format!(
            "service {name} is a bootstrap service and stays; remove it with `warren service rm --force {name}`"
        ));
    }
    for service in &objects.services {
        let own = service.spec.name.as_str();
        let found = by_name.get(own).copied();
        let mut after = service.dependencies.clone();
        for (port, position) in service.spec.ports.iter().zip(&service.ports) {
            let Some(owner) = ports.owner(own, port).map(str::to_owned) else { continue };
            match removed.iter().position(|one| service_name(one) == owner).map(|i| removed.swap_remove(i)) {
                Some(found) => {
                    ports.withdraw(&found);
                    let condition = DependencyCondition::Ready;
                    let gone = |service| StackDependency { service, condition, restart: false };
                    after.extend(owner.parse().map(gone));
                    plan.steps.push(DeployStep::RemoveService { found: Box::new(found) });
                }
                None => plan.conflict(position, port_taken(port, &owner)),
            }
        }
        found.into_iter().for_each(|found| ports.withdraw(found));
        ports.publish(own, service.spec.ports.iter().copied());
        plan.service(scope, service, after, found);
    }
    plan.steps.extend(removed.into_iter().map(|found| DeployStep::RemoveService { found: Box::new(found) }));
    plan
}

/// The dependency for whose new tasks a service gets new ones, given the names of the `changed` services.
pub fn restarted_after<'a>(
    after: &'a [StackDependency],
    changed: &BTreeSet<String>,
) -> Option<&'a ServiceName> {
    let restarting = after.iter().filter(|dependency| dependency.restart);
    restarting.map(|dependency| &dependency.service).find(|service| changed.contains(service.as_str()))
}

fn port_taken(port: &PublishedPort, owner: &str) -> String {
    format!(
        "host port {} is published by service {owner}; give another port, or remove it there first",
        port.host_port
    )
}

impl DeployPlan {
    fn check_external(&mut self, objects: &StackObjects, existing: &StackMembers) {
        for external in &objects.external {
            let name = &external.name;
            let exists = match external.kind {
                ExternalKind::Network => existing.networks.iter().any(|one| one.name == *name),
                ExternalKind::Volume => existing.volumes.iter().any(|one| one.name == *name),
                ExternalKind::SecretObject(SecretObjectKind::Config) => {
                    existing.configs.iter().any(|one| one.name == *name)
                }
                ExternalKind::SecretObject(_) => existing.secrets.iter().any(|one| one.name == *name),
            };
            if !exists {
                let kind = external.kind.as_str();
                let why = format!(
                    "there is no {kind} {name} in the cluster; create it with `warren {kind} create`"
                );
                self.conflict(&external.defined, why);
            }
        }
    }

    fn networks(&mut self, scope: DeployScope<'_>, objects: &StackObjects, existing: &StackMembers) {
        for network in &objects.networks {
            let what = format!("network {}", network.name);
            match existing.networks.iter().find(|one| one.name == network.name.as_str()) {
                None => self.steps.push(DeployStep::CreateNetwork(network.clone())),
                Some(found) if self.is_own(scope, &network.defined, &what, &found.labels) => {
                    if found.internal != network.internal {
                        let why = format!(
                            "{what} exists with `internal: {}`, which cannot be changed; remove it, or rename it",
                            found.internal
                        );
                        self.conflict(&network.defined, why);
                    }
                    self.compare_labels(scope, &network.defined, &what, (&found.labels, &network.labels));
                    self.keep(scope, "network", network.name.as_str());
                }
                Some(_) => {}
            }
        }
    }

    fn volumes(&mut self, scope: DeployScope<'_>, objects: &StackObjects, existing: &StackMembers) {
        for volume in &objects.volumes {
            let what = format!("volume {}", volume.name);
            match existing.volumes.iter().find(|one| one.name == volume.name.as_str()) {
                None => self.steps.push(DeployStep::CreateVolume(volume.clone())),
                Some(found) if self.is_own(scope, &volume.defined, &what, &found.labels) => {
                    if found.options != volume.options {
                        let why = format!(
                            "{what} exists with other options, which cannot be changed; remove it, or give another name"
                        );
                        self.conflict(&volume.defined, why);
                    }
                    let is_elsewhere = |node: &str| !found.node_name.is_empty() && found.node_name != node;
                    if volume.node.as_ref().is_some_and(|node| is_elsewhere(node.as_str())) {
                        let why = format!(
                            "{what} has its data on node {}, which cannot be changed; name that node, or leave it out",
                            found.node_name
                        );
                        self.conflict(&volume.defined, why);
                    }
                    self.compare_labels(scope, &volume.defined, &what, (&found.labels, &volume.labels));
                    self.keep(scope, "volume", volume.name.as_str());
                }
                Some(_) => {}
            }
        }
    }

    fn secret_objects(&mut self, scope: DeployScope<'_>, objects: &StackObjects, existing: &StackMembers) {
        for object in &objects.secret_objects {
            let what = format!("{} {}", object.kind, object.name);
            let known =
                if object.kind == SecretObjectKind::Config { &existing.configs } else { &existing.secrets };
            match known.iter().find(|one| one.name == object.name.as_str()) {
                None if object.source == SecretObjectSource::Existing => {
                    let why =
                        format!("{what} does not exist; give its data as `data`, `stringData` or `file`");
                    self.conflict(&object.defined, why);
                }
                None => self.steps.push(DeployStep::CreateSecretObject(object.clone())),
                Some(found) if self.is_own(scope, &object.defined, &what, &found.labels) => {
                    self.compare_labels(scope, &object.defined, &what, (&found.labels, &object.labels));
                    match object.source == SecretObjectSource::Existing {
                        true => self.keep(scope, object.kind.as_str(), object.name.as_str()),
                        false => {
                            let (object, found) = (object.clone(), Box::new(found.clone()));
                            self.steps.push(DeployStep::UpdateSecretObject { object, found });
                        }
                    }
                }
                Some(_) => {}
            }
        }
    }

    /// Documents list every object.
    fn keep(&mut self, scope: DeployScope<'_>, kind: &'static str, name: &str) {
        if scope == DeployScope::Documents {
            self.steps.push(DeployStep::Keep { kind, name: name.to_owned() });
        }
    }

    /// Whether an object is of the stack; another one is a conflict.
    fn is_own(
        &mut self,
        scope: DeployScope<'_>,
        defined: &ValuePosition,
        what: &str,
        labels: &BTreeMap<String, String>,
    ) -> bool {
        let DeployScope::Stack(stack) = scope else { return true };
        let owner = stack_of(labels);
        if owner != Some(stack) {
            let of = owner.map_or("is of no stack".to_owned(), |owner| format!("is of stack {owner}"));
            let what_to_do = match what.starts_with("service ") {
                true => "remove it, or give the stack another name",
                false => "remove it, give another `name`, or use it with `external: true`",
            };
            self.conflict(defined, format!("{what} exists and {of}; {what_to_do}"));
        }
        owner == Some(stack)
    }

    pub fn conflict(&mut self, defined: &ValuePosition, why: String) {
        self.conflicts.push(defined.problem(why).to_string());
    }

    /// Compares the labels that an object has with those that it should have.
    fn compare_labels(
        &mut self,
        scope: DeployScope<'_>,
        defined: &ValuePosition,
        what: &str,
        (found, expected): (&BTreeMap<String, String>, &BTreeMap<String, String>),
    ) {
        match scope {
            _ if found == expected => {}
            DeployScope::Stack(_) => {
                self.warnings.push(format!("{what} keeps its labels, which are set when it is created"));
            }
            DeployScope::Documents => {
                let why = format!(
                    "{what} exists with other labels, which cannot be changed; give those, or remove it"
                );
                self.conflict(defined, why);
            }
        }
    }

    fn service(
        &mut self,
        scope: DeployScope<'_>,
        service: &StackService,
        after: Vec<StackDependency>,
        found: Option<&v1::Service>,
    ) {
        let spec = &service.spec;
        let Some(found) = found else {
            return self.steps.push(DeployStep::CreateService { spec: Box::new(spec.clone()), after });
        };
        let what = format!("service {}", spec.name);
        if !self.is_own(scope, &service.defined, &what, &service_labels(found)) {
            return;
        }
        let old = found.spec.clone().map(stored_service_spec);
        let Some(Ok(old)) = old else {
            return self
                .conflict(&service.defined, format!("{what} has a spec that this version cannot read"));
        };
        if std::mem::discriminant(&old.mode) != std::mem::discriminant(&spec.mode) {
            let why = format!(
                "{what} changes between replicated and global, which no update can do; remove it first"
            );
            return self.conflict(&service.defined, why);
        }
        let mut spec = Box::new(with_chosen_ports(spec, &old));
        if let DeployScope::Stack(_) = scope {
            // Compose files do not have these. Documents have all fields.
            (spec.per, spec.bootstrap) = (old.per.clone(), old.bootstrap);
            let has_ingress = spec.ports.iter().any(|port| port.mode == PublishMode::Ingress);
            spec.publish_on = if has_ingress { old.publish_on.clone() } else { Vec::new() };
        }
        let found = Box::new(found.clone());
        self.steps.push(match *spec == old {
            true => DeployStep::KeepService { spec, after, found },
            false => DeployStep::UpdateService { spec, after, found },
        });
    }
}

/// The ports that services publish, with the names of the services, while the steps are executed one after the other.
struct PublishedPorts(BTreeMap<u16, Vec<(String, PublishedPort)>>);

impl PublishedPorts {
    fn of(services: &[v1::Service]) -> Self {
        let mut all = Self(BTreeMap::new());
        services.iter().for_each(|service| all.publish(service_name(service), ports_of(service)));
        all
    }

    fn publish(&mut self, service: &str, ports: impl Iterator<Item = PublishedPort>) {
        for port in ports.filter(|port| port.host_port != 0) {
            self.0.entry(port.host_port).or_default().push((service.to_owned(), port));
        }
    }

    fn withdraw(&mut self, service: &v1::Service) {
        for port in ports_of(service) {
            let same = self.0.get_mut(&port.host_port);
            same.into_iter().for_each(|same| same.retain(|(owner, _)| owner != service_name(service)));
        }
    }

    /// The other service that publishes the port.
    fn owner(&self, service: &str, port: &PublishedPort) -> Option<&str> {
        let same = self.0.get(&port.host_port)?;
        let other = same.iter().find(|(owner, other)| owner != service && other.conflicts_with(port));
        other.map(|(owner, _)| owner.as_str())
    }
}

/// The ports of a service; one that this version cannot read is left to the manager.
fn ports_of(service: &v1::Service) -> impl Iterator<Item = PublishedPort> {
    let ports = service.spec.iter().flat_map(|spec| &spec.ports);
    ports.filter_map(|port| PublishedPort::try_from(port.clone()).ok())
}

/// The spec with the ports that were chosen for its automatic ones.
fn with_chosen_ports(spec: &ServiceSpec, old: &ServiceSpec) -> ServiceSpec {
    let mut spec = spec.clone();
    let mut chosen: Vec<_> =
        old.ports.iter().filter(|port| AUTOMATIC_PORTS.contains(&port.host_port)).collect();
    for port in spec.ports.iter_mut().filter(|port| port.host_port == 0) {
        let same = |one: &&PublishedPort| {
            (one.host_ip, one.container_port, one.protocol)
                == (port.host_ip, port.container_port, port.protocol)
        };
        if let Some(place) = chosen.iter().position(same) {
            port.host_port = chosen.remove(place).host_port;
        }
    }
    spec
}
