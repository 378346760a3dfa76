//! Observed state of containers, and events.

use std::collections::BTreeMap;
use std::time::SystemTime;

use super::{ContainerId, ContainerOwner};
use crate::apparmor::AppArmorState;
use warren_types::{IdRange, Signal};

/// Result of an ended process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessExit {
    /// The exit code; 128 + n when signal n killed it.
    pub code: u32,
    /// Time of the exit.
    pub at: SystemTime,
    /// The kernel killed a process of the container for lack of memory since the process was created. Read
    /// from the cgroup's counter, so it does not depend on events. `false` may also mean that the cgroup was
    /// removed before it was read.
    pub out_of_memory: bool,
}

impl ProcessExit {
    /// The signal of an exit code of 128 + n. Supervisors report a kill by signal n only as this code, and a
    /// program can return the same code itself.
    pub fn signal(&self) -> Option<Signal> {
        let number = self.code.checked_sub(128)?;
        Signal::from_number(i32::try_from(number).ok()?)
    }
}

/// State of a container's first process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// No process: never created, deleted, or lost with the machine or its supervisor.
    Absent,
    /// Created and waiting for its start.
    Created {
        /// Process id on the host.
        pid: u32,
    },
    /// Started and not ended.
    Running {
        /// Process id on the host.
        pid: u32,
    },
    /// Ended and not deleted.
    Stopped(ProcessExit),
    /// The runtime did not answer in time; ask again.
    Unknown {
        /// The cause.
        reason: String,
    },
}

/// Observed state of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerStatus {
    /// Id as the runtime spells it.
    pub id: ContainerId,
    /// Owner; `None` if another client created the container.
    pub owner: Option<ContainerOwner>,
    /// Name of the image.
    pub image: String,
    /// The bytes given at creation.
    pub assignment: Vec<u8>,
    /// Attempt history of the caller, empty at creation.
    pub attempt_history: String,
    /// Additional labels given at creation.
    pub labels: BTreeMap<String, String>,
    /// Signal that stops it.
    pub stop_signal: Signal,
    /// State of its process.
    pub process: ProcessState,
    /// Whether its file system exists.
    pub has_snapshot: bool,
    /// The ids of its users on the host; `None` without a user namespace of its own.
    pub ids: Option<IdRange>,
}

/// Name and version of the runtime, and what confines its containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeInfo {
    /// `containerd` or `fake`.
    pub name: &'static str,
    /// Version.
    pub version: String,
    /// AppArmor of the machine.
    pub apparmor: AppArmorState,
}

/// An event of the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeEvent {
    /// A container's first process ended.
    Exited {
        /// The container.
        id: ContainerId,
        /// How it ended.
        exit: ProcessExit,
    },
    /// The kernel killed a process of a container for lack of memory; the container may still run.
    OutOfMemory {
        /// The container.
        id: ContainerId,
    },
    /// Events may be missing from here on.
    Lost,
    /// Events are received again (or for the first time): list to learn what was missed.
    Resumed,
}

/// What a sweep removed, by id or path, and what it could not remove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// Processes without a container record.
    pub tasks: Vec<String>,
    /// Supervisor processes without a container.
    pub shims: Vec<String>,
    /// Empty cgroups.
    pub cgroups: Vec<String>,
    /// File systems without a container.
    pub snapshots: Vec<String>,
    /// Abandoned containerd bundles.
    pub bundle_dirs: Vec<String>,
    /// Further programs in containers, which a killed agent started.
    pub execs: Vec<String>,
    /// Errors of failed removals; the next sweep tries again.
    pub failed: Vec<String>,
}

impl SweepReport {
    /// Whether nothing was removed and nothing failed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_above_128_name_a_signal() {
        let exit = |code| ProcessExit { code, at: SystemTime::UNIX_EPOCH, out_of_memory: false };
        assert_eq!(exit(137).signal(), Some(Signal::KILL));
        for code in [0, 7, 128, 255] {
            assert_eq!(exit(code).signal(), None, "{code}");
        }
    }
}
