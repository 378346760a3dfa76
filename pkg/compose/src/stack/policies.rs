//! How many tasks, on which nodes, and how they are restarted and replaced.

use warren_types::{
    Constraint, FailureAction, FailureRatio, Parallelism, PlacementPreference, RestartCondition,
    RestartPolicy, ServiceMode, ServiceSpec, UpdateOrder, UpdatePolicy,
};

use super::fields::Fields;

/// Keys of constraints with another name in Docker.
const CONSTRAINT_KEYS: [(&str, &str); 3] =
    [("node.hostname", "node.name"), ("node.platform.os", "node.os"), ("node.platform.arch", "node.arch")];

/// Mode, placement and policies.
pub(super) fn policies(service: &Fields<'_>, spec: &mut ServiceSpec) {
    mode(service, spec);
    let deploy = service.sub("deploy");
    if let Some(deploy) = &deploy {
        spec.endpoint_mode = deploy.parse("endpoint_mode").unwrap_or_default();
        if let Some(config) = deploy.sub("update_config") {
            update_policy(&config, &mut spec.update);
        }
        if let Some(config) = deploy.sub("rollback_config") {
            update_policy(&config, &mut spec.rollback);
        }
    }
    if let Some(placement) = deploy.as_ref().and_then(|deploy| deploy.sub("placement")) {
        spec.placement.max_per_node = placement.number("max_replicas_per_node").filter(|most| *most != 0);
        for constraint in placement.items("constraints") {
            let text = constraint.node.as_text().unwrap_or_default();
            let other = CONSTRAINT_KEYS.iter().find_map(|(docker, warren)| {
                let rest = text.trim_start().strip_prefix(docker)?;
                Some(format!("{warren}{rest}"))
            });
            let parsed: Option<Constraint> = constraint.parse_text(other.as_deref().unwrap_or(text));
            spec.placement.constraints.extend(parsed);
        }
        for preference in placement.items("preferences") {
            let Some(label) = preference.sub("spread") else {
                preference.fail("has no label; give `spread`");
                continue;
            };
            let text = format!("spread={}", label.node.as_text().unwrap_or_default());
            let parsed: Option<PlacementPreference> = label.parse_text(&text);
            spec.placement.preferences.extend(parsed);
        }
    }
    if let Some(platform) = service.sub("platform") {
        let mut parts = platform.node.as_text().unwrap_or_default().split('/');
        for key in ["node.os", "node.arch"] {
            if let Some(value) = parts.next() {
                let parsed: Option<Constraint> = platform.parse_text(&format!("{key} == {value}"));
                spec.placement.constraints.extend(parsed);
            }
        }
    }
    spec.task.restart = restart_policy(service, deploy.as_ref());
}

fn mode(service: &Fields<'_>, spec: &mut ServiceSpec) {
    let deploy = service.sub("deploy");
    let given = deploy.as_ref().and_then(|deploy| deploy.number::<u32>("replicas"));
    let scale = service.number::<u32>("scale");
    if let (Some(replicas), Some(scale)) = (given, scale)
        && replicas != scale
    {
        service.fail_at(
            "scale",
            format!("is {scale}, but deploy.replicas is {replicas}; leave one of them out"),
        );
    }
    let replicas = given.or(scale);
    match deploy.as_ref().and_then(|deploy| deploy.text("mode")) {
        None | Some("replicated") => {
            spec.mode = ServiceMode::Replicated { replicas: replicas.unwrap_or(1) };
        }
        Some("global") => {
            spec.mode = ServiceMode::Global;
            if replicas.is_some() {
                service.fail_at(
                    "deploy",
                    "a global service has one task per node; leave the number of replicas out",
                );
            }
        }
        Some(other) => {
            let deploy = deploy.as_ref().unwrap_or(service);
            deploy.fail_at(
                "mode",
                format!("{other:?} is not supported by this version; give replicated or global"),
            );
        }
    }
}

fn update_policy(config: &Fields<'_>, policy: &mut UpdatePolicy) {
    if let Some(slots) = config.number("parallelism") {
        policy.parallelism = Parallelism::Slots(slots);
    }
    policy.delay = config.duration("delay").unwrap_or(policy.delay);
    policy.monitor = config.duration("monitor").unwrap_or(policy.monitor);
    policy.order = config.parse::<UpdateOrder>("order");
    policy.on_failure = config.parse::<FailureAction>("failure_action");
    policy.failure_ratio = config.parse::<FailureRatio>("max_failure_ratio").unwrap_or_default();
}

fn restart_policy(service: &Fields<'_>, deploy: Option<&Fields<'_>>) -> RestartPolicy {
    let mut policy = RestartPolicy::default();
    let given = deploy.and_then(|deploy| deploy.sub("restart_policy"));
    match (given, service.sub("restart")) {
        (Some(given), _) => {
            policy.condition = given.parse("condition").unwrap_or(policy.condition);
            policy.delay = given.duration("delay").unwrap_or(policy.delay);
            policy.max = given.number("max_attempts").unwrap_or(policy.max);
            policy.window = given.duration("window").unwrap_or(policy.window);
        }
        (None, Some(restart)) => {
            let text = restart.node.as_text().unwrap_or_default();
            let (name, most) = text.split_once(':').map_or((text, None), |(name, most)| (name, Some(most)));
            policy.condition = match (name, most) {
                ("no", None) => RestartCondition::None,
                ("always" | "unless-stopped", None) => RestartCondition::Any,
                ("on-failure", _) => RestartCondition::OnFailure,
                _ => {
                    restart.fail(format!(
                        "{text:?} is not a restart policy; give no, always, on-failure, on-failure:N or unless-stopped"
                    ));
                    policy.condition
                }
            };
            if let Some(most) = most.filter(|_| name == "on-failure") {
                policy.max = restart.parse_text(most).unwrap_or(policy.max);
            }
        }
        (None, None) => {}
    }
    policy
}
