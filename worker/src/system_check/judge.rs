//! Decides about the facts. Pure.

use warren_network::{NetworkRequirement, PortUser};
use warren_runtime::supervise::{self, ContainerdPreview};
use warren_runtime::{
    AppArmorState, CgroupSupport, CgroupVersion, DEFAULT_APPARMOR_PROFILE, MIN_KERNEL, major_minor,
};
use warren_types::Bytes;
use warren_types::NodeCheckOutcome::{self, Failed, Passed, Warning};

use super::facts::{Fact, KernelClock};
use super::{NeededPort, SystemCheckResult};
use crate::node::conditions::{disk_message, mebibytes, memory_message};
use crate::node::meter::{DiskUsage, MemoryUsage};

/// First version of containerd that is supported.
const MIN_CONTAINERD: (u32, u32) = (1, 6);
/// The device to other nodes, which this crate's network creates.
const OVERLAY_DEVICE: &str = warren_network::names::OVERLAY_DEVICE;

/// Outcome, message and hint.
type Judgment = (NodeCheckOutcome, String, String);

fn passed(message: impl Into<String>) -> Judgment {
    (Passed, message.into(), String::new())
}

fn warning(message: impl Into<String>, hint: impl Into<String>) -> Judgment {
    (Warning, message.into(), hint.into())
}

fn failed(message: impl Into<String>, hint: impl Into<String>) -> Judgment {
    (Failed, message.into(), hint.into())
}

/// The result of the check that found this fact.
pub(super) fn judge(name: String, fact: &Fact) -> SystemCheckResult {
    let (outcome, message, hint) = match fact {
        Fact::User(0) => passed("this process runs as root"),
        Fact::User(uid) => failed(format!("this process runs as uid {uid}"), "sudo warren system check"),
        Fact::Kernel(Ok(release)) => judge_kernel(release),
        Fact::Kernel(Err(error)) | Fact::Cgroups(Err(error)) => {
            failed(format!("/proc cannot be read: {error}"), "mount -t proc proc /proc")
        }
        Fact::Cgroups(Ok(cgroups)) => judge_cgroups(cgroups),
        Fact::Overlay(Some(found)) => passed(found),
        Fact::Overlay(None) => failed("this kernel has no overlayfs", "modprobe overlay"),
        Fact::Network(_, Ok(found)) => passed(found),
        Fact::Network(requirement, Err(error)) => {
            failed(error.to_string(), network_hint(*requirement, error))
        }
        Fact::Containerd(Ok(found)) => judge_containerd(found),
        Fact::Containerd(Err(error)) => failed(error.to_string(), containerd_hint(error)),
        Fact::OciRuntime(Ok(version)) => passed(version),
        Fact::OciRuntime(Err(error)) => failed(error.to_string(), runtime_hint(error)),
        Fact::AppArmor { state, has_parser, node } => judge_apparmor(*state, *has_parser, *node),
        Fact::Port { needed, user, node } => judge_port(needed, user, *node),
        Fact::Clock(Ok(clock)) => judge_clock(*clock),
        Fact::Clock(Err(error)) => warning(format!("the kernel's clock cannot be read: {error}"), ""),
        Fact::Disk(disk) => judge_disk(*disk),
        Fact::Memory(memory) => judge_memory(*memory),
        Fact::Nameservers(found) => judge_nameservers(found),
        Fact::NeedsRoot => warning("not checked: only root can", "sudo warren system check"),
        Fact::Late(within) => failed(
            format!("no result within {within:?}"),
            "repeat it; if it stays, look for processes in state D with `ps aux`",
        ),
    };
    SystemCheckResult { name, outcome, message, hint }
}

fn judge_kernel(release: &str) -> Judgment {
    let (major, minor) = MIN_KERNEL;
    match major_minor(release) {
        Some(version) if version >= MIN_KERNEL => passed(format!("Linux {release}")),
        Some(_) => failed(
            format!("Linux {release} is too old: {major}.{minor} or newer is needed"),
            "upgrade the distribution; on Debian: apt-get install linux-image-amd64, then restart",
        ),
        None => warning(format!("the version of the kernel, {release:?}, is not known"), ""),
    }
}

fn judge_cgroups(CgroupSupport { version, missing }: &CgroupSupport) -> Judgment {
    let version = match version {
        CgroupVersion::None => {
            return failed("no cgroups are mounted", "mount -t cgroup2 cgroup2 /sys/fs/cgroup");
        }
        CgroupVersion::V1 => "version 1",
        CgroupVersion::V2 => "version 2",
    };
    if missing.is_empty() {
        return passed(version);
    }
    let hint = match missing.contains(&"memory") {
        true => {
            "add cgroup_enable=memory to the kernel's command line (/etc/default/grub, then update-grub), and \
                 restart"
        }
        false => "use a kernel of the distribution, which has them",
    };
    failed(format!("{version} without the controllers {}", missing.join(", ")), hint)
}

fn network_hint(requirement: NetworkRequirement, error: &warren_network::Error) -> String {
    match (error, requirement) {
        (warren_network::Error::ProgramMissing { package, .. }, _) => format!("apt-get install {package}"),
        (warren_network::Error::KernelFeatureMissing { module, .. }, _) => format!("modprobe {module}"),
        (warren_network::Error::VxlanMissing, _) => "modprobe vxlan".to_owned(),
        (warren_network::Error::ProgramTooOld { .. }, _) => {
            "apt-get update && apt-get install --only-upgrade iptables".to_owned()
        }
        (_, NetworkRequirement::Iptables) => "update-alternatives --config iptables".to_owned(),
        (_, NetworkRequirement::Nftables) => {
            "apt-get install --reinstall nftables && modprobe nf_tables".to_owned()
        }
        (_, NetworkRequirement::Forwarding) => "sysctl -w net.ipv4.ip_forward=1".to_owned(),
        _ => String::new(),
    }
}

fn judge_containerd(ContainerdPreview { version, socket }: &ContainerdPreview) -> Judgment {
    let (major, minor) = MIN_CONTAINERD;
    let found = match socket {
        Some(socket) => format!("version {version} answers at {}", socket.display()),
        None => format!("version {version}, which the node starts itself"),
    };
    match major_minor(version) {
        Some(known) if known < MIN_CONTAINERD => failed(
            format!("{found}, is too old: {major}.{minor} or newer is needed"),
            "apt-get install containerd",
        ),
        _ => passed(found),
    }
}

fn containerd_hint(error: &supervise::Error) -> &'static str {
    match error {
        supervise::Error::NotRoot => "sudo warren system check",
        supervise::Error::Missing { .. } => "apt-get install containerd",
        supervise::Error::NotAnswering { .. } => {
            "systemctl restart containerd; or leave --containerd-socket out"
        }
        supervise::Error::Path { .. } => "choose another directory with --data-dir or --run-dir",
        supervise::Error::Start { .. } => "apt-get install --reinstall containerd",
    }
}

fn runtime_hint(error: &warren_runtime::Error) -> String {
    match error {
        warren_runtime::Error::OciRuntimeMissing { program } if program.components().count() == 1 => {
            format!("apt-get install {}", program.display())
        }
        _ => "choose another program with --runtime, or leave it out for runc".to_owned(),
    }
}

/// A node loads the profile when it starts.
fn judge_apparmor(state: AppArmorState, has_parser: bool, node: Option<u32>) -> Judgment {
    let profile = DEFAULT_APPARMOR_PROFILE;
    match (state, has_parser, node) {
        (AppArmorState::Absent, ..) => passed("the kernel has none, or it is off"),
        (AppArmorState::Loaded, ..) => passed(format!("the profile {profile} is loaded")),
        (AppArmorState::Missing, true, None) => passed(format!("on; the node loads the profile {profile}")),
        (AppArmorState::Missing, true, Some(_)) => warning(
            format!("the profile {profile} is not loaded, so containers have none"),
            "see `journalctl --unit warren` for the reason, and restart the node",
        ),
        (AppArmorState::Missing, false, _) => warning(
            format!("the profile {profile} cannot be loaded, so containers have none: no apparmor_parser"),
            "apt-get install apparmor, and restart the node",
        ),
    }
}

fn judge_port(
    needed: &NeededPort,
    user: &Result<Option<PortUser>, warren_network::Error>,
    node: Option<u32>,
) -> Judgment {
    let NeededPort { purpose, flag, .. } = needed;
    let other = format!("stop it, or choose another port with {flag}");
    match user {
        Ok(None) => passed(format!("{purpose}: free")),
        Ok(Some(PortUser::Process(holder))) if Some(holder.pid) == node => {
            passed(format!("{purpose}: used by the node itself, process {}", holder.pid))
        }
        Ok(Some(PortUser::Device(device))) if device == OVERLAY_DEVICE => {
            passed(format!("{purpose}: used by the node itself, device {device}"))
        }
        Ok(Some(PortUser::Process(holder))) => {
            failed(format!("{purpose}: in use by process {holder}"), other)
        }
        Ok(Some(PortUser::Device(device))) => failed(format!("{purpose}: in use by device {device}"), other),
        // Another user's process is visible to root alone, and may be the node.
        Ok(Some(PortUser::Unknown)) => warning(format!("{purpose}: in use by an unknown process"), other),
        Err(error) => failed(format!("{purpose}: {error}"), format!("choose another with {flag}")),
    }
}

fn judge_clock(clock: KernelClock) -> Judgment {
    if clock.is_synchronised {
        let millis = clock.max_error.as_millis();
        return passed(format!("synchronised, at most {millis} ms off"));
    }
    // Another program may set it, for example the hypervisor's.
    warning("not synchronised, as far as the kernel knows", "apt-get install systemd-timesyncd; or chrony")
}

fn judge_disk(disk: Option<DiskUsage>) -> Judgment {
    match disk {
        None => warning("the file system of the data directory cannot be read", "check --data-dir with `df`"),
        Some(disk) => match disk_message(disk, false) {
            Some(message) => {
                failed(message, "warren image prune, or find large files with `du -xh /var | sort -h`")
            }
            None => passed(format!("{} free", mebibytes(Bytes(disk.total.0.saturating_sub(disk.used.0))))),
        },
    }
}

fn judge_memory(memory: Option<MemoryUsage>) -> Judgment {
    match memory {
        None => warning("/proc/meminfo cannot be read", "mount -t proc proc /proc"),
        Some(memory) => match memory_message(memory, false) {
            Some(message) => warning(message, "find what uses it with `ps aux --sort=-rss`"),
            None => passed(format!(
                "{} available",
                mebibytes(Bytes(memory.total.0.saturating_sub(memory.used.0)))
            )),
        },
    }
}

fn judge_nameservers(found: &std::io::Result<Vec<std::net::SocketAddr>>) -> Judgment {
    let hint = "add a line `nameserver ADDRESS` to /etc/resolv.conf";
    match found {
        Err(error) => warning(format!("/etc/resolv.conf cannot be read: {error}"), hint),
        Ok(servers) if servers.is_empty() => {
            warning("/etc/resolv.conf has no server: containers and registries have no names", hint)
        }
        Ok(servers) => {
            let servers: Vec<String> = servers.iter().map(|server| server.ip().to_string()).collect();
            passed(servers.join(", "))
        }
    }
}

#[cfg(test)]
mod tests;
