//! Counts the open files of its process, so that it shares the process with no other test. Needs root,
//! containerd, runc and a static busybox.

#![allow(clippy::unwrap_used)]

#[allow(dead_code, reason = "the suite uses the rest")]
#[path = "suite/world.rs"]
mod world;

use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::time::timeout;
use warren_runtime::{ExecSpec, Runtime};

use crate::world::{RuntimeFixture, end, eventually, run, sleeper};

fn command(words: &[&str]) -> ExecSpec {
    let command = words.iter().map(|&word| word.to_owned()).collect();
    ExecSpec { command, ..ExecSpec::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_leaves_no_open_file() {
    let world = RuntimeFixture::start().await;
    let holds = sleeper("holds");
    run(&world.runtime, &holds).await;
    let echo = async || {
        let mut process = world.runtime.exec(&holds.id, &command(&["echo", "out"])).await.unwrap();
        let mut output = String::new();
        process.stdout.read_to_string(&mut output).await.unwrap();
        assert_eq!((process.handle.wait().await.unwrap(), &*output), (0, "out\n"));
    };
    echo().await;
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let open = descriptors();
    for _ in 0..50 {
        echo().await;
    }
    let sleep = command(&["sleep", "7777"]);
    for millis in 0..10 {
        drop(timeout(Duration::from_millis(millis), world.runtime.exec(&holds.id, &sleep)).await);
    }
    eventually("no file stays open", || async { descriptors() <= open }).await;
    let no_program_runs = || async {
        let commands = std::fs::read_dir("/proc").unwrap().flatten();
        !commands
            .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
            .any(|line| line.starts_with(b"sleep\x007777"))
    };
    eventually("no program stays", no_program_runs).await;
    end(&world.runtime, &holds).await;
    world.assert_clean().await;
}
