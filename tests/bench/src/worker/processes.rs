//! The memory and CPU of one node's processes, by kind.

use std::path::Path;

use anyhow::Context;
use warren_testkit::cleanup;
use warren_testkit::node::LabNode;

/// A kind of process beside a container.
pub const SHIM: &str = "containerd-shim-runc-v2";
/// A kind of process beside a container.
pub const LOGGER: &str = "warren-logger";
/// The process that starts containers.
pub const CONTAINERD: &str = "containerd";

/// The processes of `node`, and of no other node, that run the program called `name`.
pub fn of_kind(node: &LabNode, name: &str) -> Vec<i32> {
    let found = cleanup::processes(node.scratch());
    let is_kind = |command: &str| {
        let program = command.split(' ').next().map(Path::new);
        program.and_then(Path::file_name).is_some_and(|found| found == name)
    };
    found.into_iter().filter(|process| is_kind(&process.command)).map(|process| process.pid).collect()
}

/// Of one process or the sum of several, in KiB.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProcessMemory {
    /// Resident pages, including shared ones.
    pub resident: f64,
    /// Each shared page is divided among its processes.
    pub proportional: f64,
}

/// The values in `/proc` for `pid`.
pub fn memory(pid: i32) -> anyhow::Result<ProcessMemory> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let field = |name: &str| -> anyhow::Result<f64> {
        let line =
            text.lines().find_map(|line| line.strip_prefix(name)).context("a field of smaps_rollup")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    };
    Ok(ProcessMemory { resident: field("Rss:")?, proportional: field("Pss:")? })
}

/// The sum of `pids`.
pub fn memory_of_all(pids: &[i32]) -> anyhow::Result<ProcessMemory> {
    pids.iter().try_fold(ProcessMemory::default(), |sum, pid| {
        let one = memory(*pid)?;
        let proportional = sum.proportional + one.proportional;
        Ok(ProcessMemory { resident: sum.resident + one.resident, proportional })
    })
}

/// User and system time of all of `pids` so far.
pub fn cpu_of_all(pids: &[i32]) -> anyhow::Result<f64> {
    pids.iter().try_fold(0.0, |sum, pid| Ok(sum + crate::node::cpu_seconds(*pid)?))
}
