//! What every container gets unless it asks otherwise. Source: the documented defaults of Docker Engine.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use oci_spec::runtime as oci;
use oci_spec::runtime::Capability as Cap;

/// Capabilities that let ordinary server software run as root of its container and no more.
const CAPABILITIES: [Cap; 14] = [
    Cap::Chown,
    Cap::DacOverride,
    Cap::Fsetid,
    Cap::Fowner,
    Cap::Mknod,
    Cap::NetRaw,
    Cap::Setgid,
    Cap::Setuid,
    Cap::Setfcap,
    Cap::Setpcap,
    Cap::NetBindService,
    Cap::SysChroot,
    Cap::Kill,
    Cap::AuditWrite,
];

/// Kernel interfaces that tell about other containers or the host.
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

pub(super) fn capabilities() -> oci::LinuxCapabilities {
    let set: oci::Capabilities = CAPABILITIES.into_iter().collect();
    let mut capabilities = oci::LinuxCapabilities::default();
    capabilities
        .set_bounding(Some(set.clone()))
        .set_effective(Some(set.clone()))
        .set_permitted(Some(set))
        .set_inheritable(None)
        .set_ambient(None);
    capabilities
}

/// Lets a user without privileges serve low ports and ping within the container's own network.
pub(super) fn sysctls() -> HashMap<String, String> {
    [("net.ipv4.ip_unprivileged_port_start", "0"), ("net.ipv4.ping_group_range", "0 2147483647")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

pub(super) fn masked_paths() -> Vec<String> {
    MASKED.map(str::to_owned).into()
}

pub(super) fn readonly_paths() -> Vec<String> {
    READONLY.map(str::to_owned).into()
}

pub(super) fn mounts() -> Vec<oci::Mount> {
    let kernel = |target: &str, kind: &str, source: &str, options: &[&str]| {
        mount(Path::new(target), kind, Path::new(source), options)
    };
    vec![
        kernel("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"]),
        kernel("/dev", "tmpfs", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        kernel(
            "/dev/pts",
            "devpts",
            "devpts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        ),
        kernel("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
        kernel("/sys/fs/cgroup", "cgroup", "cgroup", &["nosuid", "noexec", "nodev", "relatime", "ro"]),
        kernel("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        kernel("/dev/shm", "tmpfs", "shm", &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
    ]
}

pub(super) fn mount(target: &Path, kind: &str, source: &Path, options: &[&str]) -> oci::Mount {
    let mut mount = oci::Mount::default();
    mount
        .set_destination(PathBuf::from(target))
        .set_typ(Some(kind.to_owned()))
        .set_source(Some(PathBuf::from(source)))
        .set_options(Some(options.iter().map(|option| (*option).to_owned()).collect()));
    mount
}
