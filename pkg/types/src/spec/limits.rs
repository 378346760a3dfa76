//! What a container may use at most, and how much of its output is kept.

use serde::{Deserialize, Serialize};

use crate::{Bytes, MilliCpu, Violations};

/// runc does not start a container with less memory than this.
pub const MIN_MEMORY_LIMIT: Bytes = Bytes(6 << 20);
/// The kernel's smallest CFS quota (1 ms of a 100 ms period).
pub const MIN_CPU_LIMIT: MilliCpu = MilliCpu(10);
/// Default limit of processes and threads of a task, so that one that forks without end leaves room for the node.
pub const DEFAULT_PIDS_LIMIT: u32 = 4096;
/// The kernel has no more processes and threads than this, so it is a limit that limits nothing.
pub const MAX_PIDS_LIMIT: u32 = 4 << 20;
/// The smallest and largest size of one log file.
const LOG_SIZES: std::ops::RangeInclusive<Bytes> = Bytes(64 << 10)..=Bytes(1 << 40);
/// The most log files of a task.
const MAX_LOG_FILES: u32 = 1000;

/// Limits that the kernel enforces on a container. `None` is unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limits {
    /// CPU time per wall time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<MilliCpu>,
    /// Memory including the page cache it is charged for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    /// Processes and threads; [`DEFAULT_PIDS_LIMIT`] if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
}

impl Limits {
    /// All violations of the limits; paths are relative to them.
    pub fn validate(&self) -> Violations {
        let mut wrong = Violations::default();
        if let Some(memory) = self.memory.filter(|memory| *memory < MIN_MEMORY_LIMIT) {
            wrong.add("memory", format!("{memory} is below the runtime's minimum of {MIN_MEMORY_LIMIT}"));
        }
        if let Some(cpu) = self.cpu.filter(|cpu| *cpu < MIN_CPU_LIMIT) {
            wrong.add("cpu", format!("{cpu} is below the kernel's minimum of {MIN_CPU_LIMIT}"));
        }
        if self.pids == Some(0) {
            let message = format!("0 processes cannot run anything; {MAX_PIDS_LIMIT} is as good as no limit");
            wrong.add("pids", message);
        }
        wrong
    }
}

/// How much of a task's output its node keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LogLimits {
    /// Size of one file.
    pub max_size: Bytes,
    /// Number of files; the oldest is deleted when a further one is started.
    pub max_files: u32,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self { max_size: Bytes(10 << 20), max_files: 5 }
    }
}

impl LogLimits {
    /// All violations of the limits; paths are relative to them.
    pub fn validate(&self) -> Violations {
        let mut wrong = Violations::default();
        if !LOG_SIZES.contains(&self.max_size) {
            wrong.add("maxSize", format!("{} is not between 64KiB and 1TiB", self.max_size));
        }
        if !(1..=MAX_LOG_FILES).contains(&self.max_files) {
            wrong.add("maxFiles", format!("{} is not between 1 and {MAX_LOG_FILES}", self.max_files));
        }
        wrong
    }
}
