//! Containers that write to their own file system: more than their limit, and until the disk is full.

use warren_testkit::node::NodeOptions;
use warren_testkit::wait::eventually;

use crate::e2e::fixture::{NodeFixture, SOON};
use crate::e2e::task_document::{self, TaskDocument};

/// Room for images, containerd, the log of the manager, and what a container writes.
const MEBIBYTES: u64 = 256;
/// What is not freed: logs, records and the log of the manager have grown.
const GROWTH: u64 = 32 << 20;

/// A node with all its data on one disk without quotas, where a container writes on and is ended. One task does
/// nothing.
struct StorageFixture {
    world: NodeFixture,
    calm: TaskDocument,
    /// Process ids of that task, the node and its containerd.
    pids: [i32; 3],
    /// Free bytes before another container runs.
    room: u64,
}

impl StorageFixture {
    #[track_caller]
    fn new() -> StorageFixture {
        let mut world = NodeFixture::bare(NodeOptions::default().small_disk(MEBIBYTES));
        world.create_script("calm", &["--storage-limit", "20M"], "sleep 1000");
        let calm = world.wait_serving("calm", 1).remove(0);
        let pids = pids(&mut world, &calm);
        let room = world.node.disk().available().unwrap();
        StorageFixture { world, calm, pids, room }
    }

    /// Waits until the only task of the service has failed; returns the reason. A full disk may delay an answer.
    #[track_caller]
    fn wait_failed(&self, service: &str) -> String {
        let ended = eventually(3 * SOON, &format!("{service} to fail"), || {
            let ran = self.world.warren().run(&["service", "ps", service, "-o", "json"]);
            let tasks: Vec<TaskDocument> =
                serde_json::from_str(&ran.stdout).map_err(|error| format!("{error}: {ran}"))?;
            match tasks.first() {
                Some(task) if task.state == "FAILED" => Ok(task.clone()),
                _ => Err(format!("{tasks:#?}")),
            }
        });
        assert_eq!(ended.attempt, 1, "{ended:#?}");
        ended.reason
    }

    /// The disk has room again, and nothing else has ended.
    #[track_caller]
    fn assert_only_that_task_ended(&mut self) {
        eventually(2 * SOON, "the room that the container took", || {
            let room = self.world.node.disk().available().unwrap();
            if room + GROWTH >= self.room { Ok(()) } else { Err(format!("{room} of {} bytes", self.room)) }
        });
        assert_eq!(pids(&mut self.world, &self.calm), self.pids);
        assert_eq!(self.world.wait_serving("calm", 1)[0].attempt, 1);
    }
}

#[track_caller]
fn pids(world: &mut NodeFixture, task: &TaskDocument) -> [i32; 3] {
    [task_document::pids(&world.node)[&task.id], world.node.process().pid(), world.containerd().as_raw()]
}

/// Whether processes of the test, and so its nodes, have CAP_SYS_RESOURCE (24), which some build machines take away.
fn may_lower_oom_score() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << 24) != 0
}

#[test]
fn task_beyond_its_storage_limit_fails_alone() {
    let mut fixture = StorageFixture::new();
    let flags = ["--storage-limit", "20M", "--restart", "none"];
    fixture.world.create_script("hog", &flags, "dd if=/dev/zero of=/x bs=1M count=100; sleep 1000");
    let reason = fixture.wait_failed("hog");
    let is_expected =
        reason.starts_with("its writable layer has ") && reason.ends_with(" of 20 MB (--storage-limit)");
    assert!(is_expected, "{reason}");
    fixture.assert_only_that_task_ended();
    let events = fixture.world.ok("events service/hog -o json");
    assert!(events.contains("--storage-limit"), "{events}");
    // When memory is short, containers end before both.
    let score = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    let own = score("self");
    let expected = if own.trim() == "0" && may_lower_oom_score() { "-500" } else { own.trim() };
    for pid in &fixture.pids[1..] {
        assert_eq!(score(&pid.to_string()).trim(), expected);
    }
}

#[test]
fn task_that_fills_the_disk_is_evicted_and_the_node_goes_on() {
    let mut fixture = StorageFixture::new();
    fixture.world.create_script("hog", &["--restart", "none"], "dd if=/dev/zero of=/x bs=1M; sleep 1000");
    let reason = fixture.wait_failed("hog");
    assert!(reason.starts_with("evicted: disk pressure: "), "{reason}");
    fixture.assert_only_that_task_ended();
    // The manager writes its log again, and the node gets tasks when its condition is over.
    fixture.world.create_script("after", &[], "sleep 1000");
    eventually(3 * SOON, "a new task", || task_document::serving(&fixture.world.node, "after", 1));
}
