//! What a deployment changes, as a pure function of the stack and of what exists.

use std::collections::{BTreeMap, BTreeSet};

use warren_compose::ValuePosition;
use warren_compose::stack::{
    DependencyCondition, ExternalKind, StackDependency, StackNetwork, StackObjects, StackSecretObject,
    StackService, StackVolume,
};
use warren_proto::convert::stored_service_spec;
use warren_proto::v1;
use warren_types::spec::AUTOMATIC_PORTS;
use warren_types::{PublishMode, PublishedPort, SecretObjectKind, ServiceSpec};

use super::members::{StackMembers, is_bootstrap, service_labels, service_name, stack_of};

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
    CreateNetwork(StackNetwork),
    CreateVolume(StackVolume),
    CreateSecretObject(StackSecretObject),
    /// Nothing changes if the data is the same.
    UpdateSecretObject(StackSecretObject),
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
}

/// Compares a stack with what exists. Services that are not in the stack are removed if `prune` is set.
pub fn plan(name: &str, objects: &StackObjects, existing: &StackMembers, prune: bool) -> DeployPlan {
    let mut plan = DeployPlan::default();
    plan.check_external(objects, existing);
    plan.resources(name, objects, existing);
    let by_name: BTreeMap<&str, &v1::Service> =
        existing.services.iter().map(|one| (service_name(one), one)).collect();
    let mut ports = PublishedPorts::of(&existing.services);
    let named: BTreeSet<&str> = objects.services.iter().map(|service| service.spec.name.as_str()).collect();
    let removed = existing.of(name).services.into_iter().filter(|found| !named.contains(service_name(found)));
    let (kept, mut removed): (Vec<_>, Vec<_>) = removed.filter(|_| prune).partition(is_bootstrap);
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
        plan.service(name, service, after, found);
    }
    plan.steps.extend(removed.into_iter().map(|found| DeployStep::RemoveService { found: Box::new(found) }));
    plan
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

    fn resources(&mut self, stack: &str, objects: &StackObjects, existing: &StackMembers) {
        for network in &objects.networks {
            let what = format!("network {}", network.name);
            match existing.networks.iter().find(|one| one.name == network.name.as_str()) {
                None => self.steps.push(DeployStep::CreateNetwork(network.clone())),
                Some(found) if self.is_own(stack, &network.defined, &what, &found.labels) => {
                    if found.internal != network.internal {
                        let why = format!(
                            "{what} exists with `internal: {}`, which cannot be changed; remove it, or rename it",
                            found.internal
                        );
                        self.conflict(&network.defined, why);
                    }
                    self.compare_labels(&what, &found.labels, &network.labels);
                }
                Some(_) => {}
            }
        }
        for volume in &objects.volumes {
            let what = format!("volume {}", volume.name);
            match existing.volumes.iter().find(|one| one.name == volume.name.as_str()) {
                None => self.steps.push(DeployStep::CreateVolume(volume.clone())),
                Some(found) if self.is_own(stack, &volume.defined, &what, &found.labels) => {
                    if found.options != volume.options {
                        let why = format!(
                            "{what} exists with other options, which cannot be changed; remove it, or give another name"
                        );
                        self.conflict(&volume.defined, why);
                    }
                    self.compare_labels(&what, &found.labels, &volume.labels);
                }
                Some(_) => {}
            }
        }
        for object in &objects.secret_objects {
            let what = format!("{} {}", object.kind, object.name);
            let known =
                if object.kind == SecretObjectKind::Config { &existing.configs } else { &existing.secrets };
            match known.iter().find(|one| one.name == object.name.as_str()) {
                None => self.steps.push(DeployStep::CreateSecretObject(object.clone())),
                Some(found) if self.is_own(stack, &object.defined, &what, &found.labels) => {
                    self.compare_labels(&what, &found.labels, &object.labels);
                    self.steps.push(DeployStep::UpdateSecretObject(object.clone()));
                }
                Some(_) => {}
            }
        }
    }

    /// Whether an object is of the stack; another one is a conflict.
    fn is_own(
        &mut self,
        stack: &str,
        defined: &ValuePosition,
        what: &str,
        labels: &BTreeMap<String, String>,
    ) -> bool {
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

    fn conflict(&mut self, defined: &ValuePosition, why: String) {
        self.conflicts.push(defined.problem(why).to_string());
    }

    fn compare_labels(
        &mut self,
        what: &str,
        found: &BTreeMap<String, String>,
        expected: &BTreeMap<String, String>,
    ) {
        if found != expected {
            self.warnings.push(format!("{what} keeps its labels, which are set when it is created"));
        }
    }

    fn service(
        &mut self,
        stack: &str,
        service: &StackService,
        after: Vec<StackDependency>,
        found: Option<&v1::Service>,
    ) {
        let spec = &service.spec;
        let Some(found) = found else {
            return self.steps.push(DeployStep::CreateService { spec: Box::new(spec.clone()), after });
        };
        let what = format!("service {}", spec.name);
        if !self.is_own(stack, &service.defined, &what, &service_labels(found)) {
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
        // Compose files do not have these.
        let (per, bootstrap) = (old.per.clone(), old.bootstrap);
        let has_ingress = spec.ports.iter().any(|port| port.mode == PublishMode::Ingress);
        let publish_on = if has_ingress { old.publish_on.clone() } else { Vec::new() };
        let spec = ServiceSpec { per, bootstrap, publish_on, ..with_chosen_ports(spec, &old) };
        let spec = Box::new(spec);
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
