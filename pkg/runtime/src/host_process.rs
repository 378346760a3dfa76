//! Processes of the machine itself. A command line alone proves nothing: every user and every container can start a
//! process with any.

use std::fs;

/// Whether the process is of root, and in the PID namespace of this one, so that neither another user nor a container
/// started it. `false` if it has ended.
pub(crate) fn is_of_host_root(pid: u32) -> bool {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/pid")).ok();
    has_root_ids(pid) && namespace(&pid.to_string()).is_some_and(|found| namespace("self") == Some(found))
}

/// Its real, effective, saved and file system user is root. The owner of its directory in `/proc` says less: that is
/// root for each process that cannot be traced.
fn has_root_ids(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    ids.is_some_and(|ids| ids.split_ascii_whitespace().all(|id| id == "0"))
}
