//! A node that runs nothing any more ends without a trace on its machine.

use warren_testkit::leftovers;

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
        assert_nothing_is_left(&world);
        world.node.run_again();
        world.node.wait_ready();
    }
}

#[track_caller]
fn assert_nothing_is_left(world: &World) {
    // A host beside it, on which never anything was, shows what is nobody's.
    let links = |netns: &warren_testkit::netns::Netns| netns.ip(["-brief", "link"]).lines().count();
    let left = world.node.kernel_inventory();
    assert_eq!(links(world.node.host().netns()), links(world.neighbour.netns()));
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
    assert_eq!(leftovers::processes(world.node.scratch()), [], "containerd ends with the node");
    assert!(!world.node.run_dir().join("netns").exists());
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
