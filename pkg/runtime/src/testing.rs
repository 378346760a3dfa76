//! A containerd for one test, with its own directories and cgroups; nothing is left when it is dropped.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};

use crate::cgroup::CgroupHierarchies;
use crate::containerd::ContainerdSettings;
use crate::pidfd::Pidfd;
use crate::supervise::{ContainerdStatus, ContainerdSupervisor, SupervisorOptions};
use warren_types::Signal;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A private containerd with a [`ContainerdSupervisor`].
pub struct PrivateContainerd {
    supervisor: Option<ContainerdSupervisor>,
    settings: ContainerdSettings,
    dir: tempfile::TempDir,
}

impl PrivateContainerd {
    /// Starts one. Needs root, containerd and runc.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn start() -> Self {
        Self::start_with(|_, _| {}).await
    }

    /// Starts one with other options. The directory is that of [`PrivateContainerd::dir`].
    ///
    /// # Panics
    /// If it does not start.
    pub async fn start_with(change: impl FnOnce(&mut SupervisorOptions, &Path)) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let dir =
            tempfile::Builder::new().prefix("warren-").tempdir().expect("a temporary directory can be made");
        // Users of containers with user namespaces of their own pass through it.
        let permissions = fs::Permissions::from_mode(0o711);
        fs::set_permissions(dir.path(), permissions).expect("it has just been made");
        let namespace = format!("warren-test-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut options = Self::options_in(dir.path());
        change(&mut options, dir.path());
        let settings = ContainerdSettings {
            cgroup_parent: format!("/{namespace}"),
            namespace,
            ..ContainerdSettings::new(options.state.join("containerd.sock"))
        };
        let mut started = Self { supervisor: None, settings, dir };
        let supervisor = ContainerdSupervisor::ensure(options).await.expect("containerd starts");
        assert_eq!(supervisor.endpoint().socket, started.settings.socket);
        started.supervisor = Some(supervisor);
        started
    }

    /// Options with which its supervisor was started and can be restarted.
    pub fn options(&self) -> SupervisorOptions {
        Self::options_in(self.dir.path())
    }

    fn options_in(dir: &Path) -> SupervisorOptions {
        // The machine's containerd must not be used instead.
        SupervisorOptions {
            system_socket: dir.join("none.sock"),
            ..SupervisorOptions::new(dir.join("root"), dir.join("state"))
        }
    }

    /// Settings for a runtime on it.
    pub fn settings(&self) -> ContainerdSettings {
        self.settings.clone()
    }

    /// A directory for files of the test.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its supervisor.
    ///
    /// # Panics
    /// After [`PrivateContainerd::take_supervisor`].
    pub fn supervisor(&self) -> &ContainerdSupervisor {
        self.supervisor.as_ref().expect("the supervisor was not taken")
    }

    /// Takes the supervisor, to drop or to stop it.
    ///
    /// # Panics
    /// If it was taken before.
    pub fn take_supervisor(&mut self) -> ContainerdSupervisor {
        self.supervisor.take().expect("the supervisor was not taken")
    }

    /// Kills containerd and waits until its supervisor has restarted it; returns the new pid.
    ///
    /// # Panics
    /// If that does not happen in time.
    pub async fn kill_and_wait(&self) -> u32 {
        let mut status = self.supervisor().status();
        let ContainerdStatus::Running { pid: old } = *status.borrow() else {
            panic!("containerd does not run")
        };
        Pidfd::open(old).and_then(|pidfd| pidfd.send(Signal::KILL)).expect("containerd can be killed");
        let again =
            |status: &ContainerdStatus| matches!(status, ContainerdStatus::Running { pid } if *pid != old);
        let waited = tokio::time::timeout(TIMEOUT, status.wait_for(again)).await;
        match *waited.expect("containerd is back in time").expect("the supervisor lives") {
            ContainerdStatus::Running { pid } => pid,
            _ => unreachable!("the condition waited for is that it runs"),
        }
    }

    /// Existing resources of containers: supervisor processes, mounts and cgroups. Empty if nothing is left.
    pub fn leftovers(&self) -> Vec<String> {
        let mut found: Vec<String> =
            self.shims().into_iter().map(|(pid, what)| format!("{pid} {what}")).collect();
        found.extend(self.mounts().into_iter().map(|path| path.display().to_string()));
        let cgroups = CgroupHierarchies::read().expect("/proc is mounted");
        found.extend(cgroups.children(Path::new(&self.settings.cgroup_parent)));
        found
    }

    /// Shims that serve it, with their containers.
    fn shims(&self) -> Vec<(u32, String)> {
        let socket = self.settings.socket.to_str().expect("the socket's path is UTF-8");
        let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let line = |pid: u32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let line = String::from_utf8_lossy(&words).replace('\0', " ");
            (line.contains("containerd-shim") && line.contains(socket)).then_some((pid, line))
        };
        pids.filter_map(line).collect()
    }

    fn mounts(&self) -> Vec<PathBuf> {
        let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let targets = table.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
        targets.filter(|target| target.starts_with(self.dir.path())).collect()
    }

    fn kill(&self, pids: impl IntoIterator<Item = u32>) {
        for pid in pids {
            // One that has exited meanwhile is fine.
            let _ = Pidfd::open(pid).and_then(|pidfd| pidfd.send(Signal::KILL));
        }
    }

    /// Kills every process in the test's cgroups.
    fn cgroup_pids(&self) -> Vec<u32> {
        let cgroups = CgroupHierarchies::read().unwrap_or_default();
        let parent = Path::new(&self.settings.cgroup_parent);
        cgroups.children(parent).iter().flat_map(|name| cgroups.processes(&parent.join(name))).collect()
    }

    /// Socket files of the shims, which are outside of containerd's own directories.
    fn shim_sockets(&self) -> Vec<PathBuf> {
        let tasks = self.dir.path().join("state/io.containerd.runtime.v2.task");
        let folders = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|e| e.path());
        let bundles = folders(&tasks).flat_map(|namespace| folders(&namespace).collect::<Vec<_>>());
        let addresses = bundles.filter_map(|bundle| fs::read_to_string(bundle.join("address")).ok());
        addresses.filter_map(|address| Some(PathBuf::from(address.trim().strip_prefix("unix://")?))).collect()
    }
}

impl Drop for PrivateContainerd {
    fn drop(&mut self) {
        // Without its supervisor it is not restarted.
        drop(self.supervisor.take());
        let deadline = Instant::now() + TIMEOUT;
        let sockets = self.shim_sockets();
        let configuration = self.dir.path().join("state/containerd.toml");
        let cgroups = CgroupHierarchies::read().unwrap_or_default();
        let parent = PathBuf::from(&self.settings.cgroup_parent);
        loop {
            self.kill(crate::supervise::running_pid(&configuration));
            self.kill(self.shims().into_iter().map(|(pid, _)| pid));
            self.kill(self.cgroup_pids());
            for mount in self.mounts().into_iter().rev() {
                let _ = umount2(&mount, MntFlags::MNT_DETACH);
            }
            cgroups.remove_empty(&parent);
            let clean = self.shims().is_empty() && self.mounts().is_empty() && !cgroups.exists(&parent);
            if clean || Instant::now() > deadline {
                break;
            }
            std::thread::yield_now();
        }
        for socket in sockets {
            let _ = fs::remove_file(socket);
        }
        // State of runc, which all containerds of a machine store in one place.
        let _ = fs::remove_dir_all(Path::new("/run/containerd/runc").join(&self.settings.namespace));
    }
}
