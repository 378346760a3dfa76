//! Recovery after a kill.

use std::time::Duration;

use containerd_client::services::v1::DeleteContainerRequest;
use warren_image::{ContainerdConnection, with_deadline};
use warren_runtime::containerd::ContainerdRuntime;
use warren_runtime::{ContainerSpec, ProcessState, Runtime, RuntimeEvent, Signal};
use warren_types::Bytes;

use crate::world::{RuntimeFixture, end, event, eventually, exited, process, run, sleeper, spec, stopped};

const RECORD: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn new_agent_adopts_running_containers() {
    let world = RuntimeFixture::start().await;
    let (waits, runs) = (sleeper("waits"), sleeper("runs"));
    world.runtime.ensure_created(&waits).await.unwrap();
    let pid = run(&world.runtime, &runs).await;
    let RuntimeFixture { runtime, containerd } = world;
    drop(runtime);
    let runtime = ContainerdRuntime::new(containerd.settings()).unwrap();
    let world = RuntimeFixture { runtime, containerd };
    let mut events = world.runtime.events();
    assert_eq!(process(&world.runtime, &runs.id).await, ProcessState::Running { pid });
    let listed: Vec<_> = world.runtime.list().await.unwrap().into_iter().map(|found| found.id).collect();
    assert_eq!(listed, [runs.id.clone(), waits.id.clone()]);
    world.runtime.start(&waits.id).await.expect("what another agent created can be started");
    world.runtime.signal(&runs.id, Signal::KILL).await.unwrap();
    assert_eq!(exited(&mut events, &runs.id).await.code, 137);
    world.runtime.remove(&runs.id).await.unwrap();
    end(&world.runtime, &waits).await;
    world.assert_clean().await;
}

/// Without a subscriber at that time; the cgroup still has it.
#[tokio::test(flavor = "multi_thread")]
async fn oom_kill_without_agent_is_detected() {
    let world = RuntimeFixture::start().await;
    let hog = "while [ ! -e /go ]; do sleep 0.01; done; x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done";
    let mut spec = spec("hungry", &["sh", "-c", hog]);
    spec.limits.memory = Some(Bytes(16 << 20));
    let pid = run(&world.runtime, &spec).await;
    let RuntimeFixture { runtime, containerd } = world;
    drop(runtime);
    std::fs::write(format!("/proc/{pid}/root/go"), "").unwrap();
    let gone = || async { !std::path::Path::new(&format!("/proc/{pid}")).exists() };
    eventually("it was killed", gone).await;
    let world =
        RuntimeFixture { runtime: ContainerdRuntime::new(containerd.settings()).unwrap(), containerd };
    let exit = stopped(&world.runtime, &spec.id).await;
    assert_eq!((exit.code, exit.signal(), exit.out_of_memory), (137, Some(Signal::KILL), true));
    assert_eq!(world.runtime.delete_process(&spec.id).await.unwrap(), Some(exit));
    world.runtime.remove(&spec.id).await.unwrap();
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_survive_containerd() {
    let world = RuntimeFixture::start().await;
    let mut events = world.runtime.events();
    let (lives, dies) =
        (sleeper("lives"), spec("dies", &["sh", "-c", "while [ ! -e /proc/1/cwd/go ]; do :; done"]));
    let pid = run(&world.runtime, &lives).await;
    run(&world.runtime, &dies).await;
    world.containerd.kill_and_wait().await;
    event(&mut events, |event| (event == RuntimeEvent::Lost).then_some(())).await;
    event(&mut events, |event| (event == RuntimeEvent::Resumed).then_some(())).await;
    assert_eq!(
        process(&world.runtime, &lives.id).await,
        ProcessState::Running { pid },
        "same process, no blip"
    );
    assert!(world.runtime.signal(&dies.id, Signal::KILL).await.unwrap());
    assert_eq!(exited(&mut events, &dies.id).await.code, 137, "ends are told again");
    world.runtime.remove(&dies.id).await.unwrap();
    end(&world.runtime, &lives).await;
    world.assert_clean().await;
}

/// Retries as long as the error is transient.
async fn retry_transient<T, F: Future<Output = Result<T, warren_runtime::Error>>>(
    what: &str,
    call: impl Fn() -> F,
) -> T {
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        match call().await {
            Ok(done) => return done,
            Err(error) => {
                assert!(error.is_transient() && std::time::Instant::now() < deadline, "{what}: {error}");
                // Between two checks; the loop has a deadline.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn retry_repairs_creation_after_containerd_kill() {
    let world = RuntimeFixture::start().await;
    for round in 0..6u64 {
        let specs: Vec<ContainerSpec> = (0..4).map(|n| sleeper(&format!("r{round}-{n}"))).collect();
        // As an agent does: a failed start is followed by an inspection and, if needed, another creation.
        let starts = specs.iter().map(|spec| {
            retry_transient("create and start", || async {
                let found = world.runtime.inspect(&spec.id).await?;
                if found.is_some_and(|found| matches!(found.process, ProcessState::Stopped(_))) {
                    world.runtime.delete_process(&spec.id).await?;
                }
                world.runtime.ensure_created(spec).await?;
                world.runtime.start(&spec.id).await
            })
        });
        let kill = async {
            // A different time of the creations in each round.
            // Not a wait: the time of the kill.
            tokio::time::sleep(Duration::from_millis(5 + 25 * round)).await;
            world.containerd.kill_and_wait().await;
        };
        let (pids, ()) = futures::join!(futures::future::join_all(starts), kill);
        for (spec, pid) in specs.iter().zip(pids) {
            let found = retry_transient("inspect", || world.runtime.inspect(&spec.id)).await.unwrap();
            // If it was killed while starting, a process may be lost with its supervisor; then it is reported
            // so.
            match found.process {
                ProcessState::Running { pid: now } => assert_eq!(now, pid, "no process is started twice"),
                ProcessState::Absent | ProcessState::Stopped(_) => {}
                other => panic!("{other:?}"),
            }
        }
        let removals = specs.iter().map(|spec| async {
            retry_transient("kill", || world.runtime.signal(&spec.id, Signal::KILL)).await;
            eventually("it ends", || async {
                let found = retry_transient("inspect", || world.runtime.inspect(&spec.id)).await;
                !matches!(found.unwrap().process, ProcessState::Running { .. } | ProcessState::Created { .. })
            })
            .await;
            retry_transient("remove", || world.runtime.remove(&spec.id)).await;
        });
        futures::future::join_all(removals).await;
    }
    retry_transient("sweep", || world.runtime.sweep_orphans()).await;
    world.assert_clean().await;
}

/// As after a kill of containerd between the creation of a layer and its clean-up of others.
#[tokio::test(flavor = "multi_thread")]
async fn lost_layer_is_created_again() {
    let world = RuntimeFixture::start().await;
    let spec = sleeper("lost");
    run(&world.runtime, &spec).await;
    world.runtime.signal(&spec.id, Signal::KILL).await.unwrap();
    stopped(&world.runtime, &spec.id).await;
    world.runtime.delete_process(&spec.id).await.unwrap();
    let layers = world.containerd.dir().join("root/io.containerd.snapshotter.v1.overlayfs/snapshots");
    let names = std::fs::read_dir(&layers).unwrap().map(|entry| entry.unwrap().file_name());
    let newest = names.filter_map(|name| name.to_str()?.parse::<u64>().ok()).max().unwrap();
    std::fs::remove_dir_all(layers.join(newest.to_string())).unwrap();
    retry_transient("create", || world.runtime.ensure_created(&spec)).await;
    world.runtime.start(&spec.id).await.unwrap();
    end(&world.runtime, &spec).await;
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn abandoned_creation_leaves_no_shim() {
    let world = RuntimeFixture::start().await;
    for round in 0..8u64 {
        let spec = sleeper(&format!("left{round}"));
        let runtime = world.runtime.clone();
        let expected = spec.clone();
        let waiting = tokio::spawn(async move { runtime.ensure_created(&expected).await });
        // Not a wait: the time at which the caller is cancelled.
        tokio::time::sleep(Duration::from_millis(4 + 6 * round)).await;
        waiting.abort();
        // Whatever the state is, the next agent creates, starts and removes as usual.
        retry_transient("create", || world.runtime.ensure_created(&spec)).await;
        world.runtime.start(&spec.id).await.unwrap();
        end(&world.runtime, &spec).await;
    }
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn half_removed_container_can_be_recreated() {
    let world = RuntimeFixture::start().await;
    let settings = world.containerd.settings();
    let connection = ContainerdConnection::new(&settings.socket, &settings.namespace).unwrap();
    let spec = sleeper("half");
    run(&world.runtime, &spec).await;
    world.runtime.signal(&spec.id, Signal::KILL).await.unwrap();
    stopped(&world.runtime, &spec.id).await;
    world.runtime.delete_process(&spec.id).await.unwrap();
    // The record is removed, the file system is not.
    let request = connection.request(DeleteContainerRequest { id: spec.id.to_string() });
    with_deadline(RECORD, connection.containers().delete(request)).await.unwrap();
    run(&world.runtime, &spec).await;
    end(&world.runtime, &spec).await;
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_containers_run_and_are_removed() {
    let world = RuntimeFixture::start().await;
    let specs: Vec<ContainerSpec> = (0..20).map(|n| sleeper(&format!("many{n}"))).collect();
    let pids = futures::future::join_all(specs.iter().map(|spec| run(&world.runtime, spec))).await;
    let listed = world.runtime.list().await.unwrap();
    assert_eq!(listed.len(), specs.len());
    for (spec, pid) in specs.iter().zip(pids) {
        let found = listed.iter().find(|found| found.id == spec.id).unwrap();
        assert_eq!(found.process, ProcessState::Running { pid });
    }
    futures::future::join_all(specs.iter().map(|spec| end(&world.runtime, spec))).await;
    world.assert_clean().await;
}
