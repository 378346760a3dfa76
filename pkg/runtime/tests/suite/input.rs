//! Standard input of containers: it outlives its writers, and ends when a client ends it.

use std::fs;
use std::path::{Path, PathBuf};

use tokio::io::AsyncWriteExt;
use warren_runtime::containerd::ContainerdRuntime;
use warren_runtime::{ContainerSpec, Error, Runtime, StandardInput, TerminalSize};

use crate::world::{RuntimeFixture, end, eventually, id, run, sleeper, spec, stopped};

impl RuntimeFixture {
    /// A shell script with an input, and the file with its output.
    fn interactive(&self, name: &str, script: &str) -> (ContainerSpec, PathBuf) {
        let programs = warren_container_programs::ensure_installed(self.containerd.dir()).unwrap();
        let pipe = self.containerd.dir().join(format!("{name} input"));
        let (log, dir) = self.log(name);
        let stdin = Some(StandardInput { pipe, program: programs.init });
        let asked = ContainerSpec { stdin, log, ..spec(name, &["sh", "-c", script]) };
        (asked, dir.join("stdout"))
    }

    async fn write(&self, name: &str, text: &str) {
        let attached = self.runtime.attach(&id(name), true).await.unwrap();
        attached.input.unwrap().write_all(text.as_bytes()).await.unwrap();
    }

    async fn end_input(&self, name: &str) {
        let attached = self.runtime.attach(&id(name), true).await.unwrap();
        drop(attached.input);
        attached.handle.close_input().await.unwrap();
    }

    async fn refused(&self, name: &str) -> String {
        let attached = self.runtime.attach(&id(name), true).await.map(|_| ());
        match attached.unwrap_err() {
            Error::InvalidSpec { field, reason } if field == "stdin" => reason,
            other => panic!("{other}"),
        }
    }
}

fn output(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn input_is_open_for_several_writers_until_one_ends_it() {
    let world = RuntimeFixture::start().await;
    let (mut asked, printed) = world.interactive("main", "cat; echo end; cat /dev/stdin; id -u");
    asked.user = Some("web".into());
    run(&world.runtime, &asked).await;
    for text in ["first\n", "second"] {
        world.write("main", text).await;
        eventually("it is read", || async { output(&printed).ends_with(text) }).await;
    }
    let watched = world.runtime.attach(&asked.id, false).await.unwrap();
    assert!(watched.input.is_none());
    world.end_input("main").await;
    assert_eq!(watched.handle.wait().await.unwrap(), 0);
    // This waits for the logger.
    world.runtime.delete_process(&asked.id).await.unwrap();
    assert_eq!(output(&printed), "first\nsecondend\n33\n");

    // The next process has an input again.
    run(&world.runtime, &asked).await;
    world.write("main", "third").await;
    world.end_input("main").await;
    assert_eq!(stopped(&world.runtime, &asked.id).await.code, 0);
    world.runtime.remove(&asked.id).await.unwrap();
    assert!(output(&printed).ends_with("thirdend\n33\n"), "{}", output(&printed));
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn input_outlives_agent_and_containerd() {
    let world = RuntimeFixture::start().await;
    let (asked, printed) = world.interactive("main", "cat; echo end");
    run(&world.runtime, &asked).await;
    world.write("main", "before\n").await;
    let RuntimeFixture { runtime, containerd } = world;
    drop(runtime);
    containerd.kill_and_wait().await;
    let runtime = ContainerdRuntime::new(containerd.settings()).unwrap();
    let world = RuntimeFixture { runtime, containerd };
    eventually("containerd answers", || async { world.runtime.info().await.is_ok() }).await;
    world.write("main", "after\n").await;
    eventually("it is read", || async { output(&printed) == "before\nafter\n" }).await;
    world.end_input("main").await;
    assert_eq!(stopped(&world.runtime, &asked.id).await.code, 0);
    world.runtime.remove(&asked.id).await.unwrap();
    assert_eq!(output(&printed), "before\nafter\nend\n");
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_or_missing_input_is_refused() {
    let world = RuntimeFixture::start().await;
    let plain = sleeper("plain");
    run(&world.runtime, &plain).await;
    assert_eq!(world.refused("plain").await, "its standard input is not open");
    world.runtime.attach(&plain.id, false).await.map(|_| ()).expect("without input");
    end(&world.runtime, &plain).await;
    let missing = world.runtime.attach(&plain.id, true).await.map(|_| ()).unwrap_err();
    assert!(matches!(missing, Error::NotFound { .. }), "{missing}");

    let (asked, printed) = world.interactive("main", "cat; echo end; exec sleep 100000");
    run(&world.runtime, &asked).await;
    world.end_input("main").await;
    assert_eq!(world.refused("main").await, "its standard input has ended");
    eventually("it has read the end", || async { output(&printed) == "end\n" }).await;
    end(&world.runtime, &asked).await;
    world.assert_clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn terminal_passes_input_on_and_has_no_end_of_input() {
    let world = RuntimeFixture::start().await;
    let script = "busybox stty size; while read line; do busybox stty size; echo got $line; done";
    let (mut asked, printed) = world.interactive("main", script);
    asked.tty = true;
    run(&world.runtime, &asked).await;
    let attached = world.runtime.attach(&asked.id, true).await.unwrap();
    attached.handle.resize(TerminalSize { columns: 90, rows: 20 }).await.unwrap();
    let mut input = attached.input.unwrap();
    input.write_all(b"one\n").await.unwrap();
    eventually("it is read", || async { output(&printed).contains("20 90\r\ngot one\r\n") }).await;
    drop(input);
    attached.handle.close_input().await.unwrap();
    world.write("main", "two\n\x04").await;
    assert_eq!(stopped(&world.runtime, &asked.id).await.code, 0);
    world.runtime.remove(&asked.id).await.unwrap();
    eventually("all is written", || async { output(&printed).contains("got two\r\n") }).await;
    world.assert_clean().await;
}
