//! Counts the open files of its process, so that it shares the process with no other test. Needs root,
//! containerd, runc and a static busybox.

#![allow(clippy::unwrap_used)]

#[allow(dead_code, reason = "the suite uses the rest")]
#[path = "suite/world.rs"]
mod world;

use std::cell::Cell;
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;
use warren_runtime::{ExecSpec, Runtime};
use warren_testkit::soak;

use crate::world::{RuntimeFixture, count_processes, end, eventually, run, sleeper};

fn command(words: &[&str]) -> ExecSpec {
    let command = words.iter().map(|&word| word.to_owned()).collect();
    ExecSpec { command, ..ExecSpec::default() }
}

/// Drops the future after this time, more exactly than timers do.
async fn abandon_after<T>(time: Duration, started: impl Future<Output = T>) {
    let begin = Instant::now();
    let passed = async {
        while begin.elapsed() < time {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = passed => {}
        _ = started => {}
    }
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
    // Those of a program are closed a moment after its end.
    let (open, repeated) = (Cell::new(0), Cell::new(0));
    let is_settled = || async {
        let found = descriptors();
        repeated.set(if open.replace(found) == found { repeated.get() + 1 } else { 0 });
        repeated.get() == 20
    };
    eventually("the number of open files stays the same", is_settled).await;
    let open = open.get();
    for _ in 0..50 {
        echo().await;
    }
    // Of no other run of this test.
    let seconds = (7_000_000 + std::process::id()).to_string();
    let sleep = command(&["sleep", &seconds]);
    let runs = || count_processes(format!("sleep\0{seconds}\0").as_bytes()) > 0;
    let seen = world.runtime.exec(&holds.id, &sleep).await.unwrap();
    eventually("the program runs", || async { runs() }).await;
    drop(seen);
    for micros in (0..300).map(|step| 30 * step).cycle().take(soak::count(300, 10_000)) {
        abandon_after(Duration::from_micros(micros), world.runtime.exec(&holds.id, &sleep)).await;
    }
    eventually("no file stays open", || async { descriptors() <= open }).await;
    eventually("no program stays", || async { !runs() }).await;
    end(&world.runtime, &holds).await;
    world.assert_clean().await;
}
