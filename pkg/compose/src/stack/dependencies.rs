//! Which services a service depends on, and what they must have reached.

use std::collections::BTreeMap;

use warren_types::{RestartCondition, ServiceName};

use super::fields::Fields;
use super::{Names, StackService};

/// A service that is created before another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackDependency {
    /// Its name in the cluster.
    pub service: ServiceName,
    /// What it must have reached.
    pub condition: DependencyCondition,
    /// The tasks of the dependent service are replaced when a deployment changes this one.
    pub restart: bool,
}

/// What a dependency must have reached before the dependent service is created or updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DependencyCondition {
    /// It exists.
    Created,
    /// Its tasks are ready.
    Ready,
    /// Its tasks have ended without an error.
    Completed,
}

/// The dependencies of a service.
pub(super) fn dependencies(service: &Fields<'_>, names: &Names<'_>) -> Vec<StackDependency> {
    let mut found = Vec::new();
    for (other, dependency) in service.entries("depends_on") {
        let condition = match dependency.text("condition") {
            None | Some("service_started") => DependencyCondition::Created,
            Some("service_healthy") => DependencyCondition::Ready,
            Some("service_completed_successfully") => DependencyCondition::Completed,
            Some(unknown) => {
                let known = "service_started, service_healthy or service_completed_successfully";
                dependency.fail_at("condition", format!("{unknown:?} is not a condition; give {known}"));
                continue;
            }
        };
        let restart = dependency.flag("restart").unwrap_or_default();
        let service = dependency.parse_text(&format!("{}_{other}", names.stack));
        found.extend(service.map(|service| StackDependency { service, condition, restart }));
    }
    for link in service.items("links") {
        if link.node.as_text().is_some_and(|link| link.contains(':')) {
            link.fail("has an alias, which would be known to one service only; give `aliases` of a network");
        }
    }
    found
}

/// Services that must complete run once, unless the file says when they are started again: `always` contradicts it.
pub(super) fn run_once(services: &mut [StackService], fields: &BTreeMap<&str, Fields<'_>>) {
    let completed = |one: &StackDependency| {
        (one.condition == DependencyCondition::Completed).then(|| one.service.clone())
    };
    let expected: Vec<ServiceName> =
        services.iter().flat_map(|service| service.dependencies.iter().filter_map(completed)).collect();
    for service in services.iter_mut().filter(|service| expected.contains(&service.spec.name)) {
        let key = service.defined.path.strip_prefix("services.").unwrap_or_default();
        let Some(given) = fields.get(key) else { continue };
        let policy = given.sub("deploy").and_then(|deploy| deploy.sub("restart_policy"));
        let condition = policy.as_ref().and_then(|policy| policy.sub("condition"));
        let condition = condition.or_else(|| given.sub("restart").filter(|_| policy.is_none()));
        match condition {
            None => service.spec.task.restart.condition = RestartCondition::None,
            Some(condition) if service.spec.task.restart.condition == RestartCondition::Any => condition
                .fail(
                    "starts it again after its end, but another service waits for that end \
                 (service_completed_successfully); give \"no\", on-failure or none",
                ),
            Some(_) => {}
        }
    }
}
