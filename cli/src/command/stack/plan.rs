//! What a deployment changes, as a pure function of the stack and of what exists.

use std::collections::BTreeMap;

use warren_compose::stack::{ExternalKind, StackNetwork, StackObjects, StackSecretObject, StackVolume};
use warren_proto::convert::stored_service_spec;
use warren_proto::v1;
use warren_types::spec::AUTOMATIC_PORTS;
use warren_types::{SecretObjectKind, ServiceName, ServiceSpec};

use super::members::{StackMembers, service_labels, service_name, stack_of};

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
        after_ready: Vec<ServiceName>,
    },
    UpdateService {
        spec: Box<ServiceSpec>,
        after_ready: Vec<ServiceName>,
        found: Box<v1::Service>,
    },
    KeepService {
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
    for service in &objects.services {
        let found = existing.services.iter().find(|one| service_name(one) == service.spec.name.as_str());
        plan.service(name, &service.spec, &service.after_ready, found);
    }
    if prune {
        let is_named = |name: &str| objects.services.iter().any(|service| service.spec.name.as_str() == name);
        let removed = existing.of(name).services.into_iter().filter(|found| !is_named(service_name(found)));
        plan.steps.extend(removed.map(|found| DeployStep::RemoveService { found: Box::new(found) }));
    }
    plan
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
                self.conflicts.push(external.missing.to_string());
            }
        }
    }

    fn resources(&mut self, stack: &str, objects: &StackObjects, existing: &StackMembers) {
        for network in &objects.networks {
            let what = format!("network {}", network.name);
            match existing.networks.iter().find(|one| one.name == network.name.as_str()) {
                None => self.steps.push(DeployStep::CreateNetwork(network.clone())),
                Some(found) if self.is_own(stack, &what, &found.labels) => {
                    if found.internal != network.internal {
                        self.conflicts.push(format!(
                            "{what} exists with `internal: {}`, which cannot be changed; remove it, or rename it",
                            found.internal
                        ));
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
                Some(found) if self.is_own(stack, &what, &found.labels) => {
                    if found.options != volume.options {
                        self.conflicts.push(format!(
                            "{what} exists with other options, which cannot be changed; remove it, or give another name"
                        ));
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
                Some(found) if self.is_own(stack, &what, &found.labels) => {
                    self.compare_labels(&what, &found.labels, &object.labels);
                    self.steps.push(DeployStep::UpdateSecretObject(object.clone()));
                }
                Some(_) => {}
            }
        }
    }

    /// Whether an object is of the stack; another one is a conflict.
    fn is_own(&mut self, stack: &str, what: &str, labels: &BTreeMap<String, String>) -> bool {
        let owner = stack_of(labels);
        if owner != Some(stack) {
            let of = owner.map_or("is of no stack".to_owned(), |owner| format!("is of stack {owner}"));
            self.conflicts.push(format!(
                "{what} exists and {of}; remove it, give another `name`, or use it with `external: true`"
            ));
        }
        owner == Some(stack)
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
        spec: &ServiceSpec,
        after_ready: &[ServiceName],
        found: Option<&v1::Service>,
    ) {
        let after_ready = after_ready.to_vec();
        let Some(found) = found else {
            return self.steps.push(DeployStep::CreateService { spec: Box::new(spec.clone()), after_ready });
        };
        let what = format!("service {}", spec.name);
        if !self.is_own(stack, &what, &service_labels(found)) {
            return;
        }
        let old = found.spec.clone().map(stored_service_spec);
        let Some(Ok(old)) = old else {
            return self.conflicts.push(format!("{what} has a spec that this version cannot read"));
        };
        if std::mem::discriminant(&old.mode) != std::mem::discriminant(&spec.mode) {
            return self.conflicts.push(format!(
                "{what} changes between replicated and global, which no update can do; remove it first"
            ));
        }
        let spec = with_chosen_ports(spec, &old);
        let found = Box::new(found.clone());
        self.steps.push(match spec == old {
            true => DeployStep::KeepService { found },
            false => DeployStep::UpdateService { spec: Box::new(spec), after_ready, found },
        });
    }
}

/// The spec with the ports that were chosen for its automatic ones.
fn with_chosen_ports(spec: &ServiceSpec, old: &ServiceSpec) -> ServiceSpec {
    let mut spec = spec.clone();
    let mut chosen: Vec<_> =
        old.ports.iter().filter(|port| AUTOMATIC_PORTS.contains(&port.host_port)).collect();
    for port in spec.ports.iter_mut().filter(|port| port.host_port == 0) {
        let same = |one: &&warren_types::PublishedPort| {
            (one.host_ip, one.container_port, one.protocol)
                == (port.host_ip, port.container_port, port.protocol)
        };
        if let Some(place) = chosen.iter().position(same) {
            port.host_port = chosen.remove(place).host_port;
        }
    }
    spec
}
