//! A containerd for one test: own directories, own cgroups, and nothing left when it is dropped, whatever
//! happened.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};

use crate::cgroup::Hierarchies;
use crate::containerd::Settings;
use crate::pidfd::Pidfd;
use crate::supervise::{Options, Status, Supervisor};
use warren_types::Signal;

const PATIENCE: Duration = Duration::from_secs(10);

/// A private containerd, kept running by a [`Supervisor`].
pub struct PrivateContainerd {
    supervisor: Option<Supervisor>,
    settings: Settings,
    dir: tempfile::TempDir,
}

impl PrivateContainerd {
    /// Starts one. Needs root, containerd and runc.
    ///
    /// # Panics
    /// When it does not start: a test cannot go on then.
    pub async fn start() -> Self {
        Self::start_with(|_, _| {}).await
    }

    /// Starts one by other options. The directory is the one of [`PrivateContainerd::dir`].
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start_with(change: impl FnOnce(&mut Options, &Path)) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let dir =
            tempfile::Builder::new().prefix("warren-").tempdir().expect("a temporary directory can be made");
        let namespace = format!("warren-test-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut options = Self::options_in(dir.path());
        change(&mut options, dir.path());
        let settings = Settings {
            cgroup_parent: format!("/{namespace}"),
            namespace,
            ..Settings::new(options.state.join("containerd.sock"))
        };
        let mut started = Self { supervisor: None, settings, dir };
        let supervisor = Supervisor::ensure(options).await.expect("containerd starts");
        assert_eq!(supervisor.endpoint().socket, started.settings.socket);
        started.supervisor = Some(supervisor);
        started
    }

    /// How its supervisor was and can again be started.
    pub fn options(&self) -> Options {
        Self::options_in(self.dir.path())
    }

    fn options_in(dir: &Path) -> Options {
        // No containerd of the machine's may be taken instead.
        Options { system_socket: dir.join("none.sock"), ..Options::new(dir.join("root"), dir.join("state")) }
    }

    /// Settings for a runtime on it.
    pub fn settings(&self) -> Settings {
        self.settings.clone()
    }

    /// A directory for the test's own files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its supervisor.
    ///
    /// # Panics
    /// After [`PrivateContainerd::take_supervisor`].
    pub fn supervisor(&self) -> &Supervisor {
        self.supervisor.as_ref().expect("the supervisor was not taken")
    }

    /// Takes the supervisor away, to drop or to stop it.
    ///
    /// # Panics
    /// When it was taken before.
    pub fn take_supervisor(&mut self) -> Supervisor {
        self.supervisor.take().expect("the supervisor was not taken")
    }

    /// Kills containerd and waits until its supervisor has another one running, whose pid it returns.
    ///
    /// # Panics
    /// When that does not happen in time.
    pub async fn kill_and_wait(&self) -> u32 {
        let mut status = self.supervisor().status();
        let Status::Running { pid: old } = *status.borrow() else { panic!("containerd does not run") };
        Pidfd::open(old).and_then(|pidfd| pidfd.send(Signal::KILL)).expect("containerd can be killed");
        let again = |status: &Status| matches!(status, Status::Running { pid } if *pid != old);
        let waited = tokio::time::timeout(PATIENCE, status.wait_for(again)).await;
        match *waited.expect("containerd is back in time").expect("the supervisor lives") {
            Status::Running { pid } => pid,
            _ => unreachable!("the condition waited for is that it runs"),
        }
    }

    /// What exists of containers: supervisors' processes, mounts and cgroups. Empty when nothing was left
    /// behind.
    pub fn leftovers(&self) -> Vec<String> {
        let mut found: Vec<String> =
            self.processes().into_iter().map(|(pid, what)| format!("{pid} {what}")).collect();
        found.extend(self.mounts().into_iter().map(|path| path.display().to_string()));
        let cgroups = Hierarchies::read().expect("/proc is mounted");
        found.extend(cgroups.children(Path::new(&self.settings.cgroup_parent)));
        found
    }

    /// Shims that serve it, with whose they are.
    fn processes(&self) -> Vec<(u32, String)> {
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
            // One that has ended by itself meanwhile is as dead as we want it.
            let _ = Pidfd::open(pid).and_then(|pidfd| pidfd.send(Signal::KILL));
        }
    }

    /// Everything that runs in our cgroups.
    fn contained(&self) -> Vec<u32> {
        let cgroups = Hierarchies::read().unwrap_or_default();
        let parent = Path::new(&self.settings.cgroup_parent);
        cgroups.children(parent).iter().flat_map(|name| cgroups.members(&parent.join(name))).collect()
    }

    /// Files of the shims' sockets, which lie outside of containerd's own directories.
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
        // Without its supervisor it stays dead.
        drop(self.supervisor.take());
        let deadline = Instant::now() + PATIENCE;
        let sockets = self.shim_sockets();
        let configuration = self.dir.path().join("state/containerd.toml");
        let cgroups = Hierarchies::read().unwrap_or_default();
        let parent = PathBuf::from(&self.settings.cgroup_parent);
        loop {
            self.kill(crate::supervise::running_pid(&configuration));
            self.kill(self.processes().into_iter().map(|(pid, _)| pid));
            self.kill(self.contained());
            for mount in self.mounts().into_iter().rev() {
                let _ = umount2(&mount, MntFlags::MNT_DETACH);
            }
            cgroups.remove_empty(&parent);
            let clean = self.processes().is_empty() && self.mounts().is_empty() && !cgroups.exists(&parent);
            if clean || Instant::now() > deadline {
                break;
            }
            std::thread::yield_now();
        }
        for socket in sockets {
            let _ = fs::remove_file(socket);
        }
        // runc's own notes, which all containerds of a machine keep in one place.
        let _ = fs::remove_dir_all(Path::new("/run/containerd/runc").join(&self.settings.namespace));
    }
}
