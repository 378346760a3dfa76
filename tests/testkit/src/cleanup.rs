//! Finds and ends what a killed node leaves behind: containerd, shims, loggers and containers. They have no
//! parent by then, but all of them carry the node's directory in their command line or have it under their
//! root.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::wait::try_eventually;

mod cgroup;
mod shim;

pub use shim::runc_states;

/// How long killed processes take to exit; the last process of a container may have much memory to unmap.
const DEADLINE: Duration = Duration::from_secs(60);

/// A process that belongs to a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeftoverProcess {
    /// Its process id.
    pub pid: i32,
    /// Its command line, arguments separated by spaces.
    pub command: String,
}

/// Processes whose command line names a path under `directory`, whose root file system is there, or that
/// descend from one of these; never the caller itself.
#[must_use]
pub fn processes(directory: &Path) -> Vec<LeftoverProcess> {
    let mark = format!("{}/", directory.display());
    let own = std::process::id().cast_signed();
    let mut parents = BTreeMap::new();
    let mut commands = BTreeMap::new();
    let mut found = BTreeSet::new();
    for pid in all_pids().filter(|pid| *pid != own) {
        let Some(command) = command_line(pid) else { continue };
        if command.contains(&mark) || root_mount(pid).is_some_and(|root| root.contains(&mark)) {
            found.insert(pid);
        }
        commands.insert(pid, command);
        if let Some(parent) = parent(pid) {
            parents.insert(pid, parent);
        }
    }
    loop {
        let children: Vec<i32> = parents
            .iter()
            .filter(|(pid, parent)| !found.contains(*pid) && found.contains(*parent))
            .map(|(pid, _)| *pid)
            .collect();
        if children.is_empty() {
            break;
        }
        found.extend(children);
    }
    found
        .into_iter()
        .map(|pid| LeftoverProcess { pid, command: commands.remove(&pid).unwrap_or_default() })
        .collect()
}

/// Mount points of this mount namespace under `directory`, inner ones first.
#[must_use]
pub fn mounts(directory: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
    let mut mounts: Vec<PathBuf> = table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|path| PathBuf::from(unescape(path)))
        .filter(|path| path.starts_with(directory))
        .collect();
    mounts.reverse();
    mounts
}

/// Ends every process and undoes every mount that belongs to `directory`; removes the cgroups of the
/// processes, and the files that shims and runc keep elsewhere. Returns the problems as text. Harmless when
/// nothing is left.
pub fn remove(directory: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    let mut cgroups = BTreeSet::new();
    // The bundles name the sockets: read them before anything is unmounted or removed.
    let sockets = shim::sockets(directory);
    let removed =
        try_eventually(DEADLINE, &format!("the end of all processes of {}", directory.display()), || {
            // A daemon that is exiting may still start a child: repeat until there is none.
            let processes = processes(directory);
            for process in &processes {
                cgroups.extend(cgroup::of_process(process.pid));
                // It may have ended meanwhile; its id is not reused this soon.
                let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
            }
            let alive: Vec<_> = processes.iter().filter(|process| !is_zombie(process.pid)).collect();
            if alive.is_empty() { Ok(()) } else { Err(format!("{alive:?}")) }
        });
    problems.extend(removed.err().map(|error| error.to_string()));
    for mount in mounts(directory) {
        let unmounted = umount2(&mount, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW);
        // A process that was ending may have unmounted it first.
        if let Err(error) = unmounted
            && mounts(directory).contains(&mount)
        {
            problems.push(format!("cannot unmount {}: {error}", mount.display()));
        }
    }
    for cgroup in cgroups {
        if let Err(error) = try_eventually(DEADLINE, "an empty cgroup", || cgroup.remove()) {
            problems.push(error.to_string());
        }
    }
    let stale = runc_states(directory).into_iter().chain(sockets);
    problems.extend(stale.filter_map(|path| shim::remove(&path).err()));
    problems
}

/// Removes every empty cgroup, in every hierarchy, whose path contains `mark`. Returns the problems as text.
/// Harmless when there is none.
pub fn remove_cgroups(mark: &str) -> Vec<String> {
    let inner_first = cgroup::with_mark(mark).into_iter().rev();
    inner_first.filter_map(|directory| cgroup::remove_directory(&directory).err()).collect()
}

/// The directories of all cgroups, in every hierarchy, whose path contains `mark`; outer ones first.
#[must_use]
pub fn cgroups(mark: &str) -> Vec<PathBuf> {
    cgroup::with_mark(mark)
}

fn all_pids() -> impl Iterator<Item = i32> {
    std::fs::read_dir("/proc")
        .expect("/proc is mounted")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// `None` for ended processes; empty for kernel threads and zombies.
fn command_line(pid: i32) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim_end_matches('\0').replace('\0', " "))
}

/// The mountinfo line of the process's root, which names the directories of an overlay.
fn root_mount(pid: i32) -> Option<String> {
    let table = std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).ok()?;
    table.lines().find(|line| line.split(' ').nth(4) == Some("/")).map(str::to_owned)
}

fn stat_fields(pid: i32) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain anything: the fields start after the last parenthesis.
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

fn parent(pid: i32) -> Option<i32> {
    stat_fields(pid)?.get(1)?.parse().ok()
}

fn is_zombie(pid: i32) -> bool {
    stat_fields(pid).is_none_or(|fields| fields.first().is_some_and(|state| state == "Z" || state == "X"))
}

/// Undoes the octal escapes of mountinfo for blanks and backslashes.
fn unescape(path: &str) -> String {
    ["\\040", "\\011", "\\012", "\\134"]
        .iter()
        .zip([" ", "\t", "\n", "\\"])
        .fold(path.to_owned(), |text, (escape, plain)| text.replace(escape, plain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::ChildProcess;
    use crate::scratch::ScratchDir;
    use std::process::Command;

    #[test]
    fn processes_and_children_of_a_directory_are_ended() {
        let scratch = ScratchDir::new();
        let other = ScratchDir::new();
        let spawn = |scratch: &ScratchDir| {
            let mark = scratch.path().join("mark");
            std::fs::write(&mark, "").unwrap();
            let mut command = Command::new("sh");
            command.args(["-c", "tail -f /dev/null & tail -f \"$0\""]).arg(&mark);
            ChildProcess::spawn("a marked shell", command, &scratch.path().join("log"))
        };
        let mut mine = spawn(&scratch);
        let mut foreign = spawn(&other);
        let found = crate::wait::eventually(DEADLINE, "the shell and two children", || {
            let found = processes(scratch.path());
            // A child is the shell itself until it has executed its program.
            let is_all =
                found.len() == 3 && found.iter().any(|process| process.command == "tail -f /dev/null");
            if is_all { Ok(found) } else { Err(format!("{found:?}")) }
        });
        assert!(found.iter().any(|process| process.pid == mine.pid()), "{found:?}");
        assert_eq!(remove(scratch.path()), Vec::<String>::new());
        assert_eq!(remove(scratch.path()), Vec::<String>::new());
        mine.wait(DEADLINE);
        assert!(foreign.is_running());
    }

    #[test]
    fn inner_mounts_are_removed_first() {
        let scratch = ScratchDir::new();
        let outer = scratch.path().join("outer one");
        let inner = outer.join("inner");
        for path in [&outer, &inner] {
            std::fs::create_dir(path).unwrap();
            crate::tool::run("mount", ["-t", "tmpfs", "none", path.to_str().unwrap()]);
        }
        assert_eq!(mounts(scratch.path()), [inner, outer]);
        assert_eq!(remove(scratch.path()), Vec::<String>::new());
        assert_eq!(mounts(scratch.path()), Vec::<PathBuf>::new());
    }

    #[test]
    fn cgroups_of_ended_processes_are_removed() {
        let scratch = ScratchDir::new();
        let hierarchy = if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() { "" } else { "pids" };
        let name = scratch.path().file_name().unwrap();
        let top = Path::new("/sys/fs/cgroup").join(hierarchy).join(name);
        let cgroup = top.join("cluster/task");
        std::fs::create_dir_all(&cgroup).unwrap();
        let mark = scratch.path().join("mark");
        std::fs::write(&mark, "").unwrap();
        let mut command = Command::new("tail");
        command.arg("-f").arg(&mark);
        let process = ChildProcess::spawn("tail", command, &scratch.path().join("log"));
        std::fs::write(cgroup.join("cgroup.procs"), process.pid().to_string()).unwrap();
        crate::wait::eventually(DEADLINE, "the command line of the process", || {
            let found = processes(scratch.path());
            let is_seen = found.iter().any(|one| one.pid == process.pid());
            if is_seen { Ok(()) } else { Err(format!("{found:?}")) }
        });
        assert_eq!(remove(scratch.path()), Vec::<String>::new());
        assert!(!cgroup.exists() && !top.join("cluster").exists());
        std::fs::create_dir_all(&cgroup).unwrap();
        let mark = name.to_str().unwrap();
        assert_eq!(cgroups(mark), [top.clone(), top.join("cluster"), cgroup]);
        for _ in 0..2 {
            assert_eq!(remove_cgroups(mark), Vec::<String>::new());
            assert!(!top.exists());
        }
    }
}
