//! A worker that was removed from its cluster stops what it runs, leaves nothing, and can come back by joining.

use std::time::Duration;

use warren_testkit::leftovers;
use warren_testkit::netns::Lab;
use warren_testkit::node::{Node, Settings};
use warren_testkit::wait::eventually;

use crate::e2e::cluster::Cluster;
use crate::e2e::ending::assert_nothing_is_left;
use crate::e2e::task;
use crate::e2e::world::{BOX, SOON, box_archive};

const WORKER_TOKEN: &[&str] = &["token", "create", "--role", "worker", "--quiet"];
const NOT_FOUND: i32 = 3;
const CONFLICT: i32 = 4;
const UNREACHABLE: i32 = 5;
const DENIED: i32 = 6;
/// Longer than any container here has to end, and than a node needs to hear of its removal.
const CLEARED: Duration = Duration::from_secs(60);

/// Two workers, each with two containers of a service that publishes a port.
#[track_caller]
fn busy(grace: &str) -> Cluster {
    let cluster = Cluster::new(2);
    // Its first process does not ask for SIGTERM, so that it is killed when the grace is over.
    cluster.ok(&format!(
        "service create web --replicas 4 --publish 8088:80 --image {BOX} --command sleep --arg 1000 \
         --stop-grace {grace}"
    ));
    cluster.spread("web", &[("w1", 2), ("w2", 2)]);
    let left = cluster.workers[1].kernel_inventory();
    for kind in ["cgroups", "iptables", "mounts", "processes", "runc states"] {
        assert!(left.count(kind) > 0, "the test would not see {kind}: {:?}", left.counts());
    }
    cluster
}

#[track_caller]
fn worker_token(cluster: &Cluster) -> String {
    cluster.ok("token create --role worker --uses 1 --quiet").trim().to_owned()
}

/// The worker ends by itself, says why, and nothing of it is left.
#[track_caller]
fn assert_cleared(cluster: &Cluster, worker: &mut Node, containers: usize) {
    let status = worker.process().wait(CLEARED);
    let log = worker.process().log_tail(40);
    assert_eq!(status.code(), Some(NOT_FOUND), "{log}");
    for words in [
        "this machine is not a node of its cluster any more",
        "this node was removed from the cluster",
        &format!("its {containers} containers were stopped and removed"),
        "warren worker join",
    ] {
        assert!(log.contains(words), "should say {words:?}: {log}");
    }
    assert_nothing_is_left(worker, cluster.lab.host().netns());
}

/// It is the same node again, without a word of what was, and takes its share.
#[track_caller]
fn assert_joined_anew(cluster: &Cluster, worker: &mut Node, id: &str) {
    worker.wait_ready();
    let nodes = cluster.warren().json(&["node", "ls"]);
    let named: Vec<_> = nodes.as_array().unwrap().iter().filter(|node| node["name"] == "w2").collect();
    assert!(named.len() == 1 && named[0]["id"] == *id, "{nodes}");
    let text = cluster.ok("node inspect w2");
    assert!(!text.contains("network could not be repaired"), "{text}");
    let archive = cluster.manager.scratch().join("box.tar");
    cluster.warren().ok(&["image", "import", archive.to_str().unwrap()]);
    cluster.ok("service scale web=6");
    eventually(2 * SOON, "tasks on the node that came back", || {
        let tasks = task::of_service(&cluster.manager, "web");
        let back = tasks.iter().filter(|task| task.serves() && task.node_name == "w2").count();
        if back > 0 { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
}

#[test]
fn a_removed_worker_stops_what_it_runs_and_can_join_again() {
    let mut cluster = busy("100ms");
    let mut gone = cluster.workers.pop().unwrap();
    let id = gone.id().to_owned();
    cluster.ok("node rm w2 --force");
    assert_cleared(&cluster, &mut gone, 2);
    cluster.spread("web", &[("w1", 4)]);
    // It says so again, and starts nothing for that.
    let data = gone.data_dir().display().to_string();
    let refused = gone.local().refused(&["worker", "run", "--data-dir", &data], NOT_FOUND);
    assert!(refused.contains("is not a node of its cluster any more"), "{refused}");
    assert_eq!(leftovers::processes(gone.scratch()), []);
    gone.join_again(&worker_token(&cluster));
    assert_joined_anew(&cluster, &mut gone, &id);
}

#[test]
fn a_worker_that_leaves_by_force_waits_until_what_it_ran_is_gone() {
    let mut cluster = busy("2s");
    let mut leaving = cluster.workers.pop().unwrap();
    let data = leaving.data_dir().display().to_string();
    let said = leaving.local().ok(&["worker", "leave", "--force", "--data-dir", &data]);
    assert!(said.contains("its 2 containers were stopped and removed"), "{said}");
    let status = leaving.process().wait(SOON);
    assert_eq!(status.code(), Some(NOT_FOUND), "{}", leaving.process().log_tail(20));
    assert_nothing_is_left(&leaving, cluster.lab.host().netns());
    cluster.spread("web", &[("w1", 4)]);
    let refused = leaving.local().refused(&["worker", "run", "--data-dir", &data], NOT_FOUND);
    assert!(refused.contains("holds no worker"), "{refused}");
}

#[test]
fn leaving_stops_what_a_worker_ran_that_does_not_run() {
    let mut cluster = busy("100ms");
    let mut leaving = cluster.workers.pop().unwrap();
    leaving.kill();
    assert_eq!(task::pids(&leaving).len(), 2);
    let data = leaving.data_dir().display().to_string();
    let said = leaving.local().ok(&["worker", "leave", "--force", "--data-dir", &data]);
    assert!(said.contains("its 2 containers were stopped and removed"), "{said}");
    assert_nothing_is_left(&leaving, cluster.lab.host().netns());
}

#[test]
fn a_removed_worker_that_is_killed_half_way_finishes_without_a_manager() {
    let mut cluster = busy("10s");
    let mut gone = cluster.workers.pop().unwrap();
    let note = gone.data_dir().join("worker").join("removed.json");
    cluster.ok("node rm w2 --force");
    eventually(SOON, "the note of the removal", || {
        if note.exists() { Ok(()) } else { Err("there is none".to_owned()) }
    });
    gone.kill();
    assert_eq!(task::pids(&gone).len(), 2, "their grace is not over");
    gone.host().disconnect();
    gone.run_again();
    assert_cleared(&cluster, &mut gone, 2);
}

#[test]
fn a_worker_that_was_removed_while_it_was_down_joins_anew() {
    let mut cluster = busy("100ms");
    let mut gone = cluster.workers.pop().unwrap();
    let id = gone.id().to_owned();
    gone.kill();
    let before = task::pids(&gone);
    cluster.ok("node rm w2 --force");
    cluster.spread("web", &[("w1", 4)]);
    assert_eq!(task::pids(&gone), before, "nobody has told it");
    gone.join_again(&worker_token(&cluster));
    assert_joined_anew(&cluster, &mut gone, &id);
    let running = task::pids(&gone);
    assert!(before.keys().all(|id| !running.contains_key(id)), "{running:?}");
}

#[test]
fn a_worker_keeps_what_it_runs_while_no_manager_can_be_reached() {
    let mut cluster = busy("100ms");
    let mut alone = cluster.workers.pop().unwrap();
    let before = task::pids(&alone);
    alone.host().disconnect();
    cluster.ok("node rm w2 --force");
    // Started anew it knows no more than that nobody answers.
    alone.kill();
    alone.run_again();
    let log = || std::fs::read_to_string(alone.scratch().join("node.log")).unwrap_or_default();
    eventually(SOON, "a try that fails", || {
        let said = log();
        if said.contains("no session") { Ok(()) } else { Err(said) }
    });
    assert_eq!(task::pids(&alone), before);
    alone.host().connect();
    assert_cleared(&cluster, &mut alone, 2);
}

#[test]
fn a_worker_whose_cluster_is_gone_for_good_leaves_it_alone() {
    let mut cluster = busy("100ms");
    let mut last = cluster.workers.pop().unwrap();
    let data = last.data_dir().display().to_string();
    cluster.manager.kill();
    let unreachable = last.local().refused(&["worker", "leave", "--force", "--data-dir", &data], UNREACHABLE);
    assert!(unreachable.contains("--offline"), "{unreachable}");
    let offline = ["worker", "leave", "--offline", "--data-dir", &data];
    let pid = format!("pid {}", last.process().pid());
    let runs = last.local().refused(&offline, CONFLICT);
    assert!(runs.contains(&pid) && runs.contains("stop it"), "{runs}");
    assert!(last.stop().success());
    assert_eq!(task::pids(&last).len(), 2);
    let said = last.local().ok(&offline);
    assert!(said.contains("its 2 containers were stopped and removed"), "{said}");
    assert!(said.contains("node rm"), "{said}");
    assert_nothing_is_left(&last, cluster.lab.host().netns());
    last.local().refused(&offline, NOT_FOUND);
}

/// Manager `m1`, and manager `m2` with two containers of a service, whose tasks run on `m1` once `m2` is gone.
#[track_caller]
fn busy_manager(lab: &Lab, grace: &str) -> (Node, Node) {
    let named = Settings::default().argument("--node-name").argument("m1");
    let first = Node::start(lab.host(), named);
    let second = Node::join_manager(lab.host(), Settings::default(), &first, "m2");
    let archive = first.scratch().join("box.tar");
    box_archive().write(&archive).unwrap();
    first.warren().ok(&["image", "import", archive.to_str().unwrap()]);
    let words = ["service", "create", "web", "--replicas", "4", "--publish", "8088:80", "--image", BOX];
    let command = ["--command", "sleep", "--arg", "1000", "--stop-grace", grace];
    first.warren().ok(&[&words[..], &command[..]].concat());
    eventually(2 * SOON, "two tasks on each", || {
        let tasks = task::serving(&first, "web", 4)?;
        let there = tasks.iter().filter(|task| task.node_name == "m2").count();
        if there == 2 { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
    (first, second)
}

/// As [`assert_cleared`], of a manager.
#[track_caller]
fn assert_manager_cleared(lab: &Lab, manager: &mut Node) {
    let status = manager.process().wait(CLEARED);
    let log = manager.process().log_tail(40);
    assert_eq!(status.code(), Some(NOT_FOUND), "{log}");
    let gone = "this machine is not a manager of its cluster any more";
    for words in [gone, "its 2 containers were stopped and removed", "warren manager join"] {
        assert!(log.contains(words), "should say {words:?}: {log}");
    }
    assert_nothing_is_left(manager, lab.host().netns());
    // It says so again, and starts nothing for that.
    let data = manager.data_dir().display().to_string();
    let refused = manager.local().refused(&["manager", "run", "--data-dir", &data], NOT_FOUND);
    assert!(refused.contains(gone) && refused.contains("its 2 containers were stopped"), "{refused}");
    assert_eq!(leftovers::processes(manager.scratch()), []);
}

#[test]
fn a_removed_manager_stops_what_its_worker_runs_and_can_join_again() {
    let lab = Lab::new();
    let (first, mut gone) = busy_manager(&lab, "100ms");
    first.warren().ok(&["manager", "rm", "m2", "--force"]);
    assert_manager_cleared(&lab, &mut gone);
    eventually(2 * SOON, "all tasks", || task::serving(&first, "web", 4));
    // What is written down of the end of an earlier life clears nothing in this one.
    gone.join_as_manager(&first);
    let archive = first.scratch().join("box.tar");
    // The node may pass for ready from before, as long as it is not down.
    eventually(SOON, "the image on both", || {
        let ran = first.warren().run(&["image", "import", archive.to_str().unwrap()]);
        if ran.code == 0 { Ok(()) } else { Err(ran.to_string()) }
    });
    first.warren().ok(&["service", "scale", "web=8"]);
    eventually(2 * SOON, "all tasks", || task::serving(&first, "web", 8));
    assert!(!task::pids(&gone).is_empty());
}

#[test]
fn what_an_overtaken_manager_runs_goes_on_until_it_joins_again() {
    let lab = Lab::new();
    let (mut first, mut other) = busy_manager(&lab, "100ms");
    let running = task::pids(&other);
    assert_eq!(running.len(), 2);
    // Forced though the other one is well.
    assert!(first.stop().success());
    let data = first.data_dir().display().to_string();
    first.local().ok(&["manager", "init", "--force-new-cluster", "--data-dir", &data]);
    first.run_again();
    let status = other.process().wait(CLEARED);
    let log = other.process().log_tail(40);
    assert_eq!(status.code(), Some(NOT_FOUND), "{log}");
    assert!(log.contains("what runs here runs on") && log.contains("--force-new-cluster"), "{log}");
    assert_eq!(task::pids(&other), running, "whoever forced the wrong one can take that back");
    let data = other.data_dir().display().to_string();
    other.local().refused(&["manager", "run", "--data-dir", &data], NOT_FOUND);
    let (address, token) = (first.api().to_string(), first.warren().ok(WORKER_TOKEN));
    let join = ["manager", "join", &address, "--token", token.trim(), "--data-dir", &data];
    other.local().refused(&join, DENIED);
    other.local().refused(&["manager", "run", "--data-dir", &data], NOT_FOUND);
    assert_eq!(task::pids(&other), running, "it was not let in");
    other.join_as_manager(&first);
    eventually(SOON, "what it ran before to be gone", || {
        let left: Vec<_> =
            task::pids(&other).into_iter().filter(|task| running.get(&task.0) == Some(&task.1)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    eventually(2 * SOON, "all tasks", || task::serving(&first, "web", 4));
}

#[test]
fn a_manager_that_was_removed_while_it_was_down_clears_itself_even_if_it_is_killed_half_way() {
    let lab = Lab::new();
    let (first, mut gone) = busy_manager(&lab, "10s");
    gone.kill();
    let before = task::pids(&gone);
    assert_eq!(before.len(), 2);
    first.warren().ok(&["manager", "rm", "m2", "--force"]);
    let note = gone.data_dir().join("worker").join("removed.json");
    gone.run_again();
    eventually(SOON, "the note of the removal", || {
        if note.exists() { Ok(()) } else { Err("there is none".to_owned()) }
    });
    gone.kill();
    assert_eq!(task::pids(&gone), before, "their grace is not over, and nothing was started");
    gone.host().disconnect();
    gone.run_again();
    assert_manager_cleared(&lab, &mut gone);
}

#[test]
fn a_removed_manager_that_is_to_run_no_tasks_any_more_clears_up_what_it_ran() {
    let lab = Lab::new();
    let (first, mut gone) = busy_manager(&lab, "100ms");
    gone.kill();
    assert_eq!(task::pids(&gone).len(), 2);
    first.warren().ok(&["manager", "rm", "m2", "--force"]);
    let data = gone.data_dir().display().to_string();
    let run = ["manager", "run", "--manager-only", "--data-dir", &data];
    for _ in 0..2 {
        let refused = gone.local().refused(&run, NOT_FOUND);
        assert!(refused.contains("its 2 containers were stopped and removed"), "{refused}");
    }
    assert_nothing_is_left(&gone, lab.host().netns());
}
