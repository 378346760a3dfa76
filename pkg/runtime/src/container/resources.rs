//! Limits and reservations of a container.

use oci_spec::runtime::PosixRlimitType as Kind;
use warren_types::{Bytes, MilliCpu};

use crate::error::Error;

/// Smallest CPU limit of the kernel: a quota of 1 ms in a period of 100 ms.
pub const MIN_CPU: MilliCpu = MilliCpu(10);
/// Smallest memory limit with which the runtime can set a container up.
pub const MIN_MEMORY: Bytes = Bytes(6 << 20);
/// Bounds of the kernel.
const OOM_SCORE_RANGE: std::ops::RangeInclusive<i32> = -1000..=1000;

/// Limits of the container as a whole; `None` means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerLimits {
    /// Hard limit, at least [`MIN_CPU`].
    pub cpu: Option<MilliCpu>,
    /// Hard limit, at least [`MIN_MEMORY`], including swap where the kernel accounts for it.
    pub memory: Option<Bytes>,
    /// Maximum number of processes and threads, at least 1.
    pub pids: Option<u32>,
}

/// Guaranteed resources when the node is overcommitted; `None` means no guarantee.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerReservations {
    /// CPU weight: 1000m are 1024 shares. Without it the CPU limit determines the weight.
    pub cpu: Option<MilliCpu>,
    /// Memory that the kernel reclaims last; at most the memory limit.
    pub memory: Option<Bytes>,
}

/// Resource limit of each process of the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerUlimit {
    /// Name as in `ulimit` and Docker: `nofile`, `nproc`, `core`, and so on.
    pub name: String,
    /// Soft limit; a process may raise it up to `hard`. [`ContainerUlimit::UNLIMITED`] is no limit.
    pub soft: u64,
    /// Hard limit; only a privileged process may raise it.
    pub hard: u64,
}

impl ContainerUlimit {
    /// No limit.
    pub const UNLIMITED: u64 = u64::MAX;
}

pub(super) fn check_limits(
    limits: &ContainerLimits,
    reservations: &ContainerReservations,
) -> Result<(), Error> {
    if let Some(cpu) = limits.cpu.filter(|cpu| *cpu < MIN_CPU) {
        let reason = format!("{}m is below the minimum of {}m", cpu.0, MIN_CPU.0);
        return Err(Error::invalid_field("limits.cpu", reason));
    }
    if let Some(memory) = limits.memory.filter(|memory| *memory < MIN_MEMORY) {
        let reason = format!("{} bytes are below the minimum of {}", memory.0, MIN_MEMORY.0);
        return Err(Error::invalid_field("limits.memory", reason));
    }
    if limits.pids == Some(0) {
        return Err(Error::invalid_field("limits.pids", "must be at least 1"));
    }
    match (reservations.memory, limits.memory) {
        (Some(reserved), Some(limit)) if reserved > limit => {
            let reason = format!("{} bytes are more than the limit of {}", reserved.0, limit.0);
            Err(Error::invalid_field("reservations.memory", reason))
        }
        _ => Ok(()),
    }
}

pub(super) fn check_oom_score(adjustment: Option<i32>) -> Result<(), Error> {
    match adjustment {
        Some(score) if !OOM_SCORE_RANGE.contains(&score) => {
            Err(Error::invalid_field("oom_score_adj", format!("{score} is not between -1000 and 1000")))
        }
        _ => Ok(()),
    }
}

/// The limit with this name in Docker and `ulimit`.
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

pub(super) fn check_ulimits(ulimits: &[ContainerUlimit]) -> Result<(), Error> {
    for (place, ulimit) in ulimits.iter().enumerate() {
        let wrong = |part: &str, reason: String| {
            Err(Error::invalid_field(format!("ulimits[{place}].{part}"), reason))
        };
        if ulimit_kind(&ulimit.name).is_none() {
            return wrong("name", format!("{:?} is not a ulimit; use a name like nofile", ulimit.name));
        }
        if ulimits[..place].iter().any(|earlier| earlier.name == ulimit.name) {
            return wrong("name", format!("{} is given twice", ulimit.name));
        }
        if ulimit.soft > ulimit.hard {
            return wrong("soft", format!("{} is more than the hard limit of {}", ulimit.soft, ulimit.hard));
        }
    }
    Ok(())
}
