//! What the kernel enforces on a container and on each of its processes.
//!
//! The document has one set of words, those of cgroup version 1. On version 2 runc and crun translate them
//! (runc's `libcontainer/cgroups/fs2`): shares to a weight, the limit of memory and swap together to one of
//! swap alone, the reservation to `memory.low`. So nothing needs version 2's own keys.

use oci_spec::runtime as oci;
use oci_spec::runtime::PosixRlimitType as Kind;

use super::{DeviceNode, Host};
use crate::container::{Access, ContainerSpec, Limits, Reservations, Ulimit};

/// The period of CPU limits in microseconds, and the shares that one whole CPU weighs.
const CPU_PERIOD: u64 = 100_000;
const SHARES_PER_CPU: u64 = 1024;
/// The kernel's bounds.
const MIN_SHARES: u64 = 2;
const MAX_SHARES: u64 = 262_144;

pub(super) fn resources(spec: &ContainerSpec, devices: &[DeviceNode], host: Host) -> oci::LinuxResources {
    let mut resources = oci::LinuxResources::default();
    resources
        .set_devices(Some(device_rules(spec, devices)))
        .set_cpu(cpu(&spec.limits, &spec.reservations))
        .set_memory(memory(&spec.limits, &spec.reservations, host))
        .set_pids(spec.limits.pids.map(|limit| {
            let mut pids = oci::LinuxPids::default();
            pids.set_limit(i64::from(limit));
            pids
        }));
    resources
}

/// runc adds the few devices every container has after these.
fn device_rules(spec: &ContainerSpec, devices: &[DeviceNode]) -> Vec<oci::LinuxDeviceCgroup> {
    let mut rule = oci::LinuxDeviceCgroup::default();
    rule.set_allow(spec.privileged).set_access(Some(Access::FULL.letters()));
    let mut rules = vec![rule];
    if !spec.privileged {
        rules.extend(devices.iter().map(|device| {
            let mut rule = oci::LinuxDeviceCgroup::default();
            rule.set_allow(true)
                .set_typ(Some(device.kind))
                .set_major(Some(device.major))
                .set_minor(Some(device.minor))
                .set_access(Some(device.access.letters()));
            rule
        }));
    }
    rules
}

fn cpu(limits: &Limits, reservations: &Reservations) -> Option<oci::LinuxCpu> {
    let weight = reservations.cpu.or(limits.cpu)?;
    let mut cpu = oci::LinuxCpu::default();
    cpu.set_shares(Some((weight.0 * SHARES_PER_CPU / 1000).clamp(MIN_SHARES, MAX_SHARES)));
    if let Some(limit) = limits.cpu {
        let quota = i64::try_from(limit.0 * CPU_PERIOD / 1000).unwrap_or(i64::MAX);
        cpu.set_period(Some(CPU_PERIOD)).set_quota(Some(quota));
    }
    Some(cpu)
}

fn memory(limits: &Limits, reservations: &Reservations, host: Host) -> Option<oci::LinuxMemory> {
    if limits.memory.is_none() && reservations.memory.is_none() {
        return None;
    }
    let bytes = |bytes: warren_types::Bytes| i64::try_from(bytes.0).unwrap_or(i64::MAX);
    let limit = limits.memory.map(bytes);
    let mut memory = oci::LinuxMemory::default();
    memory
        .set_limit(limit)
        // The same for both together: no swap at all.
        .set_swap(limit.filter(|_| host.limits_swap))
        .set_reservation(reservations.memory.map(bytes));
    Some(memory)
}

/// The limit that Docker and `ulimit` know by this name.
pub(crate) fn ulimit_kind(name: &str) -> Option<Kind> {
    Some(match name {
        "as" => Kind::RlimitAs,
        "core" => Kind::RlimitCore,
        "cpu" => Kind::RlimitCpu,
        "data" => Kind::RlimitData,
        "fsize" => Kind::RlimitFsize,
        "locks" => Kind::RlimitLocks,
        "memlock" => Kind::RlimitMemlock,
        "msgqueue" => Kind::RlimitMsgqueue,
        "nice" => Kind::RlimitNice,
        "nofile" => Kind::RlimitNofile,
        "nproc" => Kind::RlimitNproc,
        "rss" => Kind::RlimitRss,
        "rtprio" => Kind::RlimitRtprio,
        "rttime" => Kind::RlimitRttime,
        "sigpending" => Kind::RlimitSigpending,
        "stack" => Kind::RlimitStack,
        _ => return None,
    })
}

/// `None`: containerd's own. runc may lower those, but raise them only with the right capability.
pub(super) fn rlimits(ulimits: &[Ulimit]) -> Option<Vec<oci::PosixRlimit>> {
    let limit = |ulimit: &Ulimit| {
        let limit = oci::PosixRlimitBuilder::default().typ(ulimit_kind(&ulimit.name)?);
        let limit = limit.soft(ulimit.soft).hard(ulimit.hard).build();
        Some(limit.expect("kind, soft and hard are set"))
    };
    let limits: Vec<oci::PosixRlimit> = ulimits.iter().filter_map(limit).collect();
    (!limits.is_empty()).then_some(limits)
}
