//! Resource limits of a container and of its processes.
//!
//! The document uses the terms of cgroup version 1. On version 2 runc and crun translate them (runc's
//! `libcontainer/cgroups/fs2`): shares to a weight, the limit of memory and swap together to one of swap
//! alone, the reservation to `memory.low`. So version 2's own keys are not needed.

use oci_spec::runtime as oci;

use super::{DeviceNode, HostFeatures};
use crate::container::{
    ContainerLimits, ContainerReservations, ContainerSpec, ContainerUlimit, DevicePermissions, ulimit_kind,
};

/// Period of CPU limits in microseconds, and the shares of one CPU.
const CPU_PERIOD: u64 = 100_000;
const SHARES_PER_CPU: u64 = 1024;
/// Bounds of the kernel.
const MIN_SHARES: u64 = 2;
const MAX_SHARES: u64 = 262_144;

pub(super) fn resources(
    spec: &ContainerSpec,
    devices: &[DeviceNode],
    host: HostFeatures,
) -> oci::LinuxResources {
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

/// runc appends the default devices of every container.
fn device_rules(spec: &ContainerSpec, devices: &[DeviceNode]) -> Vec<oci::LinuxDeviceCgroup> {
    let mut rule = oci::LinuxDeviceCgroup::default();
    rule.set_allow(spec.privileged).set_access(Some(DevicePermissions::FULL.as_rwm()));
    let mut rules = vec![rule];
    if !spec.privileged {
        rules.extend(devices.iter().map(|device| {
            let mut rule = oci::LinuxDeviceCgroup::default();
            rule.set_allow(true)
                .set_typ(Some(device.kind))
                .set_major(Some(device.major))
                .set_minor(Some(device.minor))
                .set_access(Some(device.access.as_rwm()));
            rule
        }));
    }
    rules
}

fn cpu(limits: &ContainerLimits, reservations: &ContainerReservations) -> Option<oci::LinuxCpu> {
    let weight = reservations.cpu.or(limits.cpu)?;
    let mut cpu = oci::LinuxCpu::default();
    cpu.set_shares(Some((weight.0 * SHARES_PER_CPU / 1000).clamp(MIN_SHARES, MAX_SHARES)));
    if let Some(limit) = limits.cpu {
        let quota = i64::try_from(limit.0 * CPU_PERIOD / 1000).unwrap_or(i64::MAX);
        cpu.set_period(Some(CPU_PERIOD)).set_quota(Some(quota));
    }
    Some(cpu)
}

fn memory(
    limits: &ContainerLimits,
    reservations: &ContainerReservations,
    host: HostFeatures,
) -> Option<oci::LinuxMemory> {
    if limits.memory.is_none() && reservations.memory.is_none() {
        return None;
    }
    let bytes = |bytes: warren_types::Bytes| i64::try_from(bytes.0).unwrap_or(i64::MAX);
    let limit = limits.memory.map(bytes);
    let mut memory = oci::LinuxMemory::default();
    memory
        .set_limit(limit)
        // Equal to the memory limit: no swap.
        .set_swap(limit.filter(|_| host.limits_swap))
        .set_reservation(reservations.memory.map(bytes));
    Some(memory)
}

/// `None`: containerd's defaults. runc may lower those, but needs a capability to raise them.
pub(super) fn rlimits(ulimits: &[ContainerUlimit]) -> Option<Vec<oci::PosixRlimit>> {
    let limit = |ulimit: &ContainerUlimit| {
        let limit = oci::PosixRlimitBuilder::default().typ(ulimit_kind(&ulimit.name)?);
        let limit = limit.soft(ulimit.soft).hard(ulimit.hard).build();
        Some(limit.expect("kind, soft and hard are set"))
    };
    let limits: Vec<oci::PosixRlimit> = ulimits.iter().filter_map(limit).collect();
    (!limits.is_empty()).then_some(limits)
}
