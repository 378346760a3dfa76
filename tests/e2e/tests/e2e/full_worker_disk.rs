//! A worker's disk fills up and is freed again: during a pull, and while a container writes.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use warren_testkit::image::{ImageLayer, TestImage};
use warren_testkit::node::{LabNode, NodeOptions};
use warren_testkit::registry::TestRegistry;
use warren_testkit::wait::eventually;

use crate::e2e::cluster::WorkerCluster;
use crate::e2e::fixture::{BOX, SOON};
use crate::e2e::task_document::{self, TaskDocument};

/// Room for the images of a test and for the data of containerd and the agent.
const MEBIBYTES: u64 = 96;
/// Leaves too little space for another image of the same size.
const LARGE: usize = 24 << 20;
const LEFT: u64 = 12 << 20;
const REGISTRY: &str = "10.77.0.3:5000";

fn on_a_small_disk() -> WorkerCluster {
    WorkerCluster::with(1, |_| {
        NodeOptions::default().small_disk(MEBIBYTES).argument("--insecure-registry").argument(REGISTRY)
    })
}

/// Incompressible bytes, the same every time.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(length).collect()
}

/// The number of bytes that the process has written since its start, to files and pipes.
fn written(pid: i32) -> u64 {
    let counters = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
    let line = counters.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap();
    line.parse().unwrap()
}

fn pid(node: &LabNode, task: &TaskDocument) -> i32 {
    task_document::pids(node)[&task.id]
}

#[test]
fn image_pull_resumes_when_disk_has_space() {
    let cluster = on_a_small_disk();
    let (worker, host) = (&cluster.workers[0], cluster.lab.add_host());
    let address: SocketAddr = REGISTRY.parse().unwrap();
    assert_eq!(address.ip(), host.address());
    let registry = TestRegistry::start_at(address, |program| host.command(program));
    let large = ImageLayer::new().file("/large", noise(LARGE), 0o644);
    let image = TestImage::busybox("warren.local/x:1").entrypoint(["sleep"]).arguments(["1000"]).layer(large);
    let reference = registry.push("shop/large", "1", &image.oci_archive());
    cluster.ok(&format!("service create old --image {BOX} --command sleep --arg 1000"));
    let old = cluster.wait_serving("old", 1).remove(0);
    let pid_before = pid(worker, &old);

    worker.disk().fill_until(LEFT);
    let room = || worker.disk().available().unwrap();
    let before = room();
    // The registry has no TLS, which only the worker accepts.
    cluster.ok(&format!("service create large --detach --resolve-image worker --image {reference}"));
    let why = eventually(2 * SOON, "the reason", || {
        let tasks = task_document::of_service(&cluster.manager, "large");
        let reported = tasks.iter().find(|task| task.reason.contains("no space left"));
        reported.cloned().ok_or_else(|| format!("{tasks:#?}"))
    });
    assert_eq!(why.state, "PREPARING", "{why:#?}");
    assert!(why.reason.contains("enlarge the disk"), "{why:#?}");
    // It is retried, and its data does not stay in between. Logs and records take a little space.
    eventually(2 * SOON, "the room that the attempt took", || {
        let room = room();
        if room + (1 << 20) >= before { Ok(()) } else { Err(format!("{room} of {before} bytes")) }
    });
    // Other tasks keep running, and new ones start.
    cluster.ok(&format!("service create new --detach --image {BOX} --command sleep --arg 1000"));
    // An attempt of the pull is disk pressure; the pause between two attempts grows.
    eventually(6 * SOON, "the new task", || task_document::serving(&cluster.manager, "new", 1));
    assert_eq!(pid(worker, &old), pid_before);

    worker.disk().free();
    let large = cluster.wait_serving("large", 1).remove(0);
    assert_eq!((large.id, large.attempt), (why.id, 1), "by itself");
    assert_eq!(pid(worker, &old), pid_before);
}

#[test]
fn short_fill_is_a_condition_within_a_heartbeat() {
    const FILLED: Duration = Duration::from_secs(3);
    const HEARTBEAT: Duration = Duration::from_secs(5);
    let cluster = on_a_small_disk();
    let name = cluster.workers[0].name().to_owned();
    let conditions = || cluster.ok(&format!("node ls --filter name={name} --format {{{{.Conditions}}}}"));
    assert_eq!(conditions().trim(), "");
    cluster.workers[0].disk().fill();
    // Counted from here: on a loaded machine the first fill may take longer.
    let full = Instant::now();
    while full.elapsed() < FILLED {
        cluster.workers[0].disk().fill();
    }
    cluster.workers[0].disk().free();
    // The heartbeat, and twice as long for a loaded machine.
    eventually(3 * HEARTBEAT, "the condition", || {
        let found = conditions();
        if found.contains("the disk of the data directory") { Ok(()) } else { Err(found) }
    });
    eventually(4 * HEARTBEAT + SOON, "its end", || {
        let found = conditions();
        if found.trim().is_empty() { Ok(()) } else { Err(found) }
    });
}

#[test]
fn full_disk_does_not_block_container_and_counts_lost_lines() {
    let cluster = on_a_small_disk();
    let worker = &cluster.workers[0];
    // Some hundred KiB a second, so that the message about the loss is not rotated out at once.
    let script = "i=0; while true; do \
                  for j in 1 2 3 4 5 6 7 8 9 10; do i=$((i+1)); echo line $i; done; usleep 2000; done";
    let words = ["service", "create", "flood", "--image", BOX, "--log-max-size", "4Mi", "--log-files", "3"];
    cluster.warren().run_ok(&[&words[..], &["--command", "sh", "--arg", "-c", "--arg", script]].concat());
    let flood = cluster.wait_serving("flood", 1).remove(0);
    let pid_before = pid(worker, &flood);
    let logs = || cluster.warren().run(&["task", "logs", &flood.id]);
    let number = |line: &str| line.strip_prefix("line ").and_then(|number| number.parse::<u64>().ok());
    let last = || logs().stdout.lines().rev().find_map(number).unwrap_or(0);
    eventually(SOON, "the first lines", || if last() > 10 { Ok(()) } else { Err("few".to_owned()) });

    worker.disk().fill();
    // Its output cannot be stored from now on: it is not blocked by that.
    let (from, much) = (written(pid_before), 200 << 10);
    eventually(SOON, "a container that writes on", || {
        // Space that the agent and containerd free meanwhile is filled, too.
        worker.disk().fill();
        let more = written(pid_before) - from;
        if more > much { Ok(()) } else { Err(format!("{more} bytes")) }
    });
    let while_full = last();

    worker.disk().free();
    eventually(2 * SOON, "new lines", || {
        let last = last();
        if last > while_full + 5000 { Ok(()) } else { Err(format!("{last} after {while_full}")) }
    });
    let output = logs();
    let reported = output.stderr.lines().find(|line| line.contains("could not write to its disk"));
    let reported = reported.unwrap_or_else(|| panic!("no message about the loss: {}", output.stderr));
    let count: u64 =
        reported.split(' ').find_map(|keyword| keyword.parse().ok()).unwrap_or_else(|| panic!("{reported}"));
    // Stored and lost lines are all lines.
    let numbers: Vec<u64> = output.stdout.lines().filter_map(number).collect();
    let missing: u64 = numbers.windows(2).map(|pair| pair[1] - pair[0] - 1).sum();
    let counted: u64 = output
        .stderr
        .lines()
        .filter(|line| line.contains("could not write to its disk"))
        .filter_map(|line| line.split(' ').find_map(|keyword| keyword.parse::<u64>().ok()))
        .sum();
    assert!(count > 0 && missing == counted, "{missing} lines are missing: {}", output.stderr);
    assert_eq!(pid(worker, &flood), pid_before);
    assert_eq!(cluster.wait_serving("flood", 1)[0].attempt, 1);
}
