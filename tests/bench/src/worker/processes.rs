//! What the processes of one node take, by kind.

use std::path::Path;

use anyhow::Context;
use warren_testkit::leftovers;
use warren_testkit::node::Node;

/// A kind of process beside a container.
pub const SHIM: &str = "containerd-shim-runc-v2";
/// A kind of process beside a container.
pub const LOGGER: &str = "warren-logger";
/// What starts containers.
pub const CONTAINERD: &str = "containerd";

/// The processes of `node` that run the program called `name`, and of no other node.
pub fn of_kind(node: &Node, name: &str) -> Vec<i32> {
    let found = leftovers::processes(node.scratch());
    let is_kind = |command: &str| {
        let program = command.split(' ').next().map(Path::new);
        program.and_then(Path::file_name).is_some_and(|found| found == name)
    };
    found.into_iter().filter(|process| is_kind(&process.command)).map(|process| process.pid).collect()
}

/// Of one process or the sum of several, in KiB.
#[derive(Debug, Clone, Copy, Default)]
pub struct Memory {
    /// Pages that it has, shared ones too.
    pub resident: f64,
    /// A page that several share counts in parts.
    pub proportional: f64,
}

/// What the kernel says of `pid`.
pub fn memory(pid: i32) -> anyhow::Result<Memory> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let field = |name: &str| -> anyhow::Result<f64> {
        let line =
            text.lines().find_map(|line| line.strip_prefix(name)).context("a field of smaps_rollup")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    };
    Ok(Memory { resident: field("Rss:")?, proportional: field("Pss:")? })
}

/// The sum of `pids`.
pub fn memory_of_all(pids: &[i32]) -> anyhow::Result<Memory> {
    pids.iter().try_fold(Memory::default(), |sum, pid| {
        let one = memory(*pid)?;
        let proportional = sum.proportional + one.proportional;
        Ok(Memory { resident: sum.resident + one.resident, proportional })
    })
}

/// User and system time of all of `pids` so far.
pub fn cpu_of_all(pids: &[i32]) -> anyhow::Result<f64> {
    pids.iter().try_fold(0.0, |sum, pid| Ok(sum + crate::node::cpu_seconds(*pid)?))
}
