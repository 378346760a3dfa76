//! Defaults of all containers. Source: the documented defaults of Docker Engine.

use std::collections::{BTreeMap, HashMap};

use crate::container::{ContainerSpec, NetworkMode};

/// Kernel interfaces that expose other containers or the host.
const MASKED: [&str; 11] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];

/// Kernel interfaces that change the host when written.
const READONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Let unprivileged users bind low ports and ping within the container's own network.
const SYSCTLS: [(&str, &str); 2] =
    [("net.ipv4.ip_unprivileged_port_start", "0"), ("net.ipv4.ping_group_range", "0 2147483647")];

/// The groups that may ping, where the container has a user namespace of its own: no others exist there.
const PRIVATE_PING_GROUPS: (&str, &str) = ("net.ipv4.ping_group_range", "0 65535");

/// The defaults and the spec's settings over them. The settings of the host network are not changed.
pub(super) fn sysctls(spec: &ContainerSpec) -> HashMap<String, String> {
    let own = SYSCTLS.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let private = spec.user_namespace.iter().map(|_| PRIVATE_PING_GROUPS);
    let private = private.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let own = own.into_iter().chain(private).filter(|_| spec.network != NetworkMode::Host);
    let asked: &BTreeMap<String, String> = &spec.sysctls;
    own.chain(asked.clone()).collect()
}

pub(super) fn masked_paths() -> Vec<String> {
    MASKED.map(str::to_owned).into()
}

pub(super) fn readonly_paths() -> Vec<String> {
    READONLY.map(str::to_owned).into()
}
