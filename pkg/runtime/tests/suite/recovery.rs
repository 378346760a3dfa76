//! What is found again after somebody was killed, and what is swept.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Duration;

use containerd_client::services::v1::snapshots::{PrepareSnapshotRequest, RemoveSnapshotRequest};
use containerd_client::services::v1::{Container, CreateContainerRequest, DeleteContainerRequest, container};
use warren_image::{Connection, within};
use warren_runtime::containerd::Containerd;
use warren_runtime::{ContainerSpec, Process, Runtime, RuntimeEvent, Signal};

use crate::world::{World, event, eventually, exited, id, process, spec, stopped};

const SLEEP: [&str; 2] = ["sleep", "100000"];
const RECORD: Duration = Duration::from_secs(10);

fn sleeper(name: &str) -> ContainerSpec {
    spec(name, &SLEEP)
}

async fn run(runtime: &dyn Runtime, spec: &ContainerSpec) -> u32 {
    runtime.ensure_created(spec).await.unwrap();
    runtime.start(&spec.id).await.unwrap()
}

async fn end(runtime: &dyn Runtime, spec: &ContainerSpec) {
    runtime.signal(&spec.id, Signal::KILL).await.unwrap();
    eventually("it ends", || async {
        !matches!(process(runtime, &spec.id).await, Process::Running { .. } | Process::Created { .. })
    })
    .await;
    runtime.remove(&spec.id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_agent_adopts_what_runs() {
    let world = World::start().await;
    let (waits, runs) = (sleeper("waits"), sleeper("runs"));
    world.runtime.ensure_created(&waits).await.unwrap();
    let pid = run(&world.runtime, &runs).await;
    let World { runtime, containerd } = world;
    drop(runtime);
    let runtime = Containerd::new(containerd.settings()).unwrap();
    let world = World { runtime, containerd };
    let mut events = world.runtime.events();
    assert_eq!(process(&world.runtime, &runs.id).await, Process::Running { pid });
    let listed: Vec<_> = world.runtime.list().await.unwrap().into_iter().map(|found| found.id).collect();
    assert_eq!(listed, [runs.id.clone(), waits.id.clone()]);
    world.runtime.start(&waits.id).await.expect("what another agent created can be started");
    world.runtime.signal(&runs.id, Signal::KILL).await.unwrap();
    assert_eq!(exited(&mut events, &runs.id).await.code, 137);
    world.runtime.remove(&runs.id).await.unwrap();
    end(&world.runtime, &waits).await;
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_survive_containerd() {
    let world = World::start().await;
    let mut events = world.runtime.events();
    let (lives, dies) =
        (sleeper("lives"), spec("dies", &["sh", "-c", "while [ ! -e /proc/1/cwd/go ]; do :; done"]));
    let pid = run(&world.runtime, &lives).await;
    run(&world.runtime, &dies).await;
    world.containerd.kill_and_wait().await;
    event(&mut events, |event| (event == RuntimeEvent::Lost).then_some(())).await;
    event(&mut events, |event| (event == RuntimeEvent::Resumed).then_some(())).await;
    assert_eq!(process(&world.runtime, &lives.id).await, Process::Running { pid }, "same process, no blip");
    assert!(world.runtime.signal(&dies.id, Signal::KILL).await.unwrap());
    assert_eq!(exited(&mut events, &dies.id).await.code, 137, "ends are told again");
    world.runtime.remove(&dies.id).await.unwrap();
    end(&world.runtime, &lives).await;
    world.assert_clean().await;
}

/// Calls again as long as the error says that it can help.
async fn insist<T, F: Future<Output = Result<T, warren_runtime::Error>>>(
    what: &str,
    call: impl Fn() -> F,
) -> T {
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        match call().await {
            Ok(done) => return done,
            Err(error) => {
                assert!(error.is_transient() && std::time::Instant::now() < deadline, "{what}: {error}");
                // Between two looks; the loop has a deadline.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn containerd_killed_at_any_moment_of_a_creation_leaves_nothing_that_insisting_does_not_mend() {
    let world = World::start().await;
    for round in 0..6u64 {
        let specs: Vec<ContainerSpec> = (0..4).map(|n| sleeper(&format!("r{round}-{n}"))).collect();
        // As an agent does it: a start that failed is followed by a look and, if need be, another creation.
        let starts = specs.iter().map(|spec| {
            insist("create and start", || async {
                let found = world.runtime.inspect(&spec.id).await?;
                if found.is_some_and(|found| matches!(found.process, Process::Stopped(_))) {
                    world.runtime.delete_process(&spec.id).await?;
                }
                world.runtime.ensure_created(spec).await?;
                world.runtime.start(&spec.id).await
            })
        });
        let kill = async {
            // A different moment of the creations in each round.
            // Not a wait: the moment of the kill.
            tokio::time::sleep(Duration::from_millis(5 + 25 * round)).await;
            world.containerd.kill_and_wait().await;
        };
        let (pids, ()) = futures::join!(futures::future::join_all(starts), kill);
        for (spec, pid) in specs.iter().zip(pids) {
            let found = insist("inspect", || world.runtime.inspect(&spec.id)).await.unwrap();
            // Killed while starting, a process may have been lost with its supervisor; then it is so
            // reported.
            match found.process {
                Process::Running { pid: now } => assert_eq!(now, pid, "no process is started twice"),
                Process::None | Process::Stopped(_) => {}
                other => panic!("{other:?}"),
            }
        }
        let removals = specs.iter().map(|spec| async {
            insist("kill", || world.runtime.signal(&spec.id, Signal::KILL)).await;
            eventually("it ends", || async {
                let found = insist("inspect", || world.runtime.inspect(&spec.id)).await;
                !matches!(found.unwrap().process, Process::Running { .. } | Process::Created { .. })
            })
            .await;
            insist("remove", || world.runtime.remove(&spec.id)).await;
        });
        futures::future::join_all(removals).await;
    }
    insist("sweep", || world.runtime.sweep_strays()).await;
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_abandoned_creation_is_finished_and_leaves_no_supervisor() {
    let world = World::start().await;
    for round in 0..8u64 {
        let spec = sleeper(&format!("left{round}"));
        let runtime = world.runtime.clone();
        let wanted = spec.clone();
        let waiting = tokio::spawn(async move { runtime.ensure_created(&wanted).await });
        // Not a wait: the moment at which the caller gives up.
        tokio::time::sleep(Duration::from_millis(4 + 6 * round)).await;
        waiting.abort();
        // Whatever was reached, the next agent creates, starts and removes as if nothing had happened.
        insist("create", || world.runtime.ensure_created(&spec)).await;
        world.runtime.start(&spec.id).await.unwrap();
        end(&world.runtime, &spec).await;
    }
    world.assert_clean().await;
}

/// A process with a supervisor's command line.
struct Stray(Child);

impl Stray {
    fn spawn(world: &World, of: &str) -> Self {
        let settings = world.containerd.settings();
        let line = format!(
            "exec -a containerd-shim-runc-v2 sh -c 'sleep 1000; :' -namespace {} -id {of} -address {}",
            settings.namespace,
            settings.socket.display(),
        );
        Self(Command::new("bash").args(["-c", &line]).process_group(0).spawn().unwrap())
    }
}

impl Drop for Stray {
    fn drop(&mut self) {
        // Its sleep outlives it, and keeps the group's number from being given again.
        let group = nix::unistd::Pid::from_raw(self.0.id().cast_signed());
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::SIGKILL);
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn strays_are_swept_and_nothing_else() {
    let world = World::start().await;
    let settings = world.containerd.settings();
    let connection = Connection::new(&settings.socket, &settings.namespace).unwrap();
    let kept = sleeper("kept");
    let pid = run(&world.runtime, &kept).await;

    // A process whose record was deleted under it, with a supervisor that really supervises.
    for name in ["orphan", "orphan2", "orphan3"] {
        run(&world.runtime, &sleeper(name)).await;
        let request = connection.request(DeleteContainerRequest { id: name.to_owned() });
        within(RECORD, connection.containers().delete(request)).await.unwrap();
        assert_eq!(world.runtime.inspect(&id(name)).await.unwrap(), None);
    }
    world.runtime.remove(&id("orphan2")).await.expect("removal mends this too");
    // An earlier sweep was killed when it had made the record by which it ends an orphan.
    let record = Container {
        id: "orphan3".into(),
        labels: [("warren.stand-in".to_owned(), "true".to_owned())].into(),
        runtime: Some(container::Runtime { name: "io.containerd.runc.v2".into(), options: None }),
        spec: Some(prost_types::Any { type_url: "x".into(), value: b"{}".to_vec() }),
        ..Default::default()
    };
    let request = connection.request(CreateContainerRequest { container: Some(record) });
    within(RECORD, connection.containers().create(request)).await.unwrap();
    // A file system without a container, held against containerd's own garbage collector.
    let request = connection.request(PrepareSnapshotRequest {
        snapshotter: settings.snapshotter.clone(),
        key: "lonely".into(),
        labels: [("warren.container", "lonely"), ("containerd.io/gc.root", "x")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        ..Default::default()
    });
    within(RECORD, connection.snapshots().prepare(request)).await.unwrap();
    // Somebody else's, which is not for us to remove.
    let request = connection.request(PrepareSnapshotRequest {
        snapshotter: settings.snapshotter.clone(),
        key: "foreign".into(),
        labels: [("containerd.io/gc.root".to_owned(), "x".to_owned())].into(),
        ..Default::default()
    });
    within(RECORD, connection.snapshots().prepare(request)).await.unwrap();
    // A supervisor of nothing, one of a living container, and an empty cgroup.
    let mut stray = Stray::spawn(&world, "nobody");
    let mut decoy = Stray::spawn(&world, "kept");
    let cgroup = ["memory", ""].map(|controller| {
        std::path::Path::new("/sys/fs/cgroup").join(controller).join(settings.cgroup_parent.trim_matches('/'))
    });
    let cgroup = cgroup.into_iter().find(|path| path.exists()).unwrap().join("empty");
    std::fs::create_dir(&cgroup).unwrap();
    let named = |child: &Child| std::fs::read(format!("/proc/{}/cmdline", child.id())).unwrap();
    eventually("both have their names", || async {
        [&stray.0, &decoy.0].iter().all(|child| named(child).starts_with(b"containerd-shim"))
    })
    .await;

    let swept = world.runtime.sweep_strays().await.unwrap();
    assert_eq!(swept.tasks, ["orphan", "orphan3"]);
    assert_eq!(swept.shims, ["nobody"]);
    assert!(swept.snapshots.contains(&"lonely".to_owned()), "{swept:?}");
    assert!(!swept.snapshots.contains(&"foreign".to_owned()), "{swept:?}");
    assert_eq!(swept.cgroups.iter().filter(|path| path.ends_with("/empty")).count(), 1, "{swept:?}");
    assert!(!cgroup.exists());
    assert!(!stray.0.wait().unwrap().success());
    assert!(decoy.0.try_wait().unwrap().is_none(), "the supervisor of a living container is left alone");
    assert_eq!(process(&world.runtime, &kept.id).await, Process::Running { pid });
    assert!(world.runtime.sweep_strays().await.unwrap().is_empty(), "the second sweep finds nothing");

    drop((stray, decoy));
    let request = connection
        .request(RemoveSnapshotRequest { snapshotter: settings.snapshotter, key: "foreign".into() });
    within(RECORD, connection.snapshots().remove(request)).await.unwrap();
    end(&world.runtime, &kept).await;
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_removed_container_can_be_made_again() {
    let world = World::start().await;
    let settings = world.containerd.settings();
    let connection = Connection::new(&settings.socket, &settings.namespace).unwrap();
    let spec = sleeper("half");
    run(&world.runtime, &spec).await;
    world.runtime.signal(&spec.id, Signal::KILL).await.unwrap();
    stopped(&world.runtime, &spec.id).await;
    world.runtime.delete_process(&spec.id).await.unwrap();
    // The record is gone, the file system is not.
    let request = connection.request(DeleteContainerRequest { id: spec.id.to_string() });
    within(RECORD, connection.containers().delete(request)).await.unwrap();
    run(&world.runtime, &spec).await;
    end(&world.runtime, &spec).await;
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_all_run_and_all_go() {
    let world = World::start().await;
    let specs: Vec<ContainerSpec> = (0..20).map(|n| sleeper(&format!("many{n}"))).collect();
    let pids = futures::future::join_all(specs.iter().map(|spec| run(&world.runtime, spec))).await;
    let listed = world.runtime.list().await.unwrap();
    assert_eq!(listed.len(), specs.len());
    for (spec, pid) in specs.iter().zip(pids) {
        let found = listed.iter().find(|found| found.id == spec.id).unwrap();
        assert_eq!(found.process, Process::Running { pid });
    }
    futures::future::join_all(specs.iter().map(|spec| end(&world.runtime, spec))).await;
    world.assert_clean().await;
}
