//! What was found, and what happened.

use std::collections::BTreeMap;
use std::time::SystemTime;

use super::{ContainerId, Owner};
use warren_types::Signal;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The exit code; 128 + n when signal n killed it.
    pub code: u32,
    /// When.
    pub at: SystemTime,
    /// The kernel killed something in the container for want of memory since the process was created: what
    /// the cgroup counts, whether anybody listened when it happened or not. Unreliable only in one
    /// direction: `false` may also mean that the cgroup was gone before it was read.
    pub out_of_memory: bool,
}

impl Exit {
    /// The signal that the code stands for. Supervisors tell of a death by signal n only as the code 128 + n,
    /// and a program can return such a code by itself, too.
    pub fn signal(&self) -> Option<Signal> {
        let number = self.code.checked_sub(128)?;
        Signal::from_number(i32::try_from(number).ok()?)
    }
}

/// The state of a container's first process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Process {
    /// There is none: never created, deleted, or lost with the machine or its supervisor.
    None,
    /// Made and waiting to be started.
    Created {
        /// Its process id on the host.
        pid: u32,
    },
    /// Started and not ended.
    Running {
        /// Its process id on the host.
        pid: u32,
    },
    /// Ended, with its record still there.
    Stopped(Exit),
    /// The runtime did not say in time; ask again.
    Unknown {
        /// Its words.
        reason: String,
    },
}

/// A container as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its id, as the runtime spells it.
    pub id: ContainerId,
    /// Whose it is; `None` when somebody else made it.
    pub owner: Option<Owner>,
    /// The image's name.
    pub image: String,
    /// The bytes given at creation.
    pub assignment: Vec<u8>,
    /// The caller's notes, empty at creation.
    pub ledger: String,
    /// Further labels given at creation.
    pub labels: BTreeMap<String, String>,
    /// What asks it to end.
    pub stop_signal: Signal,
    /// Its process.
    pub process: Process,
    /// Whether its file system is there.
    pub snapshot: bool,
}

/// The runtime that answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// `containerd` or `fake`.
    pub name: &'static str,
    /// Its version.
    pub version: String,
}

/// Something happened, or may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeEvent {
    /// A container's first process ended.
    Exited {
        /// The container.
        id: ContainerId,
        /// How.
        exit: Exit,
    },
    /// The kernel killed something in a container for want of memory; the container may live on.
    OutOfMemory {
        /// The container.
        id: ContainerId,
    },
    /// Events may have been missed from here on.
    Lost,
    /// Events flow again (or for the first time): list to learn what was missed.
    Resumed,
}

/// What a sweep removed, by id or path, and what it could not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Processes that had no container record.
    pub tasks: Vec<String>,
    /// Supervisor processes that supervised nothing.
    pub shims: Vec<String>,
    /// Empty cgroups.
    pub cgroups: Vec<String>,
    /// File systems that no container owned.
    pub snapshots: Vec<String>,
    /// Folders that processes were made in and that containerd forgot.
    pub folders: Vec<String>,
    /// Why something that should have gone is still there; the next sweep tries again.
    pub failed: Vec<String>,
}

impl Swept {
    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_above_128_name_a_signal() {
        let exit = |code| Exit { code, at: SystemTime::UNIX_EPOCH, out_of_memory: false };
        assert_eq!(exit(137).signal(), Some(Signal::KILL));
        for code in [0, 7, 128, 255] {
            assert_eq!(exit(code).signal(), None, "{code}");
        }
    }
}
