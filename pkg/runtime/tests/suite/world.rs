//! Shared by the tests: a tiny image, specs, waiting for conditions.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use warren_image::build::ImageBuilder;
use warren_image::{ImportOptions, ImportedName};
use warren_runtime::containerd::{ContainerdRuntime, ContainerdSettings};
use warren_runtime::testing::PrivateContainerd;
use warren_runtime::{
    ContainerId, ContainerOwner, ContainerSpec, OutputTarget, ProcessExit, ProcessState, Reference, Runtime,
    RuntimeEvent, Signal,
};
use warren_testkit::scratch::install;
use warren_types::Bytes;

pub const IMAGE: &str = "docker.io/library/tiny:1";
pub const PASSWD: &str = "root:x:0:0::/:/bin/sh\nweb:x:33:44::/:/bin/sh\n";
pub const GROUP: &str = "root:x:0:\nweb:x:44:\nlogs:x:55:web\n";
const TIMEOUT: Duration = Duration::from_secs(60);
const APPLETS: [&str; 20] = [
    "sh", "sleep", "cat", "id", "env", "hostname", "tail", "unshare", "echo", "pwd", "grep", "ls", "mount",
    "touch", "true", "nslookup", "tty", "mknod", "mkdir", "chown",
];

/// A private containerd with the tiny image and a runtime on it.
pub struct RuntimeFixture {
    pub runtime: ContainerdRuntime,
    pub containerd: PrivateContainerd,
}

impl RuntimeFixture {
    pub async fn start() -> Self {
        Self::start_with(|_, _| {}).await
    }

    /// With other settings; the directory is for their files.
    pub async fn start_with(change: impl FnOnce(&mut ContainerdSettings, &Path)) -> Self {
        Self::start_on(PrivateContainerd::start().await, change).await
    }

    /// On an existing containerd.
    pub async fn start_on(
        containerd: PrivateContainerd,
        change: impl FnOnce(&mut ContainerdSettings, &Path),
    ) -> Self {
        let mut settings = containerd.settings();
        change(&mut settings, containerd.dir());
        let runtime = ContainerdRuntime::new(settings).unwrap();
        import(&runtime, containerd.dir(), tiny(IMAGE).oci_archive().unwrap()).await.unwrap();
        install(&containerd.dir().join("logger"), LOGGER);
        Self { runtime, containerd }
    }

    /// A log target with the fake logger, and its directory.
    pub fn log(&self, name: &str) -> (OutputTarget, PathBuf) {
        let dir = self.containerd.dir().join("logs of a test & more=1+%").join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let program = self.containerd.dir().join("logger");
        (OutputTarget::Binary { program, dir: dir.clone(), max_size: Bytes(1 << 20), max_files: 3 }, dir)
    }

    /// Runs a shell script to its end and returns its output, standard output first.
    pub async fn output(&self, change: impl FnOnce(&mut ContainerSpec), script: &str) -> String {
        let (exit, printed) = self.try_output(change, script).await;
        assert_eq!(exit.code, 0, "{script} printed: {printed}");
        printed
    }

    pub async fn try_output(
        &self,
        change: impl FnOnce(&mut ContainerSpec),
        script: &str,
    ) -> (ProcessExit, String) {
        let (log, dir) = self.log("prints");
        let mut spec = ContainerSpec { log, ..spec("prints", &["sh", "-c", script]) };
        change(&mut spec);
        self.runtime.ensure_created(&spec).await.unwrap();
        self.runtime.start(&spec.id).await.unwrap();
        let exit = stopped(&self.runtime, &spec.id).await;
        self.runtime.remove(&spec.id).await.unwrap();
        let ended = || async { ["stdout.end", "stderr.end"].iter().all(|end| dir.join(end).exists()) };
        eventually("the logger has ended", ended).await;
        let printed = ["stdout", "stderr"].map(|stream| std::fs::read_to_string(dir.join(stream)).unwrap());
        std::fs::remove_dir_all(&dir).unwrap();
        (exit, printed.concat())
    }

    /// Nothing of containers is left: records, file systems, processes, supervisors, mounts, cgroups.
    pub async fn assert_clean(&self) {
        assert_eq!(self.runtime.list().await.unwrap(), []);
        eventually("nothing is left", || async { self.containerd.leftovers().is_empty() }).await;
        let swept = self.runtime.sweep_orphans().await.unwrap();
        assert!(swept.is_empty(), "{swept:?}");
    }

    /// A file of a container's cgroup, under its name in either version.
    pub fn cgroup(&self, container: &str, names: [(&str, &str); 2]) -> String {
        let parent = self.containerd.settings().cgroup_parent;
        let read = |(controller, file): (&str, &str)| {
            let parts = ["/sys/fs/cgroup", controller, parent.trim_start_matches('/'), container, file];
            std::fs::read_to_string(parts.iter().collect::<PathBuf>()).ok()
        };
        names.into_iter().find_map(read).expect("the container has a cgroup").trim().to_owned()
    }
}

/// A fake logger with the same contract: closes 5 when ready, ignores SIGTERM and reads to the end. Files in
/// its directory delay it: `hold` its readiness, `stall` its reading.
const LOGGER: &[u8] = b"#!/bin/sh
trap '' TERM
while [ $# -gt 0 ]; do
    case \"$1\" in
        dir) dir=$2 ;;
        max-size) size=$2 ;;
        max-files) files=$2 ;;
        attempt) attempt=$2 ;;
    esac
    shift 2
done
echo \"$size $files $attempt\" >\"$dir/limits\"
while [ -e \"$dir/hold\" ]; do sleep 0.01; done
exec 5>&-
while [ -e \"$dir/stall\" ]; do sleep 0.01; done
(cat <&3 >>\"$dir/stdout\"; : >\"$dir/stdout.end\") &
(cat <&4 >>\"$dir/stderr\"; : >\"$dir/stderr.end\") &
wait
";

/// busybox and the files that tests use.
pub fn tiny(name: &str) -> ImageBuilder {
    let busybox = std::fs::read("/bin/busybox").expect("package busybox-static is installed");
    let mut image =
        ImageBuilder::new(name).dir("bin", 0o755).dir("etc", 0o755).file("bin/busybox", 0o755, busybox);
    for applet in APPLETS {
        image = image.link(&format!("bin/{applet}"), "busybox");
    }
    image
        .file("etc/passwd", 0o644, PASSWD)
        .file("etc/group", 0o644, GROUP)
        .file("etc/data", 0o644, "no program")
        .config("Cmd", vec!["sleep", "100000"])
        .config("Env", vec!["FROM_IMAGE=yes"])
}

pub async fn import(
    runtime: &ContainerdRuntime,
    spool_dir: &Path,
    archive: Vec<u8>,
) -> Result<Vec<ImportedName>, warren_image::Error> {
    let options = ImportOptions { spool_dir: spool_dir.to_owned(), max_bytes: 64 << 20, name: None };
    runtime.images().import(&archive[..], options).await
}

pub fn id(text: &str) -> ContainerId {
    ContainerId::parse(text).unwrap()
}

pub fn spec(name: &str, command: &[&str]) -> ContainerSpec {
    let owner = ContainerOwner { task: format!("task-{name}"), attempt: 1, spec_hash: "hash".into() };
    ContainerSpec {
        command: Some(command.iter().map(|word| (*word).to_owned()).collect()),
        hostname: "inside".into(),
        assignment: b"assigned".to_vec(),
        ..ContainerSpec::new(id(name), owner, Reference::parse(IMAGE).unwrap())
    }
}

/// A container that runs until it is killed.
pub fn sleeper(name: &str) -> ContainerSpec {
    spec(name, &["sleep", "100000"])
}

pub async fn run(runtime: &dyn Runtime, spec: &ContainerSpec) -> u32 {
    runtime.ensure_created(spec).await.unwrap();
    runtime.start(&spec.id).await.unwrap()
}

/// Kills it and removes it.
pub async fn end(runtime: &dyn Runtime, spec: &ContainerSpec) {
    runtime.signal(&spec.id, Signal::KILL).await.unwrap();
    eventually("it ends", || async {
        !matches!(
            process(runtime, &spec.id).await,
            ProcessState::Running { .. } | ProcessState::Created { .. }
        )
    })
    .await;
    runtime.remove(&spec.id).await.unwrap();
}

pub async fn process(runtime: &dyn Runtime, id: &ContainerId) -> ProcessState {
    runtime.inspect(id).await.unwrap().expect("there is a record").process
}

/// Processes of this machine whose command line begins so.
pub fn count_processes(command: &[u8]) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let line = |entry: std::fs::DirEntry| std::fs::read(entry.path().join("cmdline")).ok();
    all.filter_map(line).filter(|line| line.starts_with(command)).count()
}

/// Waits for a condition.
#[track_caller]
pub fn eventually<F, Fut>(what: &str, condition: F) -> impl Future<Output = ()>
where
    F: Fn() -> Fut,
    Fut: Future<Output = bool>,
{
    let deadline = Instant::now() + TIMEOUT;
    let place = std::panic::Location::caller();
    async move {
        while !condition().await {
            assert!(Instant::now() < deadline, "{place}: still waiting until {what}");
            // Between two checks; the loop has a deadline.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

pub async fn stopped(runtime: &dyn Runtime, id: &ContainerId) -> ProcessExit {
    eventually(&format!("{id} has stopped"), || async {
        matches!(process(runtime, id).await, ProcessState::Stopped(_))
    })
    .await;
    match process(runtime, id).await {
        ProcessState::Stopped(exit) => exit,
        other => panic!("{id} was stopped and is now {other:?}"),
    }
}

/// Waits for an event that matches `pick`; others are skipped.
pub async fn event<T>(
    events: &mut BoxStream<'static, RuntimeEvent>,
    pick: impl Fn(RuntimeEvent) -> Option<T>,
) -> T {
    let expected = async {
        loop {
            let event = events.next().await.expect("events never end");
            if let Some(picked) = pick(event) {
                return picked;
            }
        }
    };
    tokio::time::timeout(TIMEOUT, expected).await.expect("the event comes in time")
}

pub async fn exited(events: &mut BoxStream<'static, RuntimeEvent>, expected: &ContainerId) -> ProcessExit {
    let pick = |event| match event {
        RuntimeEvent::Exited { id, exit } if id == *expected => Some(exit),
        _ => None,
    };
    event(events, pick).await
}

/// The received events.
pub fn drain(events: &mut BoxStream<'static, RuntimeEvent>) -> Vec<RuntimeEvent> {
    std::iter::from_fn(|| events.next().now_or_never().flatten()).collect()
}
