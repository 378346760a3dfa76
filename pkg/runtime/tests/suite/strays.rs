//! Orphans are removed at any time, and objects in use are not.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use containerd_client::services::v1::snapshots::{PrepareSnapshotRequest, RemoveSnapshotRequest};
use containerd_client::services::v1::{Container, CreateContainerRequest, DeleteContainerRequest, container};
use nix::sys::stat::Mode;
use warren_image::{ContainerdConnection, with_deadline};
use warren_runtime::{ContainerSpec, ProcessState, Runtime, SweepReport};

use crate::world::{RuntimeFixture, end, eventually, id, process, run, sleeper};

const RECORD: Duration = Duration::from_secs(10);

/// A process with a supervisor's name and command line.
struct OrphanShim(Child);

impl OrphanShim {
    /// Returns when the process table shows the command line: `spawn` may return in the middle of `execve`,
    /// before the kernel has set it.
    async fn spawn(world: &RuntimeFixture, of: &str) -> Self {
        let settings = world.containerd.settings();
        let program = world.containerd.dir().join(of).join("containerd-shim-runc-v2");
        std::fs::create_dir(program.parent().unwrap()).unwrap();
        symlink("/bin/sh", &program).unwrap();
        let mut command = Command::new(program);
        command.args(["-c", "sleep 1000; :", "-namespace", &settings.namespace, "-id", of, "-address"]);
        let shim = Self(command.arg(&settings.socket).process_group(0).spawn().unwrap());
        let path = format!("/proc/{}/cmdline", shim.0.id());
        let end = [settings.socket.as_os_str().as_bytes(), b"\0"].concat();
        eventually("the orphan shim is in the process table", async || {
            std::fs::read(&path).unwrap().ends_with(&end)
        })
        .await;
        shim
    }

    fn is_alive(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for OrphanShim {
    fn drop(&mut self) {
        // Its sleep outlives it, and prevents reuse of the process group id.
        let group = nix::unistd::Pid::from_raw(self.0.id().cast_signed());
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::SIGKILL);
        let _ = self.0.wait();
    }
}

/// Whether the process table has a supervisor of this container.
fn is_supervised(world: &RuntimeFixture, name: &str) -> bool {
    let mark = format!(" -id {name} ");
    // The supervisor is started by a short-lived process with the same arguments. A list that is read meanwhile can
    // miss both: the numbers of new processes begin again at the lowest when they have reached the highest.
    (0..2).any(|_| world.containerd.leftovers().iter().any(|line| line.contains(&mark)))
}

fn make_cgroup(world: &RuntimeFixture, name: &str) -> PathBuf {
    let parent = world.containerd.settings().cgroup_parent;
    let places = ["memory", ""]
        .map(|controller| Path::new("/sys/fs/cgroup").join(controller).join(parent.trim_matches('/')));
    let cgroup = places.into_iter().find(|path| path.exists()).unwrap().join(name);
    std::fs::create_dir(&cgroup).unwrap();
    cgroup
}

pub fn connection(world: &RuntimeFixture) -> ContainerdConnection {
    let settings = world.containerd.settings();
    ContainerdConnection::new(&settings.socket, &settings.namespace).unwrap()
}

pub fn record(name: &str) -> Container {
    Container {
        id: name.to_owned(),
        runtime: Some(container::Runtime { name: "io.containerd.runc.v2".into(), options: None }),
        spec: Some(prost_types::Any { type_url: "x".into(), value: b"{}".to_vec() }),
        ..Default::default()
    }
}

pub async fn make(connection: &ContainerdConnection, record: Container) {
    let request = connection.request(CreateContainerRequest { container: Some(record) });
    with_deadline(RECORD, connection.containers().create(request)).await.unwrap();
}

pub async fn delete_record(connection: &ContainerdConnection, name: &str) {
    let request = connection.request(DeleteContainerRequest { id: name.to_owned() });
    with_deadline(RECORD, connection.containers().delete(request)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_orphans_are_swept() {
    let world = RuntimeFixture::start().await;
    let settings = world.containerd.settings();
    let connection = connection(&world);
    let kept = sleeper("kept");
    let pid = run(&world.runtime, &kept).await;

    // A process whose record was deleted, with a real supervisor.
    for name in ["orphan", "orphan2", "orphan3"] {
        run(&world.runtime, &sleeper(name)).await;
        delete_record(&connection, name).await;
        assert_eq!(world.runtime.inspect(&id(name)).await.unwrap(), None);
    }
    world.runtime.remove(&id("orphan2")).await.expect("removal repairs this too");
    // An earlier sweep was killed after it had created its placeholder record.
    let labels = [("warren.stand-in".to_owned(), "true".to_owned())].into();
    make(&connection, Container { labels, ..record("orphan3") }).await;
    // A file system without a container, protected from containerd's garbage collector.
    let request = connection.request(PrepareSnapshotRequest {
        snapshotter: settings.snapshotter.clone(),
        key: "single".into(),
        labels: [("warren.container", "single"), ("containerd.io/gc.root", "x")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        ..Default::default()
    });
    with_deadline(RECORD, connection.snapshots().prepare(request)).await.unwrap();
    // Of another client, so it must not be removed.
    let request = connection.request(PrepareSnapshotRequest {
        snapshotter: settings.snapshotter.clone(),
        key: "foreign".into(),
        labels: [("containerd.io/gc.root".to_owned(), "x".to_owned())].into(),
        ..Default::default()
    });
    with_deadline(RECORD, connection.snapshots().prepare(request)).await.unwrap();
    // A supervisor without container, one of a running container, and an empty cgroup.
    let mut stray = OrphanShim::spawn(&world, "nobody").await;
    let mut decoy = OrphanShim::spawn(&world, "kept").await;
    let empty = make_cgroup(&world, "empty");

    let swept = world.runtime.sweep_orphans().await.unwrap();
    assert_eq!(swept.tasks, ["orphan", "orphan3"]);
    assert_eq!(swept.shims, ["nobody"]);
    assert!(swept.snapshots.contains(&"single".to_owned()), "{swept:?}");
    assert!(!swept.snapshots.contains(&"foreign".to_owned()), "{swept:?}");
    assert_eq!(swept.cgroups.iter().filter(|path| path.ends_with("/empty")).count(), 1, "{swept:?}");
    assert!(!empty.exists());
    assert!(!stray.0.wait().unwrap().success());
    assert!(decoy.is_alive(), "the supervisor of a living container is left alone");
    assert_eq!(process(&world.runtime, &kept.id).await, ProcessState::Running { pid });
    assert!(world.runtime.sweep_orphans().await.unwrap().is_empty(), "the second sweep finds nothing");

    drop((stray, decoy));
    let request = connection
        .request(RemoveSnapshotRequest { snapshotter: settings.snapshotter, key: "foreign".into() });
    with_deadline(RECORD, connection.snapshots().remove(request)).await.unwrap();
    end(&world.runtime, &kept).await;
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn owned_at_second_scan_is_kept() {
    let world = RuntimeFixture::start().await;
    let connection = connection(&world);
    run(&world.runtime, &sleeper("first")).await;
    let mut stray = OrphanShim::spawn(&world, "late").await;
    let cgroup = make_cgroup(&world, "late");
    let runtime = world.runtime.clone();
    let sweep = tokio::spawn(async move { runtime.sweep_orphans().await });
    // Not a wait: a time between the two scans.
    tokio::time::sleep(Duration::from_secs(2)).await;
    make(&connection, record("late")).await;
    assert_eq!(sweep.await.unwrap().unwrap(), SweepReport::default());
    assert!(stray.is_alive() && cgroup.exists());
    delete_record(&connection, "late").await;
    let swept = world.runtime.sweep_orphans().await.unwrap();
    assert_eq!((&swept.shims[..], swept.cgroups.len()), (&["late".to_owned()][..], 1), "{swept:?}");
    assert!(!stray.is_alive() && !cgroup.exists());
    end(&world.runtime, &sleeper("first")).await;
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn orphan_shim_is_removed_with_its_resources() {
    let world = RuntimeFixture::start().await;
    run(&world.runtime, &sleeper("first")).await;
    let mut stray = OrphanShim::spawn(&world, "nobody").await;
    let cgroup = make_cgroup(&world, "nobody");
    let mut made = Command::new("sleep").arg("1000").spawn().unwrap();
    std::fs::write(cgroup.join("cgroup.procs"), made.id().to_string()).unwrap();
    let swept = world.runtime.sweep_orphans().await.unwrap();
    let alive = stray.is_alive() || made.try_wait().unwrap().is_none();
    made.kill().unwrap();
    made.wait().unwrap();
    assert!(!alive && !cgroup.exists(), "{swept:?}");
    end(&world.runtime, &sleeper("first")).await;
    world.assert_clean().await;
}

/// The record is deleted while the process is created, as when a removal overtakes a creation. containerd
/// still completes the process.
#[tokio::test(flavor = "multi_thread")]
async fn running_creation_is_not_swept_before_it_ends() {
    let world = RuntimeFixture::start().await;
    let (connection, snapshotter) = (connection(&world), world.containerd.settings().snapshotter);
    for (name, is_abandoned) in [("slow", false), ("abandoned", true)] {
        // The supervisor waits until the logger is ready.
        let (log, dir) = world.log(name);
        std::fs::write(dir.join("hold"), "").unwrap();
        let spec = ContainerSpec { log, ..sleeper(name) };
        let runtime = world.runtime.clone();
        let creation = tokio::spawn(async move { runtime.ensure_created(&spec).await });
        eventually("a supervisor is there", || async { is_supervised(&world, name) }).await;
        // Without any record containerd would remove its file system.
        let record =
            Container { snapshotter: snapshotter.clone(), snapshot_key: name.into(), ..record("holder") };
        make(&connection, record).await;
        delete_record(&connection, name).await;
        if is_abandoned {
            creation.abort();
        }
        assert_eq!(world.runtime.sweep_orphans().await.unwrap(), SweepReport::default());
        assert!(is_supervised(&world, name));
        std::fs::remove_file(dir.join("hold")).unwrap();
        match creation.await {
            Ok(created) => created.unwrap(),
            Err(aborted) => assert!(is_abandoned && aborted.is_cancelled()),
        }
        eventually("the next sweep removes it", || async {
            let swept = world.runtime.sweep_orphans().await.unwrap();
            assert!(swept.failed.is_empty(), "{swept:?}");
            swept.tasks == [name]
        })
        .await;
        eventually("its supervisor has ended", || async { !is_supervised(&world, name) }).await;
        delete_record(&connection, "holder").await;
    }
    world.assert_clean().await;
}

/// What containerd leaves when it is killed right after starting a supervisor: a bundle that it does not
/// load, does not remove, and that blocks the next creation of the process.
#[tokio::test(flavor = "multi_thread")]
async fn dir_of_unknown_shim_does_not_block_creation() {
    let world = RuntimeFixture::start().await;
    let spec = sleeper("again");
    run(&world.runtime, &sleeper("first")).await;
    let namespace = world.containerd.settings().namespace;
    let folder =
        world.containerd.dir().join("state/io.containerd.runtime.v2.task").join(namespace).join("again");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("config.json"), "{}").unwrap();
    std::fs::write(folder.join("address"), "unix:///none").unwrap();
    nix::unistd::mkfifo(&folder.join("log"), Mode::S_IRWXU).unwrap();
    // It stays young, however slow the machine is.
    let later = std::time::SystemTime::now() + Duration::from_secs(600);
    File::open(&folder).unwrap().set_modified(later).unwrap();
    let mut forgotten = OrphanShim::spawn(&world, "again").await;
    let refused = world.runtime.ensure_created(&spec).await.unwrap_err();
    assert!(refused.is_transient() && refused.to_string().contains("file exists"), "{refused}");
    assert!(forgotten.is_alive() && folder.exists(), "containerd may be at work in a young one");
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(60);
    File::open(&folder).unwrap().set_modified(long_ago).unwrap();
    let pid = run(&world.runtime, &spec).await;
    assert!(!forgotten.is_alive());
    assert_eq!(process(&world.runtime, &spec.id).await, ProcessState::Running { pid });
    for spec in [spec, sleeper("first")] {
        end(&world.runtime, &spec).await;
    }
    world.assert_clean().await;
}
