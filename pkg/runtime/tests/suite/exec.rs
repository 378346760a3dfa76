//! Further programs in running containers: input, output, terminal, exit code, and their ends.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use warren_runtime::containerd::{ContainerdRuntime, ContainerdSettings};
use warren_runtime::{Error, ExecProcess, ExecSpec, Runtime, Signal, TerminalSize};

use crate::world::{RuntimeFixture, end, eventually, id, run, sleeper, spec};

const TIMEOUT: Duration = Duration::from_secs(60);

fn program(command: &[&str]) -> ExecSpec {
    ExecSpec { command: command.iter().map(|&word| word.to_owned()).collect(), ..ExecSpec::default() }
}

pub fn script(script: &str) -> ExecSpec {
    program(&["sh", "-c", script])
}

async fn read_all(mut output: impl AsyncReadExt + Unpin) -> Vec<u8> {
    let mut all = Vec::new();
    output.read_to_end(&mut all).await.unwrap();
    all
}

/// Gives it `input` and waits for its end: exit code, standard output, standard error.
async fn finish(process: ExecProcess, bytes: Vec<u8>) -> (u32, String, String) {
    let (code, stdout, stderr) = finish_bytes(process, bytes).await;
    (code, String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

async fn finish_bytes(process: ExecProcess, bytes: Vec<u8>) -> (u32, Vec<u8>, Vec<u8>) {
    let ExecProcess { input, stdout, stderr, handle } = process;
    let feed = async {
        if let Some(mut input) = input {
            input.write_all(&bytes).await.unwrap();
            drop(input);
            handle.close_input().await.unwrap();
        }
    };
    let errors = async {
        match stderr {
            Some(stderr) => read_all(stderr).await,
            None => Vec::new(),
        }
    };
    let all = async { tokio::join!(feed, read_all(stdout), errors, handle.wait()) };
    let ((), stdout, stderr, code) = timeout(TIMEOUT, all).await.expect("the program ends");
    (code.unwrap(), stdout, stderr)
}

fn pipe_dirs(settings: &ContainerdSettings) -> Vec<String> {
    let entries = std::fs::read_dir(&settings.exec_dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

impl RuntimeFixture {
    pub async fn exec(&self, name: &str, spec: &ExecSpec) -> (u32, String, String) {
        finish(self.runtime.exec(&id(name), spec).await.unwrap(), Vec::new()).await
    }

    pub async fn pipes_are_removed(&self) {
        let settings = self.containerd.settings();
        eventually("the pipes are gone", || async { pipe_dirs(&settings).is_empty() }).await;
    }

    /// The processes of a container, by the line that started them.
    async fn lines(&self, name: &str) -> Vec<String> {
        let listing = "for one in /proc/[0-9]*; do tr '\\0' ' ' <$one/cmdline; echo; done";
        let listing = listing.replace("tr ", "busybox tr ");
        let (_, lines, _) = self.exec(name, &script(&listing)).await;
        lines.lines().map(|line| line.trim().to_owned()).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn outputs_are_apart_and_code_is_passed_on() {
    let world = RuntimeFixture::start().await;
    let sleeper = sleeper("main");
    run(&world.runtime, &sleeper).await;
    let ended = world.exec("main", &script("echo out; echo error >&2; exit 7")).await;
    assert_eq!(ended, (7, "out\n".to_owned(), "error\n".to_owned()));
    assert_eq!(world.exec("main", &script("cat")).await, (0, String::new(), String::new()), "no input");
    assert_eq!(world.exec("main", &script("kill -9 $$")).await.0, 137);
    world.pipes_are_removed().await;
    end(&world.runtime, &sleeper).await;
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn input_returns_unchanged() {
    let world = RuntimeFixture::start().await;
    let sleeper = sleeper("main");
    run(&world.runtime, &sleeper).await;
    let asked = ExecSpec { input: true, ..program(&["cat"]) };
    let bytes: Vec<u8> = (0..4u32 << 20).map(|n| (n ^ (n >> 8)) as u8).collect();
    let process = world.runtime.exec(&id("main"), &asked).await.unwrap();
    let (code, stdout, stderr) = finish_bytes(process, bytes.clone()).await;
    assert_eq!((code, stderr.len()), (0, 0));
    assert!(stdout == bytes, "{} bytes came back", stdout.len());
    end(&world.runtime, &sleeper).await;
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn terminal_has_its_size_from_the_start_and_follows_changes() {
    let world = RuntimeFixture::start().await;
    let sleeper = sleeper("main");
    run(&world.runtime, &sleeper).await;
    let size = TerminalSize { columns: 101, rows: 33 };
    let text = "busybox stty size; echo $TERM; read line; busybox stty size; echo over >&2";
    let asked = ExecSpec { input: true, terminal: Some(size), ..script(text) };
    let ExecProcess { input, mut stdout, stderr, handle } =
        world.runtime.exec(&id("main"), &asked).await.unwrap();
    assert!(stderr.is_none(), "a terminal has one output");
    let mut first = [0; 15];
    timeout(TIMEOUT, stdout.read_exact(&mut first)).await.unwrap().unwrap();
    assert_eq!(std::str::from_utf8(&first).unwrap(), "33 101\r\nxterm\r\n");
    handle.resize(TerminalSize { columns: 80, rows: 24 }).await.unwrap();
    input.unwrap().write_all(b"\r").await.unwrap();
    let rest = timeout(TIMEOUT, read_all(stdout)).await.unwrap();
    assert_eq!(String::from_utf8(rest).unwrap(), "\r\n24 80\r\nover\r\n");
    assert_eq!(handle.wait().await.unwrap(), 0);
    drop(handle);
    world.pipes_are_removed().await;
    end(&world.runtime, &sleeper).await;
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn setup_is_that_of_the_container_except_as_asked() {
    let world = RuntimeFixture::start().await;
    let mut main = sleeper("main");
    main.user = Some("web".into());
    main.workdir = Some("/etc".into());
    main.env = vec![("A".into(), "1".into())];
    main.no_new_privileges = true;
    run(&world.runtime, &main).await;
    let about =
        "id -u; id -g; pwd; echo $A $B $FROM_IMAGE; grep -E 'Seccomp:|NoNewPrivs|CapBnd' /proc/self/status";
    let (code, first, _) = world.exec("main", &script(about)).await;
    let own = std::fs::read_to_string(format!("/proc/{}/status", run(&world.runtime, &main).await)).unwrap();
    let (text, status) = first.split_once("CapBnd").unwrap();
    assert_eq!((code, text), (0, "33\n44\n/etc\n1 yes\n"));
    for line in format!("CapBnd{status}").lines() {
        assert!(own.contains(line), "{line}");
    }
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    let asked = ExecSpec {
        user: Some("root".into()),
        directory: Some("/bin".into()),
        environment: vec!["A=2".into(), "B=3".into()],
        ..script(about)
    };
    let (_, text, _) = world.exec("main", &asked).await;
    assert!(text.starts_with("0\n0\n/bin\n2 3 yes\n"), "{text}");
    end(&world.runtime, &main).await;
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn program_that_cannot_run_is_explained() {
    let world = RuntimeFixture::start().await;
    let sleeper = sleeper("main");
    run(&world.runtime, &sleeper).await;
    let refused = async |spec: ExecSpec| match world.runtime.exec(&id("main"), &spec).await {
        Ok(_) => panic!("{spec:?} runs"),
        Err(error) => error,
    };
    for (command, is_missing) in [("nosuch", true), ("/no/such", true), ("/etc/data", false), ("/etc", false)]
    {
        let error = refused(program(&[command])).await;
        assert!(
            matches!(&error, Error::CommandNotFound { command: found, .. } if found == command),
            "{error}"
        );
        assert_eq!(error.is_not_executable(), !is_missing, "{error}");
    }
    for (field, wrong) in [
        ("user", ExecSpec { user: Some("nobody".into()), ..program(&["id"]) }),
        ("directory", ExecSpec { directory: Some("/no/such".into()), ..program(&["id"]) }),
        ("directory", ExecSpec { directory: Some("/etc/data".into()), ..program(&["id"]) }),
    ] {
        let error = refused(wrong).await;
        assert!(matches!(&error, Error::InvalidSpec { field: found, .. } if found == field), "{error}");
    }
    world.pipes_are_removed().await;
    world.runtime.signal(&sleeper.id, Signal::KILL).await.unwrap();
    crate::world::stopped(&world.runtime, &sleeper.id).await;
    for name in ["main", "unknown"] {
        let error = world.runtime.exec(&id(name), &program(&["id"])).await.err().unwrap();
        assert!(matches!(error, Error::NotFound { .. }), "{error:?}");
    }
    world.runtime.remove(&sleeper.id).await.unwrap();
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn program_and_its_children_end_with_the_handle() {
    let world = RuntimeFixture::start().await;
    let sleeper = sleeper("main");
    run(&world.runtime, &sleeper).await;
    for terminal in [None, Some(TerminalSize::default())] {
        // Neither ends by SIGHUP.
        let text = "trap '' HUP; sleep 1001 & echo started; while true; do sleep 1002; done";
        let asked = ExecSpec { terminal, ..script(text) };
        let mut process = world.runtime.exec(&id("main"), &asked).await.unwrap();
        let mut started = [0; 7];
        timeout(TIMEOUT, process.stdout.read_exact(&mut started)).await.unwrap().unwrap();
        eventually("both run", || async { world.lines("main").await.contains(&"sleep 1001".to_owned()) })
            .await;
        drop(process);
        eventually("its processes are gone", || async {
            !world.lines("main").await.iter().any(|line| line.contains("sleep 1001") || line.contains("trap"))
        })
        .await;
        world.pipes_are_removed().await;
    }
    let pid = run(&world.runtime, &sleeper).await;
    assert!(pid > 0, "the container runs on");
    end(&world.runtime, &sleeper).await;
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn signal_reaches_the_program_and_end_of_the_container_ends_it() {
    let world = RuntimeFixture::start().await;
    let main = spec("main", &["sleep", "100000"]);
    run(&world.runtime, &main).await;
    let asked = script("trap 'echo caught; exit 5' INT; echo ready; while true; do sleep 0.05; done");
    let mut process = world.runtime.exec(&main.id, &asked).await.unwrap();
    let mut ready = [0; 6];
    timeout(TIMEOUT, process.stdout.read_exact(&mut ready)).await.unwrap().unwrap();
    process.handle.signal(Signal::from_number(2).unwrap());
    assert_eq!(finish(process, Vec::new()).await, (5, "caught\n".to_owned(), String::new()));

    let process = world.runtime.exec(&main.id, &script("sleep 1001")).await.unwrap();
    world.runtime.signal(&main.id, Signal::KILL).await.unwrap();
    let ended = timeout(TIMEOUT, process.handle.wait()).await.expect("it ends with its container");
    assert!(matches!(ended, Ok(137) | Err(Error::NotFound { .. })), "{ended:?}");
    crate::world::stopped(&world.runtime, &main.id).await;
    world.runtime.remove(&main.id).await.unwrap();
    drop(process);
    world.pipes_are_removed().await;
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sweep_ends_what_a_killed_agent_left() {
    let world = RuntimeFixture::start().await;
    let sleeper = sleeper("main");
    run(&world.runtime, &sleeper).await;
    let settings = world.containerd.settings();
    // Its tasks end without a chance to clean up, as by a kill.
    let killed = std::thread::spawn({
        let settings = settings.clone();
        move || {
            let tokio = tokio::runtime::Runtime::new().unwrap();
            let process = tokio.block_on(async {
                let runtime = ContainerdRuntime::new(settings).unwrap();
                let terminal = Some(TerminalSize::default());
                let asked = ExecSpec { input: true, terminal, ..script("sleep 1001 & cat; sleep 1002") };
                runtime.exec(&id("main"), &asked).await.unwrap()
            });
            std::mem::forget(process);
            tokio.shutdown_background();
        }
    });
    killed.join().unwrap();
    assert_eq!(pipe_dirs(&settings).len(), 1);
    eventually("it has no caller and runs", || async {
        world.lines("main").await.contains(&"sleep 1001".to_owned())
    })
    .await;
    let own = world.runtime.exec(&sleeper.id, &script("sleep 1003")).await.unwrap();
    let swept = world.runtime.sweep_orphans().await.unwrap();
    assert_eq!((swept.execs.len(), swept.failed.len()), (1, 0), "{swept:?}");
    let has = async |what: &str| world.lines("main").await.iter().any(|line| line.contains(what));
    // They have been killed, and end a moment later.
    eventually("its processes are gone", || async { !has("sleep 1001").await && !has("sleep 1002").await })
        .await;
    assert!(has("sleep 1003").await, "the other program runs on");
    drop(own);
    world.pipes_are_removed().await;
    end(&world.runtime, &sleeper).await;
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn program_outlives_a_restart_of_containerd() {
    let world = RuntimeFixture::start().await;
    let sleeper = sleeper("main");
    run(&world.runtime, &sleeper).await;
    let asked = ExecSpec { input: true, ..script("read line; echo got $line; exit 3") };
    let process = world.runtime.exec(&sleeper.id, &asked).await.unwrap();
    world.containerd.kill_and_wait().await;
    let answered = || async { world.runtime.info().await.is_ok() };
    eventually("containerd answers", answered).await;
    let ended = finish(process, b"it\n".to_vec()).await;
    assert_eq!(ended, (3, "got it\n".to_owned(), String::new()));
    world.pipes_are_removed().await;
    end(&world.runtime, &sleeper).await;
    world.assert_clean().await;
}
