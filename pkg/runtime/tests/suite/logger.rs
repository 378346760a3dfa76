//! Output through a logger program.

use std::fs;
use std::time::Duration;

use warren_runtime::containerd::ContainerdRuntime;
use warren_runtime::{ContainerSpec, Error, OutputTarget, Runtime, Signal};

use crate::world::{RuntimeFixture, end, eventually, process, spec, stopped};

const LINES: usize = 1000;

#[tokio::test(flavor = "multi_thread")]
async fn delete_waits_for_logger() {
    let world = RuntimeFixture::start().await;
    let (log, dir) = world.log("prints");
    fs::write(dir.join("stall"), "").unwrap();
    // Less than the capacity of a pipe, so that it can exit before anything is read.
    let script = format!("i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); done; echo last >&2");
    let container = ContainerSpec { log, ..spec("prints", &["sh", "-c", &script]) };
    world.runtime.ensure_created(&container).await.unwrap();
    assert_eq!(fs::read_to_string(dir.join("limits")).unwrap(), "1048576 3 1\n");
    world.runtime.start(&container.id).await.unwrap();
    assert_eq!(stopped(&world.runtime, &container.id).await.code, 0);
    assert!(!dir.join("stdout").exists(), "nothing was read so far");
    let deletion = {
        let (runtime, id) = (world.runtime.clone(), container.id.clone());
        tokio::spawn(async move { runtime.delete_process(&id).await })
    };
    // Not a wait: a time in which the deletion could end if it did not wait.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!deletion.is_finished());
    fs::remove_file(dir.join("stall")).unwrap();
    assert_eq!(deletion.await.unwrap().unwrap().unwrap().code, 0);
    let printed = fs::read_to_string(dir.join("stdout")).unwrap();
    let want: String = (0..LINES).map(|line| format!("line {line}\n")).collect();
    assert!(printed == want, "{} of {LINES} lines", printed.lines().count());
    assert_eq!(fs::read_to_string(dir.join("stderr")).unwrap(), "last\n");
    world.runtime.remove(&container.id).await.unwrap();
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_survives_agent_and_containerd_exit() {
    let world = RuntimeFixture::start().await;
    let (log, dir) = world.log("talks");
    let script = "i=0; while :; do echo $i; i=$((i+1)); sleep 0.01; done";
    let container = ContainerSpec { log, ..spec("talks", &["sh", "-c", script]) };
    world.runtime.ensure_created(&container).await.unwrap();
    world.runtime.start(&container.id).await.unwrap();
    let lines = || fs::read_to_string(dir.join("stdout")).unwrap_or_default().lines().count();
    let grows = |what: &'static str| async move {
        let before = lines();
        eventually(what, || async { lines() > before + 10 }).await;
    };
    grows("it talks").await;
    let RuntimeFixture { runtime, containerd } = world;
    drop(runtime);
    grows("it talks without an agent").await;
    containerd.kill_and_wait().await;
    grows("it uses the same logger after containerd was killed").await;
    let world =
        RuntimeFixture { runtime: ContainerdRuntime::new(containerd.settings()).unwrap(), containerd };
    end(&world.runtime, &container).await;
    let printed = fs::read_to_string(dir.join("stdout")).unwrap();
    assert!(
        printed.lines().enumerate().all(|(place, line)| line == place.to_string()),
        "each once, in order"
    );
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_logger_is_rejected_early() {
    let world = RuntimeFixture::start().await;
    let (log, dir) = world.log("silent");
    let OutputTarget::Binary { program, .. } = &log else { panic!("{log:?}") };
    let missing = dir.join("missing");
    for (field, program, dir) in [("log.program", &missing, &dir), ("log.dir", program, &missing)] {
        let log = OutputTarget::Binary {
            program: program.clone(),
            dir: dir.clone(),
            max_size: warren_types::Bytes(1),
            max_files: 1,
        };
        let container = ContainerSpec { log, ..spec("silent", &["true"]) };
        let error = world.runtime.ensure_created(&container).await.unwrap_err();
        assert!(matches!(&error, Error::InvalidSpec { field: f, .. } if f == field), "{error}");
        assert_eq!(world.runtime.inspect(&container.id).await.unwrap(), None);
    }
    let container = ContainerSpec { log, ..spec("silent", &["sleep", "1000"]) };
    world.runtime.ensure_created(&container).await.unwrap();
    world.runtime.start(&container.id).await.unwrap();
    assert!(world.runtime.signal(&container.id, Signal::KILL).await.unwrap());
    stopped(&world.runtime, &container.id).await;
    let found = process(&world.runtime, &container.id).await;
    assert!(matches!(found, warren_runtime::ProcessState::Stopped(_)), "{found:?}");
    world.runtime.remove(&container.id).await.unwrap();
    world.assert_clean().await;
}
