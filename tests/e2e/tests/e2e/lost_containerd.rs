//! A dependency of the node fails while it runs.

use warren_testkit::containerd::TestContainerd;
use warren_testkit::node::NodeOptions;
use warren_testkit::wait::eventually;

use crate::e2e::fixture::{NodeFixture, SOON, WEB};
use crate::e2e::task_document;
use crate::e2e::traffic::ClientLocation;

#[test]
fn own_containerd_is_restarted() {
    let world = NodeFixture::new();
    world.ok(&format!("service create web --image {WEB} --replicas 2 --publish 8088:80"));
    world.wait_serving("web", 2);
    // The tasks are ready before the port is open.
    world.assert_answered_by(ClientLocation::Outside, 8088, &["web-1", "web-2"]);
    let before = task_document::pids(&world.node);
    for replicas in [3, 4] {
        let containerd = world.kill_containerd();
        assert!(world.answering_host(ClientLocation::Outside, 8088).is_ok());
        // Work requested in the meantime is done once it is back.
        world.ok(&format!("service scale web={replicas}"));
        world.wait_serving("web", replicas);
        assert_ne!(world.containerd(), containerd);
    }
    let after = task_document::pids(&world.node);
    assert_eq!(after.len(), 4);
    assert!(before.iter().all(|(id, pid)| after.get(id) == Some(pid)), "{before:?} {after:?}");
}

#[test]
fn missing_external_containerd_is_reported() {
    let mut containerd = TestContainerd::start();
    let world = NodeFixture::with(NodeOptions::default().containerd(&containerd.socket()));
    world.ok(&format!("service create web --image {WEB} --publish 8088:80"));
    world.wait_serving("web", 1);
    let before = task_document::pids(&world.node);
    containerd.process().kill();
    let conditions = || {
        let node = world.warren().json(&["node", "ls"]);
        node[0]["usage"]["conditions"].to_string()
    };
    eventually(2 * SOON, "the node's condition", || {
        let output = conditions();
        if output.contains("containerd does not answer") { Ok(()) } else { Err(output) }
    });
    world.assert_answered_by(ClientLocation::Outside, 8088, &["web-1"]);
    assert_eq!(world.wait_serving("web", 1).len(), 1, "a running task keeps its assignment");
    world.ok("service scale web=2 --detach");
    containerd.restart();
    world.wait_serving("web", 2);
    let after = task_document::pids(&world.node);
    assert!(before.iter().all(|(id, pid)| after.get(id) == Some(pid)), "{before:?} {after:?}");
    eventually(2 * SOON, "the end of the condition", || {
        let output = conditions();
        if output == "[]" { Ok(()) } else { Err(output) }
    });
}
