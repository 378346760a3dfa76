//! Verification of a new node: no tasks before its checks pass.

use std::time::Duration;

use warren_testkit::netns::LabHost;
use warren_testkit::node::{LabNode, NodeOptions};
use warren_testkit::wait::eventually;

use crate::e2e::cluster::WorkerCluster;
use crate::e2e::fixture::{BOX, SOON, box_archive};
use crate::e2e::task_document;

/// The node is checked again 5 s and 10 s after its failures.
const REPEATED: Duration = Duration::from_secs(60);

/// The line of a node in `node ls`.
fn listed(cluster: &WorkerCluster, node: &str) -> String {
    let table = cluster.warren().run_ok(&["node", "ls", "-o", "wide"]);
    table.lines().find(|line| line.starts_with(node)).unwrap_or_default().to_owned()
}

#[track_caller]
fn wait_listed(cluster: &WorkerCluster, node: &str, expected: &str, within: Duration) {
    eventually(within, expected, || {
        let line = listed(cluster, node);
        if line.contains(expected) { Ok(()) } else { Err(line) }
    });
}

/// `-I` inserts the rule, `-D` deletes it.
fn drop_packets_of_nodes(host: &LabHost, action: &str) {
    let rule = ["-t", "raw", action, "PREROUTING", "-p", "udp", "--dport", "4789", "-j", "DROP"];
    assert!(host.command("iptables").args(rule).status().unwrap().success());
}

#[test]
fn new_node_gets_tasks_once_its_checks_pass() {
    let mut cluster = WorkerCluster::new(1);
    let warren = cluster.warren();
    let check = |check: &str| {
        let flag = format!("--verify-check-add={check}");
        warren.run_ok(&["cluster", "update", &flag]);
    };
    warren.run_ok(&["cluster", "update", "--verify-nodes", "on", "--verify-timeout", "20s"]);
    let marker = cluster.manager.scratch().join("mended");
    check(&format!("disk2=command:test -e {} || {{ echo no second disk; exit 3; }}", marker.display()));
    wait_listed(&cluster, "w1", "verified=true", SOON);
    cluster.warren().run_ok(&[
        "service",
        "create",
        "agent",
        "--mode",
        "global",
        "--image",
        BOX,
        "--command",
        "sleep",
        "--arg",
        "1000",
    ]);
    cluster.wait_spread("agent", &[("w1", 1)]);

    let node = LabNode::join(cluster.lab.add_host(), NodeOptions::default(), &cluster.manager, "w2");
    cluster.workers.push(node);
    cluster.import("box.tar", box_archive());
    wait_listed(&cluster, "w2", "disk2: exited with code 3: no second disk", SOON);
    assert!(listed(&cluster, "w2").contains("warren.io/unverified:NoSchedule"));
    cluster.wait_spread("agent", &[("w1", 1)]);

    // The next fault is that of an image.
    check(&format!("image=image:{BOX} false"));
    std::fs::write(&marker, "").unwrap();
    wait_listed(&cluster, "w2", "image: exited with code 1", REPEATED);
    assert_eq!(
        task_document::of_service(&cluster.manager, "agent").len(),
        1,
        "no task, not even an ended one"
    );

    check(&format!("image=image:{BOX} true"));
    cluster.wait_spread("agent", &[("w1", 1), ("w2", 1)]);
    wait_listed(&cluster, "w2", "verified=true", SOON);
    let inspected = cluster.warren().json(&["node", "inspect", "w2"]);
    assert_eq!(inspected["verification"]["state"], "verified");
    assert_eq!(inspected["taints"], serde_json::Value::Null);
    cluster.warren().run_ok(&["node", "verify"]);
    for worker in &cluster.workers {
        let containers = worker.ctr(["--namespace", "warren", "containers", "ls", "--quiet"]);
        assert!(!containers.contains("verify-"), "{containers}");
    }

    // The next node does not receive the packets of the others.
    let host = cluster.lab.add_host();
    drop_packets_of_nodes(&host, "-I");
    let node = LabNode::join(host, NodeOptions::default(), &cluster.manager, "w3");
    cluster.workers.push(node);
    cluster.import("box.tar", box_archive());
    wait_listed(&cluster, "w3", "data-plane: 2 of 2 nodes not reached: w1 (10.", SOON);
    let ran = cluster.warren().run(&["node", "verify", "w3"]);
    assert_eq!(ran.code, 1, "{ran}");
    for line in ["\u{221a} clock\n", "\u{221a} disk2\n", "\u{d7} data-plane: 2 of 2 nodes not reached"] {
        assert!(ran.stdout.contains(line), "{line}: {ran}");
    }
    cluster.wait_spread("agent", &[("w1", 1), ("w2", 1)]);
    drop_packets_of_nodes(cluster.workers[2].host(), "-D");
    let report = cluster.warren().run_ok(&["node", "verify", "w3"]);
    assert!(report.contains("\u{221a} data-plane: 2 of 2 nodes reached"), "{report}");
    cluster.wait_spread("agent", &[("w1", 1), ("w2", 1), ("w3", 1)]);
}
