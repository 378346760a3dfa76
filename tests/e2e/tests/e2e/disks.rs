//! A worker's disk is full and is freed again, as a person sees it: while an image comes, and while a container writes.

use std::net::SocketAddr;

use warren_testkit::image::{Image, Layer};
use warren_testkit::node::{Node, Settings};
use warren_testkit::registry::Registry;
use warren_testkit::wait::eventually;

use crate::e2e::cluster::Cluster;
use crate::e2e::task::{self, Task};
use crate::e2e::world::{BOX, SOON};

/// Room for the images of a test and for what containerd and the agent keep.
const MEBIBYTES: u64 = 96;
/// What is left of it is not enough for an image of as much again.
const LARGE: usize = 24 << 20;
const LEFT: u64 = 12 << 20;
const REGISTRY: &str = "10.77.0.3:5000";

fn on_a_small_disk() -> Cluster {
    Cluster::with(1, |_| {
        Settings::default().small_disk(MEBIBYTES).argument("--insecure-registry").argument(REGISTRY)
    })
}

/// Bytes that no compression makes fewer, the same every time.
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

/// What the process has written since it started, to files and pipes.
fn written(pid: i32) -> u64 {
    let counters = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
    let line = counters.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap();
    line.parse().unwrap()
}

fn pid(node: &Node, task: &Task) -> i32 {
    task::pids(node)[&task.id]
}

#[test]
fn an_image_without_room_is_told_and_comes_once_there_is_room() {
    let cluster = on_a_small_disk();
    let (worker, host) = (&cluster.workers[0], cluster.lab.host());
    let address: SocketAddr = REGISTRY.parse().unwrap();
    assert_eq!(address.ip(), host.address());
    let registry = Registry::start_at(address, |program| host.command(program));
    let large = Layer::new().file("/large", noise(LARGE), 0o644);
    let image = Image::busybox("warren.local/x:1").entrypoint(["sleep"]).arguments(["1000"]).layer(large);
    let reference = registry.push("shop/large", "1", &image.oci_archive());
    cluster.ok(&format!("service create old --image {BOX} --command sleep --arg 1000"));
    let old = cluster.serving("old", 1).remove(0);
    let pid_before = pid(worker, &old);

    worker.disk().fill_until(LEFT);
    let room = || worker.disk().room().unwrap();
    let before = room();
    cluster.ok(&format!("service create large --detach --image {reference}"));
    let why = eventually(2 * SOON, "the reason", || {
        let tasks = task::of_service(&cluster.manager, "large");
        let told = tasks.iter().find(|task| task.reason.contains("no room on the disk"));
        told.cloned().ok_or_else(|| format!("{tasks:#?}"))
    });
    assert_eq!(why.state, "PREPARING", "{why:#?}");
    assert!(why.reason.contains("enlarge the disk"), "{why:#?}");
    // It is tried again and again, and in between nothing of it stays. Logs and records take a little.
    eventually(2 * SOON, "the room that the attempt took", || {
        let room = room();
        if room + (1 << 20) >= before { Ok(()) } else { Err(format!("{room} of {before} bytes")) }
    });
    // Others go on, and begin.
    cluster.ok(&format!("service create new --detach --image {BOX} --command sleep --arg 1000"));
    cluster.serving("new", 1);
    assert_eq!(pid(worker, &old), pid_before);

    worker.disk().free();
    let large = cluster.serving("large", 1).remove(0);
    assert_eq!((large.id, large.attempt), (why.id, 1), "by itself");
    assert_eq!(pid(worker, &old), pid_before);
}

#[test]
fn a_container_writes_on_when_the_disk_is_full_and_the_loss_is_counted() {
    let cluster = on_a_small_disk();
    let worker = &cluster.workers[0];
    // Some hundred KiB a second, so that what is told about the loss is not removed for newer lines at once.
    let script = "i=0; while true; do \
                  for j in 1 2 3 4 5 6 7 8 9 10; do i=$((i+1)); echo line $i; done; usleep 2000; done";
    let words = ["service", "create", "flood", "--image", BOX, "--log-max-size", "4Mi", "--log-files", "3"];
    cluster.warren().ok(&[&words[..], &["--command", "sh", "--arg", "-c", "--arg", script]].concat());
    let flood = cluster.serving("flood", 1).remove(0);
    let pid_before = pid(worker, &flood);
    let logs = || cluster.warren().run(&["task", "logs", &flood.id]);
    let number = |line: &str| line.strip_prefix("line ").and_then(|number| number.parse::<u64>().ok());
    let last = || logs().stdout.lines().rev().find_map(number).unwrap_or(0);
    eventually(SOON, "the first lines", || if last() > 10 { Ok(()) } else { Err("few".to_owned()) });

    worker.disk().fill();
    // What it writes from now on nobody can keep: it is not held up by that.
    let (from, much) = (written(pid_before), 200 << 10);
    eventually(SOON, "a container that writes on", || {
        // What the agent and containerd free meanwhile is taken, too.
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
    let said = logs();
    let told = said.stderr.lines().find(|line| line.contains("could not write to its disk"));
    let told = told.unwrap_or_else(|| panic!("no word about the loss: {}", said.stderr));
    let count: u64 = told.split(' ').find_map(|word| word.parse().ok()).unwrap_or_else(|| panic!("{told}"));
    // What is there and what was counted is everything.
    let numbers: Vec<u64> = said.stdout.lines().filter_map(number).collect();
    let missing: u64 = numbers.windows(2).map(|pair| pair[1] - pair[0] - 1).sum();
    let counted: u64 = said
        .stderr
        .lines()
        .filter(|line| line.contains("could not write to its disk"))
        .filter_map(|line| line.split(' ').find_map(|word| word.parse::<u64>().ok()))
        .sum();
    assert!(count > 0 && missing == counted, "{missing} lines are missing: {}", said.stderr);
    assert_eq!(pid(worker, &flood), pid_before);
    assert_eq!(cluster.serving("flood", 1)[0].attempt, 1);
}
