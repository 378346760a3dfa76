//! How much of the machine a container gets.

use warren_types::{Bytes, MilliCpu};

use crate::error::Error;

/// The smallest CPU limit the kernel takes: a quota of 1 ms in a period of 100 ms.
pub const MIN_CPU: MilliCpu = MilliCpu(10);
/// The smallest memory limit that leaves the container's own set-up enough room.
pub const MIN_MEMORY: Bytes = Bytes(6 << 20);
/// The kernel's own bounds.
const OOM_SCORES: std::ops::RangeInclusive<i32> = -1000..=1000;

/// What the kernel enforces on the container as a whole; `None` means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Hard limit, at least [`MIN_CPU`].
    pub cpu: Option<MilliCpu>,
    /// Hard limit, at least [`MIN_MEMORY`], swap included where the kernel accounts for it.
    pub memory: Option<Bytes>,
    /// Processes and threads, at least 1.
    pub pids: Option<u32>,
}

/// What the container gets first when the node has too little for all; `None` means nothing in particular.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reservations {
    /// Its weight among the others: 1000m weigh 1024 shares. Without it the CPU limit weighs.
    pub cpu: Option<MilliCpu>,
    /// Memory that is reclaimed from it last. At most the memory limit.
    pub memory: Option<Bytes>,
}

/// A bound on each process of the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ulimit {
    /// As in `ulimit` and Docker: `nofile`, `nproc`, `core`, and so on.
    pub name: String,
    /// What holds; the process may raise it up to `hard`. [`Ulimit::UNLIMITED`] is none.
    pub soft: u64,
    /// What only a privileged process may raise.
    pub hard: u64,
}

impl Ulimit {
    /// No bound.
    pub const UNLIMITED: u64 = u64::MAX;
}

pub(super) fn check_limits(limits: &Limits, reservations: &Reservations) -> Result<(), Error> {
    if let Some(cpu) = limits.cpu.filter(|cpu| *cpu < MIN_CPU) {
        let reason = format!("{}m is below the minimum of {}m", cpu.0, MIN_CPU.0);
        return Err(Error::invalid("limits.cpu", reason));
    }
    if let Some(memory) = limits.memory.filter(|memory| *memory < MIN_MEMORY) {
        let reason = format!("{} bytes are below the minimum of {}", memory.0, MIN_MEMORY.0);
        return Err(Error::invalid("limits.memory", reason));
    }
    if limits.pids == Some(0) {
        return Err(Error::invalid("limits.pids", "no process at all can start; give at least 1"));
    }
    match (reservations.memory, limits.memory) {
        (Some(reserved), Some(limit)) if reserved > limit => {
            let reason = format!("{} bytes are more than the limit of {}", reserved.0, limit.0);
            Err(Error::invalid("reservations.memory", reason))
        }
        _ => Ok(()),
    }
}

pub(super) fn check_oom_score(adjustment: Option<i32>) -> Result<(), Error> {
    match adjustment {
        Some(score) if !OOM_SCORES.contains(&score) => {
            Err(Error::invalid("oom_score_adj", format!("{score} is not between -1000 and 1000")))
        }
        _ => Ok(()),
    }
}

pub(super) fn check_ulimits(ulimits: &[Ulimit]) -> Result<(), Error> {
    for (place, ulimit) in ulimits.iter().enumerate() {
        let wrong =
            |part: &str, reason: String| Err(Error::invalid(format!("ulimits[{place}].{part}"), reason));
        if crate::spec::resources::ulimit_kind(&ulimit.name).is_none() {
            return wrong("name", format!("{:?} is no ulimit; give a name like nofile", ulimit.name));
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
