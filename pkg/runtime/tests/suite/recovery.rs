//! What is found again after somebody was killed.

use std::time::Duration;

use containerd_client::services::v1::DeleteContainerRequest;
use warren_image::{Connection, within};
use warren_runtime::containerd::Containerd;
use warren_runtime::{ContainerSpec, Process, Runtime, RuntimeEvent, Signal};
use warren_types::Bytes;

use crate::world::{World, end, event, eventually, exited, process, run, sleeper, spec, stopped};

const RECORD: Duration = Duration::from_secs(10);

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

/// Nobody listened when it happened; the cgroup still tells.
#[tokio::test(flavor = "multi_thread")]
async fn a_want_of_memory_while_no_agent_ran_is_found() {
    let world = World::start().await;
    let hog = "while [ ! -e /go ]; do sleep 0.01; done; x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done";
    let mut spec = spec("hungry", &["sh", "-c", hog]);
    spec.limits.memory = Some(Bytes(16 << 20));
    let pid = run(&world.runtime, &spec).await;
    let World { runtime, containerd } = world;
    drop(runtime);
    std::fs::write(format!("/proc/{pid}/root/go"), "").unwrap();
    let gone = || async { !std::path::Path::new(&format!("/proc/{pid}")).exists() };
    eventually("it was killed", gone).await;
    let world = World { runtime: Containerd::new(containerd.settings()).unwrap(), containerd };
    let exit = stopped(&world.runtime, &spec.id).await;
    assert_eq!((exit.code, exit.signal(), exit.out_of_memory), (137, Some(Signal::KILL), true));
    assert_eq!(world.runtime.delete_process(&spec.id).await.unwrap(), Some(exit));
    world.runtime.remove(&spec.id).await.unwrap();
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
