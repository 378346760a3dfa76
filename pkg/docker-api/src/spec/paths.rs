//! The fields of Docker that parts of a spec come from, for messages.

/// Longer paths after those that begin them.
const FIELDS: [(&str, &str); 38] = [
    ("labels", "Labels"),
    ("mode", "Mode"),
    ("name", "Name"),
    ("placement", "TaskTemplate.Placement"),
    ("ports", "EndpointSpec.Ports"),
    ("rollback", "RollbackConfig"),
    ("task", "TaskTemplate.ContainerSpec"),
    ("task.args", "TaskTemplate.ContainerSpec.Args"),
    ("task.capAdd", "TaskTemplate.ContainerSpec.CapabilityAdd"),
    ("task.capDrop", "TaskTemplate.ContainerSpec.CapabilityDrop"),
    ("task.command", "TaskTemplate.ContainerSpec.Command"),
    ("task.configs", "TaskTemplate.ContainerSpec.Configs"),
    ("task.containerLabels", "TaskTemplate.ContainerSpec.Labels"),
    ("task.dns", "TaskTemplate.ContainerSpec.DNSConfig"),
    ("task.dns.searches", "TaskTemplate.ContainerSpec.DNSConfig.Search"),
    ("task.dns.servers", "TaskTemplate.ContainerSpec.DNSConfig.Nameservers"),
    ("task.env", "TaskTemplate.ContainerSpec.Env"),
    ("task.groups", "TaskTemplate.ContainerSpec.Groups"),
    ("task.health", "TaskTemplate.ContainerSpec.Healthcheck"),
    ("task.hostname", "TaskTemplate.ContainerSpec.Hostname"),
    ("task.hosts", "TaskTemplate.ContainerSpec.Hosts"),
    ("task.image", "TaskTemplate.ContainerSpec.Image"),
    ("task.limits", "TaskTemplate.Resources.Limits"),
    ("task.limits.cpu", "TaskTemplate.Resources.Limits.NanoCPUs"),
    ("task.limits.memory", "TaskTemplate.Resources.Limits.MemoryBytes"),
    ("task.limits.pids", "TaskTemplate.Resources.Limits.Pids"),
    ("task.logs", "TaskTemplate.LogDriver.Options"),
    ("task.mounts", "TaskTemplate.ContainerSpec.Mounts"),
    ("task.network", "TaskTemplate.Networks"),
    ("task.reservations", "TaskTemplate.Resources.Reservations"),
    ("task.restart", "TaskTemplate.RestartPolicy"),
    ("task.secrets", "TaskTemplate.ContainerSpec.Secrets"),
    ("task.stopGrace", "TaskTemplate.ContainerSpec.StopGracePeriod"),
    ("task.sysctls", "TaskTemplate.ContainerSpec.Sysctls"),
    ("task.ulimits", "TaskTemplate.ContainerSpec.Ulimits"),
    ("task.user", "TaskTemplate.ContainerSpec.User"),
    ("task.workdir", "TaskTemplate.ContainerSpec.Dir"),
    ("update", "UpdateConfig"),
];

/// The path in Docker's spec of the longest part of `path` that is known, and the rest of it as it is.
pub fn docker_path(path: &str) -> String {
    let rest =
        |from: &str| path.strip_prefix(from).filter(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
    let found = FIELDS.iter().rev().find_map(|(from, to)| Some(format!("{to}{}", rest(from)?)));
    found.unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_docker() {
        for (path, expected) in [
            ("task.limits.memory", "TaskTemplate.Resources.Limits.MemoryBytes"),
            ("task.env[2].name", "TaskTemplate.ContainerSpec.Env[2].name"),
            ("ports[0].hostPort", "EndpointSpec.Ports[0].hostPort"),
            ("labels[\"a b\"]", "Labels[\"a b\"]"),
            ("task.network.networks", "TaskTemplate.Networks.networks"),
            ("replaceAfter", "replaceAfter"),
        ] {
            assert_eq!(docker_path(path), expected);
        }
    }
}
