//! A worker that was removed from its cluster stops its tasks, leaves no resources, and can join again.

use std::time::Duration;

use warren_testkit::cleanup;
use warren_testkit::netns::NetworkSwitch;
use warren_testkit::node::{LabNode, NodeOptions};
use warren_testkit::wait::eventually;

use crate::e2e::cluster::WorkerCluster;
use crate::e2e::fixture::{BOX, LogSince, SOON, box_archive};
use crate::e2e::node_cleanup::assert_nothing_is_left;
use crate::e2e::task_document;

const WORKER_TOKEN: &[&str] = &["token", "create", "--role", "worker", "--quiet"];
const NOT_FOUND: i32 = 3;
const CONFLICT: i32 = 4;
const UNREACHABLE: i32 = 5;
const DENIED: i32 = 6;
/// Longer than the stop of any container here, plus the time until a node learns of its removal.
const CLEARED: Duration = Duration::from_secs(60);

/// Two workers, each with two containers of a service that publishes a port.
#[track_caller]
fn busy(grace: &str) -> WorkerCluster {
    let cluster = WorkerCluster::new(2);
    // Its first process ignores SIGTERM, so that it is killed after the grace period.
    cluster.ok(&format!(
        "service create web --replicas 4 --publish 8088:80 --image {BOX} --command sleep --arg 1000 \
         --stop-grace {grace}"
    ));
    cluster.wait_spread("web", &[("w1", 2), ("w2", 2)]);
    let left = cluster.workers[1].kernel_inventory();
    for kind in ["cgroups", "iptables", "mounts", "processes", "runc states"] {
        assert!(left.count(kind) > 0, "the test would not see {kind}: {:?}", left.counts());
    }
    cluster
}

#[track_caller]
fn worker_token(cluster: &WorkerCluster) -> String {
    cluster.ok("token create --role worker --uses 1 --quiet").trim().to_owned()
}

/// The worker exits with the reason, and none of its resources is left.
#[track_caller]
fn assert_cleared(cluster: &WorkerCluster, worker: &mut LabNode, containers: usize) {
    let status = worker.process().wait(CLEARED);
    let log = worker.process().log_tail(40);
    assert_eq!(status.code(), Some(NOT_FOUND), "{log}");
    for words in [
        "this node was removed from its cluster",
        "this node was removed from the cluster",
        &format!("its {containers} containers were stopped and removed"),
        "warren worker join",
    ] {
        assert!(log.contains(words), "the log must contain {words:?}: {log}");
    }
    assert_nothing_is_left(worker, cluster.lab.add_host().netns());
}

/// It is the same node again, without earlier state, and gets its share of tasks.
#[track_caller]
fn assert_rejoined(cluster: &WorkerCluster, worker: &mut LabNode, id: &str) {
    worker.wait_ready();
    let nodes = cluster.warren().json(&["node", "ls"]);
    let named: Vec<_> = nodes.as_array().unwrap().iter().filter(|node| node["name"] == "w2").collect();
    assert!(named.len() == 1 && named[0]["id"] == *id, "{nodes}");
    let text = cluster.ok("node inspect w2");
    assert!(!text.contains("network could not be repaired"), "{text}");
    let archive = cluster.manager.scratch().join("box.tar");
    cluster.warren().run_ok(&["image", "import", archive.to_str().unwrap()]);
    cluster.ok("service scale web=6");
    eventually(2 * SOON, "tasks on the node that came back", || {
        let tasks = task_document::of_service(&cluster.manager, "web");
        let back = tasks.iter().filter(|task| task.is_serving() && task.node_name == "w2").count();
        if back > 0 { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
}

#[test]
fn removed_worker_stops_its_tasks_and_can_rejoin() {
    let mut cluster = busy("100ms");
    let mut removed = cluster.workers.pop().unwrap();
    let id = removed.id().to_owned();
    cluster.ok("node rm w2 --force");
    assert_cleared(&cluster, &mut removed, 2);
    cluster.wait_spread("web", &[("w1", 4)]);
    // It prints the reason again, and starts nothing for that.
    let data = removed.data_dir().display().to_string();
    let refused = removed.local().run_refused(&["worker", "run", "--data-dir", &data], NOT_FOUND);
    assert!(refused.contains("this node was removed from its cluster"), "{refused}");
    assert_eq!(cleanup::processes(removed.scratch()), []);
    removed.join_again(&worker_token(&cluster));
    assert_rejoined(&cluster, &mut removed, &id);
}

#[test]
fn forced_leave_waits_for_containers_to_stop_also_without_an_agent() {
    let mut cluster = busy("2s");
    let mut leaving = cluster.workers.pop().unwrap();
    let data = leaving.data_dir().display().to_string();
    let output = leaving.local().run_ok(&["worker", "leave", "--force", "--data-dir", &data]);
    assert!(output.contains("its 2 containers were stopped and removed"), "{output}");
    let status = leaving.process().wait(SOON);
    assert_eq!(status.code(), Some(NOT_FOUND), "{}", leaving.process().log_tail(20));
    assert_nothing_is_left(&leaving, cluster.lab.add_host().netns());
    cluster.wait_spread("web", &[("w1", 4)]);
    let refused = leaving.local().run_refused(&["worker", "run", "--data-dir", &data], NOT_FOUND);
    assert!(refused.contains("has no worker"), "{refused}");

    // The other one is stopped when it leaves.
    let mut leaving = cluster.workers.pop().unwrap();
    leaving.kill();
    assert_eq!(task_document::pids(&leaving).len(), 4);
    let data = leaving.data_dir().display().to_string();
    let output = leaving.local().run_ok(&["worker", "leave", "--force", "--data-dir", &data]);
    assert!(output.contains("its 4 containers were stopped and removed"), "{output}");
    assert_nothing_is_left(&leaving, cluster.lab.add_host().netns());
}

#[test]
fn killed_removal_finishes_without_a_manager() {
    let mut cluster = busy("6s");
    let mut removed = cluster.workers.pop().unwrap();
    let note = removed.data_dir().join("worker").join("removed.json");
    cluster.ok("node rm w2 --force");
    eventually(SOON, "the note of the removal", || {
        if note.exists() { Ok(()) } else { Err("there is none".to_owned()) }
    });
    removed.kill();
    assert_eq!(task_document::pids(&removed).len(), 2, "their grace period is not over");
    removed.host().disconnect();
    removed.run_again();
    assert_cleared(&cluster, &mut removed, 2);
}

#[test]
fn worker_removed_while_down_rejoins() {
    let mut cluster = busy("100ms");
    let mut removed = cluster.workers.pop().unwrap();
    let id = removed.id().to_owned();
    removed.kill();
    let before = task_document::pids(&removed);
    cluster.ok("node rm w2 --force");
    cluster.wait_spread("web", &[("w1", 4)]);
    assert_eq!(task_document::pids(&removed), before, "it does not know of its removal");
    removed.join_again(&worker_token(&cluster));
    assert_rejoined(&cluster, &mut removed, &id);
    let running = task_document::pids(&removed);
    assert!(before.keys().all(|id| !running.contains_key(id)), "{running:?}");
}

#[test]
fn worker_keeps_tasks_without_managers() {
    let mut cluster = busy("100ms");
    let mut alone = cluster.workers.pop().unwrap();
    let before = task_document::pids(&alone);
    alone.host().disconnect();
    cluster.ok("node rm w2 --force");
    // After a restart it still gets no answer.
    alone.kill();
    let log = LogSince::of(&alone);
    alone.run_again();
    eventually(SOON, "a try that fails", || {
        let output = log.text();
        if output.contains("no session") { Ok(()) } else { Err(output) }
    });
    assert_eq!(task_document::pids(&alone), before);
    alone.host().connect();
    assert_cleared(&cluster, &mut alone, 2);
}

#[test]
fn offline_leave_needs_no_manager() {
    let mut cluster = busy("100ms");
    let mut last = cluster.workers.pop().unwrap();
    let data = last.data_dir().display().to_string();
    cluster.manager.kill();
    let unreachable =
        last.local().run_refused(&["worker", "leave", "--force", "--data-dir", &data], UNREACHABLE);
    assert!(unreachable.contains("--offline"), "{unreachable}");
    let offline = ["worker", "leave", "--offline", "--data-dir", &data];
    let pid = format!("pid {}", last.process().pid());
    let runs = last.local().run_refused(&offline, CONFLICT);
    assert!(runs.contains(&pid) && runs.contains("stop it"), "{runs}");
    assert!(last.stop().success());
    assert_eq!(task_document::pids(&last).len(), 2);
    let output = last.local().run_ok(&offline);
    assert!(output.contains("its 2 containers were stopped and removed"), "{output}");
    assert!(output.contains("node rm"), "{output}");
    assert_nothing_is_left(&last, cluster.lab.add_host().netns());
    last.local().run_refused(&offline, NOT_FOUND);
}

/// Manager `m1`, and manager `m2` with two containers of a service, whose tasks run on `m1` once `m2` is gone.
#[track_caller]
fn busy_manager(lab: &NetworkSwitch, grace: &str) -> (LabNode, LabNode) {
    let named = NodeOptions::default().argument("--node-name").argument("m1");
    let first = LabNode::start(lab.add_host(), named);
    let second = LabNode::join_manager(lab.add_host(), NodeOptions::default(), &first, "m2");
    let archive = first.scratch().join("box.tar");
    box_archive().write(&archive).unwrap();
    first.warren().run_ok(&["image", "import", archive.to_str().unwrap()]);
    let words = ["service", "create", "web", "--replicas", "4", "--publish", "8088:80", "--image", BOX];
    let command = ["--command", "sleep", "--arg", "1000", "--stop-grace", grace];
    first.warren().run_ok(&[&words[..], &command[..]].concat());
    eventually(2 * SOON, "two tasks on each", || {
        let tasks = task_document::serving(&first, "web", 4)?;
        let there = tasks.iter().filter(|task| task.node_name == "m2").count();
        if there == 2 { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
    (first, second)
}

/// As [`assert_cleared`], for a manager.
#[track_caller]
fn assert_manager_cleared(lab: &NetworkSwitch, manager: &mut LabNode) {
    let status = manager.process().wait(CLEARED);
    let log = manager.process().log_tail(40);
    assert_eq!(status.code(), Some(NOT_FOUND), "{log}");
    let removed = "this machine is not a manager of its cluster any more";
    for words in [removed, "its 2 containers were stopped and removed", "warren manager join"] {
        assert!(log.contains(words), "the log must contain {words:?}: {log}");
    }
    assert_nothing_is_left(manager, lab.add_host().netns());
    // It prints the reason again, and starts nothing for that.
    let data = manager.data_dir().display().to_string();
    let refused = manager.local().run_refused(&["manager", "run", "--data-dir", &data], NOT_FOUND);
    assert!(refused.contains(removed) && refused.contains("its 2 containers were stopped"), "{refused}");
    assert_eq!(cleanup::processes(manager.scratch()), []);
}

#[test]
fn removed_manager_stops_its_tasks_and_can_rejoin() {
    let lab = NetworkSwitch::new();
    let (first, mut removed) = busy_manager(&lab, "100ms");
    first.warren().run_ok(&["manager", "rm", "m2", "--force"]);
    assert_manager_cleared(&lab, &mut removed);
    eventually(2 * SOON, "all tasks", || task_document::serving(&first, "web", 4));
    // The record of the end of an earlier incarnation has no effect in this one.
    removed.rejoin_as_manager(&first);
    let archive = first.scratch().join("box.tar");
    // The node may still be listed as ready, as long as it is not DOWN.
    eventually(SOON, "the image on both", || {
        let ran = first.warren().run(&["image", "import", archive.to_str().unwrap()]);
        if ran.code == 0 { Ok(()) } else { Err(ran.to_string()) }
    });
    first.warren().run_ok(&["service", "scale", "web=8"]);
    eventually(2 * SOON, "all tasks", || task_document::serving(&first, "web", 8));
    assert!(!task_document::pids(&removed).is_empty());
}

#[test]
fn superseded_manager_keeps_tasks_until_rejoin() {
    let lab = NetworkSwitch::new();
    let (mut first, mut other) = busy_manager(&lab, "100ms");
    let running = task_document::pids(&other);
    assert_eq!(running.len(), 2);
    // Forced although the other one works.
    assert!(first.stop().success());
    let data = first.data_dir().display().to_string();
    first.local().run_ok(&["manager", "init", "--force-new-cluster", "--data-dir", &data]);
    first.run_again();
    let status = other.process().wait(CLEARED);
    let log = other.process().log_tail(40);
    assert_eq!(status.code(), Some(NOT_FOUND), "{log}");
    assert!(
        log.contains("tasks on this machine keep running") && log.contains("--force-new-cluster"),
        "{log}"
    );
    assert_eq!(task_document::pids(&other), running, "a forced wrong manager can be reverted");
    let data = other.data_dir().display().to_string();
    other.local().run_refused(&["manager", "run", "--data-dir", &data], NOT_FOUND);
    let (address, token) = (first.api().to_string(), first.warren().run_ok(WORKER_TOKEN));
    let join = ["manager", "join", &address, "--token", token.trim(), "--data-dir", &data];
    other.local().run_refused(&join, DENIED);
    other.local().run_refused(&["manager", "run", "--data-dir", &data], NOT_FOUND);
    assert_eq!(task_document::pids(&other), running, "it was not let in");
    other.rejoin_as_manager(&first);
    eventually(SOON, "what it ran before to be gone", || {
        let left: Vec<_> = task_document::pids(&other)
            .into_iter()
            .filter(|task| running.get(&task.0) == Some(&task.1))
            .collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    eventually(2 * SOON, "all tasks", || task_document::serving(&first, "web", 4));
}

#[test]
fn manager_removed_while_down_cleans_up_after_kill() {
    let lab = NetworkSwitch::new();
    let (first, mut removed) = busy_manager(&lab, "6s");
    removed.kill();
    let before = task_document::pids(&removed);
    assert_eq!(before.len(), 2);
    first.warren().run_ok(&["manager", "rm", "m2", "--force"]);
    let note = removed.data_dir().join("worker").join("removed.json");
    removed.run_again();
    eventually(SOON, "the note of the removal", || {
        if note.exists() { Ok(()) } else { Err("there is none".to_owned()) }
    });
    removed.kill();
    assert_eq!(
        task_document::pids(&removed),
        before,
        "their grace period is not over, and nothing was started"
    );
    removed.host().disconnect();
    removed.run_again();
    assert_manager_cleared(&lab, &mut removed);
}

#[test]
fn removed_manager_only_node_cleans_up_its_tasks() {
    let lab = NetworkSwitch::new();
    let (first, mut removed) = busy_manager(&lab, "100ms");
    removed.kill();
    assert_eq!(task_document::pids(&removed).len(), 2);
    first.warren().run_ok(&["manager", "rm", "m2", "--force"]);
    let data = removed.data_dir().display().to_string();
    let run = ["manager", "run", "--manager-only", "--data-dir", &data];
    for _ in 0..2 {
        let refused = removed.local().run_refused(&run, NOT_FOUND);
        assert!(refused.contains("its 2 containers were stopped and removed"), "{refused}");
    }
    assert_nothing_is_left(&removed, lab.add_host().netns());
}
