//! A node that runs nothing any more ends without a trace on its machine.

use warren_testkit::leftovers;
use warren_testkit::netns::Netns;
use warren_testkit::node::Node;

use crate::e2e::task;
use crate::e2e::traffic::Way;
use crate::e2e::world::{WEB, World};

#[test]
fn an_empty_node_leaves_nothing_behind() {
    let mut world = World::new();
    world.ok(&format!("service create web --image {WEB} --replicas 2 --publish 8088:80"));
    world.assert_answered_by(Way::Outside, 8088, &["web-1", "web-2"]);
    let busy = world.node.kernel_inventory();
    for kind in ["cgroups", "iptables", "mounts", "processes", "runc states"] {
        assert!(busy.count(kind) > 0, "the test would not see {kind}: {:?}", busy.counts());
    }
    world.ok("service rm web");
    // Started and stopped again it does not leave anything either.
    for _ in 0..2 {
        assert!(world.node.stop().success(), "{}", world.node.process().log_tail(20));
        assert_nothing_is_left(&world.node, world.neighbour.netns());
        world.node.run_again();
        world.node.wait_ready();
    }
}

/// Asserts that the machine has nothing of a node that ended. `untouched` is a host beside it, on which never anything
/// was: it shows what is nobody's.
#[track_caller]
pub fn assert_nothing_is_left(node: &Node, untouched: &Netns) {
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
    assert_eq!(leftovers::processes(node.scratch()), [], "containerd ends with the node");
    assert!(!node.run_dir().join("netns").exists());
}

#[test]
fn a_node_that_still_runs_something_keeps_it() {
    let mut world = World::new();
    world.ok(&format!("service create web --image {WEB} --publish 8088:80"));
    world.serving("web", 1);
    let before = task::pids(&world.node);
    assert!(world.node.stop().success());
    assert_eq!(task::pids(&world.node), before);
    world.assert_answered_by(Way::Outside, 8088, &["web-1"]);
}

#[test]
fn the_secrets_of_a_node_that_ends_are_nowhere() {
    let mut world = World::new();
    let secret = world.node.scratch().join("secret");
    std::fs::write(&secret, "hunter2").unwrap();
    world.warren().ok(&["secret", "create", "db", secret.to_str().unwrap()]);
    world.ok(&format!("service create web --image {WEB} --secret db"));
    let mounts = |node: &Node| {
        let inventory = node.kernel_inventory();
        inventory
            .names("mounts")
            .filter(|line| line.contains("/secrets"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(mounts(&world.node).len(), 1);
    // As long as something runs, it stays.
    assert!(world.node.stop().success());
    assert_eq!(mounts(&world.node).len(), 1);
    world.node.run_again();
    world.node.wait_ready();
    world.serving("web", 1);
    assert_eq!(mounts(&world.node).len(), 1);
    world.ok("service rm web");
    assert!(world.node.stop().success(), "{}", world.node.process().log_tail(20));
    assert_nothing_is_left(&world.node, world.neighbour.netns());
    assert!(!world.node.run_dir().join("secrets").exists());
}
