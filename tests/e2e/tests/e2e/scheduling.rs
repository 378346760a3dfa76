//! Three workers and a manager: placement of tasks, and replacement when a worker is drained, paused or lost.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use warren_testkit::node::NodeOptions;
use warren_testkit::wait::eventually;

use crate::e2e::cluster::WorkerCluster;
use crate::e2e::fixture::{BOX, SOON};
use crate::e2e::task_document;

/// The exit code for a state that does not allow the change.
const CONFLICT: i32 = 4;
/// The command of the containers: one process that ends on its stop signal.
const SLEEP: &str = "--command sh --arg -c --arg trap\u{a0}exit\u{a0}TERM;sleep\u{a0}1000\u{a0}&\u{a0}wait";

/// A command line; a no-break space stands for a blank within an argument.
#[track_caller]
fn run(cluster: &WorkerCluster, line: &str) -> String {
    let line = format!("{line} --image {BOX} {SLEEP}");
    let words: Vec<String> = line.split(' ').map(|keyword| keyword.replace('\u{a0}', " ")).collect();
    cluster.warren().run_ok(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

fn zoned() -> WorkerCluster {
    // w1 and w2 are in zone a, w3 in b.
    let cluster = WorkerCluster::new(3);
    for (name, zone) in [("w1", "a"), ("w2", "a"), ("w3", "b")] {
        cluster.ok(&format!("node update {name} --label-add zone={zone}"));
    }
    cluster
}

#[test]
fn constraints_place_tasks_and_changes_move_them() {
    let cluster = zoned();
    run(&cluster, "service create here --replicas 4 --constraint node.labels.zone==a");
    cluster.wait_spread("here", &[("w1", 2), ("w2", 2)]);
    run(&cluster, "service create there --constraint node.labels.zone\u{a0}notin\u{a0}(a)");
    cluster.wait_spread("there", &[("w3", 1)]);
    run(&cluster, "service create spread --replicas 4 --prefer spread=node.labels.zone");
    cluster.wait_spread("spread", &[("w1", 1), ("w2", 1), ("w3", 2)]);
    run(
        &cluster,
        "service create named --constraint node.name!=w1 --constraint node.role==worker --replicas 2",
    );
    cluster.wait_spread("named", &[("w2", 1), ("w3", 1)]);
    run(&cluster, "service create nowhere --detach --constraint node.labels.ssd\u{a0}exists");
    eventually(SOON, "the reason", || {
        let tasks = task_document::of_service(&cluster.manager, "nowhere");
        let reason = tasks.first().map(|task| task.reason.clone()).unwrap_or_default();
        let expected = "0 of 3 nodes fit: 3 ";
        if reason.starts_with(expected) && reason.contains("node.labels.ssd") { Ok(()) } else { Err(reason) }
    });
    // A label set by an administrator is enough.
    cluster.ok("node update w2 --label-add ssd=yes");
    cluster.wait_spread("nowhere", &[("w2", 1)]);
    cluster.ok("node update w1 --label-add zone=b");
    cluster.wait_spread("here", &[("w2", 4)]);
    cluster.ok("service update here --constraint-rm node.labels.zone==a --constraint-add node.name==w1");
    cluster.wait_spread("here", &[("w1", 4)]);
}

#[test]
fn taints_keep_tasks_away_and_move_them() {
    let cluster = WorkerCluster::with(3, |number| match number {
        3 => NodeOptions::default().argument("--taint").argument("gpu=a:NoSchedule"),
        _ => NodeOptions::default(),
    });
    run(&cluster, "service create web --replicas 4");
    cluster.wait_spread("web", &[("w1", 2), ("w2", 2)]);
    run(&cluster, "service create render --replicas 3 --toleration gpu=a");
    cluster.wait_spread("render", &[("w1", 1), ("w2", 1), ("w3", 1)]);
    run(&cluster, "service create agent --mode global");
    cluster.wait_spread("agent", &[("w1", 1), ("w2", 1)]);
    cluster.ok("node update w1 --taint-add bad:NoExecute");
    cluster.wait_spread("web", &[("w2", 4)]);
    cluster.wait_spread("agent", &[("w2", 1)]);
    cluster.ok("node update w3 --taint-rm gpu");
    cluster.wait_spread("agent", &[("w2", 1), ("w3", 1)]);
    cluster.ok("node update w1 --taint-rm bad --taint-add old:PreferNoSchedule");
    cluster.wait_spread("agent", &[("w1", 1), ("w2", 1), ("w3", 1)]);
}

#[test]
fn max_per_node_is_kept() {
    let cluster = WorkerCluster::new(3);
    run(&cluster, "service create few --detach --replicas 7 --max-per-node 2");
    eventually(SOON, "six of seven", || {
        let tasks = task_document::of_service(&cluster.manager, "few");
        let (serving, waiting): (Vec<_>, Vec<_>) = tasks.iter().partition(|task| task.is_serving());
        let is_right =
            serving.len() == 6 && waiting.len() == 1 && waiting[0].reason.contains("0 of 3 nodes fit");
        if is_right { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
    // An update needs no third task on a node.
    cluster.ok("service scale few=6");
    cluster.ok("service update few --env-add A=b");
    cluster.wait_spread("few", &[("w1", 2), ("w2", 2), ("w3", 2)]);
}

#[test]
fn a_global_service_runs_once_on_every_node_that_may_run_it() {
    let mut cluster = zoned();
    run(&cluster, "service create agent --mode global");
    cluster.wait_spread("agent", &[("w1", 1), ("w2", 1), ("w3", 1)]);
    cluster.ok("node update w1 --availability drain");
    cluster.wait_spread("agent", &[("w2", 1), ("w3", 1)]);
    cluster.ok("node update w1 --availability active");
    cluster.wait_spread("agent", &[("w1", 1), ("w2", 1), ("w3", 1)]);
    cluster.ok("service update agent --constraint-add node.labels.zone==b");
    cluster.wait_spread("agent", &[("w3", 1)]);
    cluster.ok("node update w2 --label-add zone=b");
    cluster.wait_spread("agent", &[("w2", 1), ("w3", 1)]);
    // A node that joins later gets its task, too, but not by the labels that it reports of itself.
    let settings = NodeOptions::default().argument("--label").argument("zone=b");
    let node = warren_testkit::node::LabNode::join(cluster.lab.add_host(), settings, &cluster.manager, "w4");
    cluster.workers.push(node);
    cluster.import("box.tar", crate::e2e::fixture::box_archive());
    run(&cluster, "service create reported --constraint engine.labels.zone==b");
    cluster.wait_spread("reported", &[("w4", 1)]);
    cluster.wait_spread("agent", &[("w2", 1), ("w3", 1)]);
    cluster.ok("node update w4 --label-add zone=b");
    cluster.wait_spread("agent", &[("w2", 1), ("w3", 1), ("w4", 1)]);
}

#[test]
fn drained_tasks_stop_after_replacements_serve() {
    let cluster = WorkerCluster::new(3);
    run(&cluster, "service create web --replicas 6");
    cluster.wait_spread("web", &[("w1", 2), ("w2", 2), ("w3", 2)]);
    let slots = || {
        let tasks = task_document::of_service(&cluster.manager, "web");
        tasks.iter().filter(|task| task.is_serving()).map(|task| task.slot).collect::<BTreeSet<_>>()
    };
    cluster.ok("node update w1 --availability drain --detach");
    let begin = Instant::now();
    loop {
        assert_eq!(slots().len(), 6, "a slot was empty while its node was drained");
        let left = task_document::of_service(&cluster.manager, "web");
        let left = left.iter().filter(|task| task.node_name == "w1" && task.is_live()).count();
        if left == 0 {
            break;
        }
        assert!(begin.elapsed() < 2 * SOON, "{left} tasks are still on w1");
    }
    cluster.wait_spread("web", &[("w2", 3), ("w3", 3)]);
    // Paused: existing tasks stay, no new ones come.
    cluster.ok("node update w2 --availability pause");
    cluster.ok("service scale web=8");
    cluster.wait_spread("web", &[("w2", 3), ("w3", 5)]);
    cluster.ok("node update w1 --availability active");
    // More than the cluster's limit are only accepted with --yes.
    cluster.ok("cluster update --max-replicas-per-service 8");
    let refused = cluster.warren().run_refused(&["service", "scale", "web=9"], CONFLICT);
    for text in ["9 replicas are more than 8, the cluster's limit per service", "confirm it with --yes"] {
        assert!(refused.contains(text), "{refused}");
    }
    cluster.ok("service scale web=9 --yes");
    cluster.wait_spread("web", &[("w1", 1), ("w2", 3), ("w3", 5)]);
}

#[test]
fn lost_worker_is_replaced_and_reused_when_back() {
    let mut cluster = WorkerCluster::new(3);
    run(&cluster, "service create web --replicas 3");
    cluster.wait_spread("web", &[("w1", 1), ("w2", 1), ("w3", 1)]);
    let begin = Instant::now();
    cluster.workers[2].host().disconnect();
    cluster.workers[2].kill();
    eventually(2 * SOON, "all three elsewhere", || {
        let tasks = task_document::of_service(&cluster.manager, "web");
        let elsewhere = tasks.iter().filter(|task| task.is_serving() && task.node_name != "w3").count();
        if elsewhere == 3 { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
    println!("replaced {:.1} s after the worker was lost", begin.elapsed().as_secs_f64());
    assert!(
        begin.elapsed() < Duration::from_secs(45),
        "a lost node's tasks came back after {:?}",
        begin.elapsed()
    );
    cluster.workers[2].host().connect();
    cluster.workers[2].run_again();
    cluster.workers[2].wait_ready();
    // Its old tasks are stopped, and it gets its share of new ones.
    cluster.wait_serving("web", 3);
    cluster.ok("service scale web=5");
    eventually(SOON, "a task on w3", || {
        let tasks = task_document::of_service(&cluster.manager, "web");
        let back = tasks.iter().any(|task| task.is_serving() && task.node_name == "w3");
        if back { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
    let ids: BTreeSet<String> = cluster.wait_serving("web", 5).into_iter().map(|task| task.id).collect();
    eventually(SOON, "no container of a lost task", || {
        let running: BTreeSet<String> = cluster.pids().into_keys().collect();
        if running == ids { Ok(()) } else { Err(format!("{running:?} instead of {ids:?}")) }
    });
}
