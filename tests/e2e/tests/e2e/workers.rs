//! Three workers and a manager: where tasks go, and where they go when a worker is drained, paused or lost.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use warren_testkit::node::Settings;
use warren_testkit::wait::eventually;

use crate::e2e::cluster::Cluster;
use crate::e2e::task;
use crate::e2e::world::{BOX, SOON};

/// What the containers run: one process that ends when asked.
const SLEEP: &str = "--command sh --arg -c --arg trap\u{a0}exit\u{a0}TERM;sleep\u{a0}1000\u{a0}&\u{a0}wait";

/// A line of arguments; a no-break space stands for a blank within a word.
#[track_caller]
fn run(cluster: &Cluster, line: &str) -> String {
    let line = format!("{line} --image {BOX} {SLEEP}");
    let words: Vec<String> = line.split(' ').map(|word| word.replace('\u{a0}', " ")).collect();
    cluster.warren().ok(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

fn zoned() -> Cluster {
    // w1 and w2 are in zone a, w3 in b.
    Cluster::with(3, |number| {
        let zone = if number < 3 { "zone=a" } else { "zone=b" };
        Settings::default().argument("--label").argument(zone)
    })
}

#[test]
fn constraints_choose_the_nodes_and_changing_them_moves_the_tasks() {
    let cluster = zoned();
    run(&cluster, "service create here --replicas 4 --constraint node.labels.zone==a");
    cluster.spread("here", &[("w1", 2), ("w2", 2)]);
    run(&cluster, "service create there --constraint node.labels.zone\u{a0}notin\u{a0}(a)");
    cluster.spread("there", &[("w3", 1)]);
    run(
        &cluster,
        "service create named --constraint node.name!=w1 --constraint node.role==worker --replicas 2",
    );
    cluster.spread("named", &[("w2", 1), ("w3", 1)]);
    run(&cluster, "service create nowhere --detach --constraint node.labels.ssd\u{a0}exists");
    eventually(SOON, "the reason", || {
        let tasks = task::of_service(&cluster.manager, "nowhere");
        let reason = tasks.first().map(|task| task.reason.clone()).unwrap_or_default();
        let wanted = "0 of 3 nodes fit: 3 ";
        if reason.starts_with(wanted) && reason.contains("node.labels.ssd") { Ok(()) } else { Err(reason) }
    });
    // A label that people give is enough, and their word wins over the agent's.
    cluster.ok("node update w2 --label-add ssd=yes");
    cluster.spread("nowhere", &[("w2", 1)]);
    cluster.ok("node update w1 --label-add zone=b");
    cluster.spread("here", &[("w2", 4)]);
    cluster.ok("node update w1 --label-rm zone");
    cluster.ok("service update here --constraint-rm node.labels.zone==a --constraint-add node.name==w1");
    cluster.spread("here", &[("w1", 4)]);
}

#[test]
fn at_most_so_many_per_node() {
    let cluster = Cluster::new(3);
    run(&cluster, "service create few --detach --replicas 7 --max-per-node 2");
    eventually(SOON, "six of seven", || {
        let tasks = task::of_service(&cluster.manager, "few");
        let (serving, waiting): (Vec<_>, Vec<_>) = tasks.iter().partition(|task| task.serves());
        let is_right =
            serving.len() == 6 && waiting.len() == 1 && waiting[0].reason.contains("0 of 3 nodes fit");
        if is_right { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
    // An update needs no third place on a node.
    cluster.ok("service scale few=6");
    cluster.ok("service update few --env-add A=b");
    cluster.spread("few", &[("w1", 2), ("w2", 2), ("w3", 2)]);
}

#[test]
fn a_global_service_runs_once_on_every_node_that_may_run_it() {
    let mut cluster = zoned();
    run(&cluster, "service create agent --mode global");
    cluster.spread("agent", &[("w1", 1), ("w2", 1), ("w3", 1)]);
    cluster.ok("node update w1 --availability drain");
    cluster.spread("agent", &[("w2", 1), ("w3", 1)]);
    cluster.ok("node update w1 --availability active");
    cluster.spread("agent", &[("w1", 1), ("w2", 1), ("w3", 1)]);
    cluster.ok("service update agent --constraint-add node.labels.zone==b");
    cluster.spread("agent", &[("w3", 1)]);
    cluster.ok("node update w2 --label-add zone=b");
    cluster.spread("agent", &[("w2", 1), ("w3", 1)]);
    // A node that comes later gets its task, too.
    let settings = Settings::default().argument("--label").argument("zone=b");
    let node = warren_testkit::node::Node::join(cluster.lab.host(), settings, &cluster.manager, "w4");
    cluster.workers.push(node);
    cluster.import("box.tar", crate::e2e::world::box_archive());
    cluster.spread("agent", &[("w2", 1), ("w3", 1), ("w4", 1)]);
}

#[test]
fn a_drained_node_loses_its_tasks_only_when_others_have_taken_over() {
    let cluster = Cluster::new(3);
    run(&cluster, "service create web --replicas 6");
    cluster.spread("web", &[("w1", 2), ("w2", 2), ("w3", 2)]);
    let slots = || {
        let tasks = task::of_service(&cluster.manager, "web");
        tasks.iter().filter(|task| task.serves()).map(|task| task.slot).collect::<BTreeSet<_>>()
    };
    cluster.ok("node update w1 --availability drain --detach");
    let begin = Instant::now();
    loop {
        assert_eq!(slots().len(), 6, "a slot was empty while its node was drained");
        let left = task::of_service(&cluster.manager, "web");
        let left = left.iter().filter(|task| task.node_name == "w1" && task.is_live()).count();
        if left == 0 {
            break;
        }
        assert!(begin.elapsed() < 2 * SOON, "{left} tasks are still on w1");
    }
    cluster.spread("web", &[("w2", 3), ("w3", 3)]);
    // Paused: what is there stays, nothing comes.
    cluster.ok("node update w2 --availability pause");
    cluster.ok("service scale web=8");
    cluster.spread("web", &[("w2", 3), ("w3", 5)]);
    cluster.ok("node update w1 --availability active");
    cluster.ok("service scale web=9");
    cluster.spread("web", &[("w1", 1), ("w2", 3), ("w3", 5)]);
}

#[test]
fn a_worker_that_is_lost_is_replaced_and_one_that_is_back_is_used() {
    let mut cluster = Cluster::new(3);
    run(&cluster, "service create web --replicas 3");
    cluster.spread("web", &[("w1", 1), ("w2", 1), ("w3", 1)]);
    let begin = Instant::now();
    cluster.workers[2].host().disconnect();
    cluster.workers[2].kill();
    eventually(2 * SOON, "all three elsewhere", || {
        let tasks = task::of_service(&cluster.manager, "web");
        let elsewhere = tasks.iter().filter(|task| task.serves() && task.node_name != "w3").count();
        if elsewhere == 3 { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
    println!("replaced {:.1} s after the worker was lost", begin.elapsed().as_secs_f64());
    assert!(
        begin.elapsed() < Duration::from_secs(20),
        "a lost node's tasks came back after {:?}",
        begin.elapsed()
    );
    cluster.workers[2].host().connect();
    cluster.workers[2].run_again();
    cluster.workers[2].wait_ready();
    // What it still ran is stopped, and it takes its share of what comes.
    cluster.serving("web", 3);
    cluster.ok("service scale web=5");
    eventually(SOON, "a task on w3", || {
        let tasks = task::of_service(&cluster.manager, "web");
        let back = tasks.iter().any(|task| task.serves() && task.node_name == "w3");
        if back { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
    let ids: BTreeSet<String> = cluster.serving("web", 5).into_iter().map(|task| task.id).collect();
    eventually(SOON, "no container of a lost task", || {
        let running: BTreeSet<String> = cluster.pids().into_keys().collect();
        if running == ids { Ok(()) } else { Err(format!("{running:?} instead of {ids:?}")) }
    });
}
