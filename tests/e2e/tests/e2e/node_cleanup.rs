//! A node without tasks leaves no trace on its machine when it stops.

use warren_testkit::cleanup;
use warren_testkit::netns::Netns;
use warren_testkit::node::LabNode;

use crate::e2e::fixture::{NodeFixture, WEB};
use crate::e2e::task_document;
use crate::e2e::traffic::ClientLocation;

#[test]
fn node_without_tasks_leaves_nothing() {
    let mut world = NodeFixture::new();
    world.ok(&format!("service create web --image {WEB} --replicas 2 --publish 8088:80"));
    world.assert_answered_by(ClientLocation::Outside, 8088, &["web-1", "web-2"]);
    let busy = world.node.kernel_inventory();
    for kind in ["cgroups", "iptables", "mounts", "processes", "runc states"] {
        assert!(busy.count(kind) > 0, "the test would not see {kind}: {:?}", busy.counts());
    }
    world.ok("service rm web");
    // Nor after a restart and another stop.
    for _ in 0..2 {
        assert!(world.node.stop().success(), "{}", world.node.process().log_tail(20));
        assert_nothing_is_left(&world.node, world.client_host.netns());
        world.node.run_again();
        world.node.wait_ready();
    }
}

/// Asserts that the machine has no resources of a stopped node. `untouched` is an unused host: its resources
/// are those of every host.
#[track_caller]
pub fn assert_nothing_is_left(node: &LabNode, untouched: &Netns) {
    let links = |netns: &Netns| netns.ip(["-brief", "link"]).lines().count();
    let left = node.kernel_inventory();
    assert_eq!(links(node.host().netns()), links(untouched));
    let kinds = [
        "cgroups",
        "iptables",
        "listening sockets",
        "mounts",
        "neighbours",
        "nft tables",
        "processes",
        "runc states",
    ];
    for kind in kinds {
        assert_eq!(left.names(kind).collect::<Vec<_>>(), Vec::<&str>::new(), "{kind}");
    }
    let is_ours = |line: &&str| line.contains("10.210.") || line.contains("warren");
    for kind in ["addresses", "routes", "routing rules"] {
        assert_eq!(left.names(kind).find(is_ours), None, "{kind}");
    }
    assert_eq!(cleanup::processes(node.scratch()), [], "containerd ends with the node");
    assert!(!node.run_dir().join("netns").exists());
}

#[test]
fn stopped_node_keeps_its_tasks_and_later_leaves_no_secret() {
    let mut world = NodeFixture::new();
    let secret = world.node.scratch().join("secret");
    std::fs::write(&secret, "hunter2").unwrap();
    world.warren().run_ok(&["secret", "create", "db", secret.to_str().unwrap()]);
    world.ok(&format!("service create web --image {WEB} --secret db --publish 8088:80"));
    world.wait_serving("web", 1);
    // The task is ready before the port is open.
    world.assert_answered_by(ClientLocation::Outside, 8088, &["web-1"]);
    let before = task_document::pids(&world.node);
    let mounts = |node: &LabNode| {
        let inventory = node.kernel_inventory();
        inventory
            .names("mounts")
            .filter(|line| line.contains("/secrets"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(mounts(&world.node).len(), 1);
    // As long as a task runs, its resources stay.
    assert!(world.node.stop().success());
    assert_eq!(mounts(&world.node).len(), 1);
    assert_eq!(task_document::pids(&world.node), before);
    world.assert_answered_by(ClientLocation::Outside, 8088, &["web-1"]);
    world.node.run_again();
    world.node.wait_ready();
    world.wait_serving("web", 1);
    assert_eq!(mounts(&world.node).len(), 1);
    world.ok("service rm web");
    assert!(world.node.stop().success(), "{}", world.node.process().log_tail(20));
    assert_nothing_is_left(&world.node, world.client_host.netns());
    assert!(!world.node.run_dir().join("secrets").exists());
}
