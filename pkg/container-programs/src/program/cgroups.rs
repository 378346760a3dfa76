//! The cgroups of a container, and new processes in them.
//!
//! To move a process, the kernel stops all forks and exits of the machine for some milliseconds. So with cgroup
//! version 2 alone, a process is created in its cgroup. With version 1, or if the kernel refuses, this process moves
//! itself into the cgroups, and its children begin there.
//!
//! Sources: cgroups(7), clone(2).
#![allow(unsafe_code)] // Foreign functions are unsafe to call; each call says why it may be made.

use std::ffi::{c_int, c_long};
use std::fs::{File, OpenOptions};
use std::io::{Result, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use crate::child::checked;
use crate::plan::ExecPlan;

const MOUNT: &str = "/sys/fs/cgroup";
/// Equal on all architectures.
const SYS_CLONE3: c_long = 435;
/// Since Linux 5.7.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
const SIGCHLD: u64 = 17;

/// `struct clone_args`.
#[repr(C)]
#[derive(Default)]
struct CloneArguments {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn fork() -> c_int;
}

/// Directories of the cgroups of a container's first process.
#[derive(Debug, PartialEq, Eq)]
pub struct ContainerCgroups {
    dirs: Vec<PathBuf>,
    /// Whether the machine has version 2 alone.
    is_unified: bool,
}

impl ContainerCgroups {
    /// Those of the process of `plan`; `None` if it is not in the container, or has left the cgroup meanwhile. Its pid
    /// may have been reused by a process outside: then the pidfd opened before refers to a process that has ended, and
    /// is not entered.
    pub fn of(plan: &ExecPlan) -> Option<Self> {
        let membership = std::fs::read_to_string(format!("/proc/{}/cgroup", plan.pid)).ok()?;
        let is_unified = Path::new(MOUNT).join("cgroup.controllers").exists();
        Self::parse(&membership, &plan.cgroup, is_unified)?.existing(|dir| dir.join("cgroup.procs").exists())
    }

    /// Those that exist. A hierarchy of version 1 that is not mounted has no limits; version 2 has one, without which a
    /// program would begin in the cgroup of the agent.
    fn existing(mut self, exists: impl Fn(&Path) -> bool) -> Option<Self> {
        self.dirs.retain(|dir| exists(dir));
        (!self.is_unified || !self.dirs.is_empty()).then_some(self)
    }

    /// `membership` has lines such as `4:cpu,cpuacct:/path`, `1:name=systemd:/path` and `0::/path`.
    fn parse(membership: &str, cgroup: &str, is_unified: bool) -> Option<Self> {
        let mut dirs = Vec::new();
        for line in membership.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            // An init of the container may have moved itself to a child of the container's cgroup.
            let below = path.split_once(cgroup).map(|(_, below)| below);
            if !below.is_some_and(|below| below.is_empty() || below.starts_with('/')) {
                continue;
            }
            let hierarchy = match controllers {
                "" if is_unified => String::new(),
                "" => "/unified".to_owned(),
                named => format!("/{}", named.strip_prefix("name=").unwrap_or(named)),
            };
            dirs.push(PathBuf::from(format!("{MOUNT}{hierarchy}{path}")));
        }
        (!dirs.is_empty()).then_some(Self { dirs, is_unified })
    }

    /// Reads the freezer state: `freezer.state` of version 1, `cgroup.events` of version 2.
    pub fn is_paused(&self) -> bool {
        let says = |file: PathBuf, paused: &[&str]| {
            std::fs::read_to_string(file).is_ok_and(|text| text.lines().any(|line| paused.contains(&line)))
        };
        self.dirs.iter().any(|dir| {
            says(dir.join("freezer.state"), &["FROZEN", "FREEZING"])
                || says(dir.join("cgroup.events"), &["frozen 1"])
        })
    }

    /// The cgroup in which a process can be created: there is no other one.
    fn clone_target(&self) -> Option<&Path> {
        match &self.dirs[..] {
            [dir] if self.is_unified => Some(dir),
            _ => None,
        }
    }

    /// Creates a child in the cgroups, as fork(2) does. This process must have one thread.
    ///
    /// # Errors
    /// What failed, as text.
    pub fn fork(&self) -> std::result::Result<c_int, String> {
        if let Some(dir) = self.clone_target()
            && let Ok(pid) = fork_into(dir)
        {
            return Ok(pid);
        }
        for dir in &self.dirs {
            let file = dir.join("cgroup.procs");
            let joined =
                OpenOptions::new().write(true).open(&file).and_then(|mut opened| opened.write_all(b"0"));
            joined.map_err(|error| format!("cannot join {}: {error}", file.display()))?;
        }
        // SAFETY: this process has one thread, so the child is not restricted after the fork.
        checked(unsafe { fork() }).map_err(|error| format!("fork: {error}"))
    }
}

/// As fork(2), with the child in the cgroup of this directory.
fn fork_into(cgroup: &Path) -> Result<c_int> {
    let dir = File::open(cgroup)?;
    let arguments = CloneArguments {
        flags: CLONE_INTO_CGROUP,
        exit_signal: SIGCHLD,
        cgroup: u64::from(dir.as_raw_fd().cast_unsigned()),
        ..CloneArguments::default()
    };
    // SAFETY: the arguments and the directory outlive the call. The child has its own memory, and without a stack it
    // continues here; this process has one thread, so the child is not restricted.
    checked(unsafe { syscall(SYS_CLONE3, &raw const arguments, size_of::<CloneArguments>()) })
}

#[cfg(test)]
mod tests {
    use std::ffi::c_uint;
    use std::time::Duration;

    use warren_testkit::scratch::ScratchDir;
    use warren_testkit::wait::eventually;

    use super::*;
    use crate::child::ExecChild;

    unsafe extern "C" {
        fn alarm(seconds: c_uint) -> c_uint;
        fn pause() -> c_int;
    }

    /// A child that waits, at most for a minute.
    fn waiting(pid: c_int) -> ExecChild {
        if pid == 0 {
            loop {
                // SAFETY: they take numbers only, and may be called between fork and exec.
                unsafe {
                    alarm(60);
                    pause();
                }
            }
        }
        ExecChild::new(pid)
    }

    fn parsed(membership: &str, is_unified: bool) -> Option<ContainerCgroups> {
        ContainerCgroups::parse(membership, "/warren/n/t-1", is_unified)
    }

    #[test]
    fn version_2_alone_is_a_target() {
        let unified = parsed("0::/warren/n/t-1/child\n", true).unwrap();
        assert_eq!(unified.clone_target(), Some(Path::new("/sys/fs/cgroup/warren/n/t-1/child")));

        let hybrid =
            "4:cpu,cpuacct:/warren/n/t-1\n3:pids:/user\n1:name=systemd:/warren/n/t-1\n0::/warren/n/t-1\n";
        let hybrid = parsed(hybrid, false).unwrap();
        let dirs = ["cpu,cpuacct", "systemd", "unified"].map(|name| format!("{MOUNT}/{name}/warren/n/t-1"));
        assert_eq!(hybrid.dirs, dirs.map(PathBuf::from));
        assert_eq!(hybrid.clone_target(), None);
        assert_eq!(parsed("3:pids:/warren/n/t-1\n0::/\n", false).unwrap().clone_target(), None);
    }

    #[test]
    fn process_outside_of_the_container_is_not_entered() {
        for other in ["", "0::/\n", "0::/warren/n/t-12\n", "0::/warren/n\n"] {
            assert_eq!(parsed(other, true), None, "{other}");
        }
    }

    #[test]
    fn removed_cgroup_is_not_entered() {
        let child = "0::/warren/n/t-1/child\n";
        assert_eq!(parsed(child, true).unwrap().existing(|_| false), None);
        assert!(parsed(child, true).unwrap().existing(|_| true).is_some());
        let older = parsed("4:cpu:/warren/n/t-1\n3:pids:/warren/n/t-1\n", false).unwrap();
        let mounted = older.existing(|dir| dir.starts_with("/sys/fs/cgroup/cpu")).unwrap();
        assert_eq!(mounted.dirs, [PathBuf::from("/sys/fs/cgroup/cpu/warren/n/t-1")]);
    }

    #[test]
    fn child_begins_in_its_cgroup() {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let mount = mounts.find(|fields| fields[2] == "cgroup2");
        let mount = mount.expect(
            "this machine has cgroup version 1 alone; mount version 2 for the test: mkdir /sys/fs/cgroup/unified && \
             mount -t cgroup2 none /sys/fs/cgroup/unified",
        );
        let name = format!("warren-test-{}", std::process::id());
        let dir = Path::new(mount[1]).join(&name);
        std::fs::create_dir(&dir).unwrap();
        let child = waiting(fork_into(&dir).unwrap());
        let membership = std::fs::read_to_string(format!("/proc/{}/cgroup", child.pid()));
        child.kill();
        let removed = || std::fs::remove_dir(&dir).map_err(|error| error.to_string());
        eventually(Duration::from_secs(10), "the cgroup is empty", removed);
        let membership = membership.unwrap();
        let is_in = |line: &str| line.starts_with("0::") && line.ends_with(&format!("/{name}"));
        assert!(membership.lines().any(is_in), "{membership}");
    }

    #[test]
    fn refused_clone_becomes_a_move() {
        let scratch = ScratchDir::new();
        let cgroups = ContainerCgroups { dirs: vec![scratch.path().to_owned()], is_unified: true };
        assert!(cgroups.clone_target().is_some());
        let error = cgroups.fork().unwrap_err();
        assert!(error.starts_with("cannot join "), "{error}");

        // Not a cgroup, so the kernel refuses to create a process in it.
        let procs = scratch.path().join("cgroup.procs");
        std::fs::write(&procs, "").unwrap();
        waiting(cgroups.fork().unwrap()).kill();
        assert_eq!(std::fs::read_to_string(&procs).unwrap(), "0");
    }
}
