//! What a node stands on goes away while it runs.

use warren_testkit::containerd::Containerd;
use warren_testkit::node::Settings;
use warren_testkit::wait::eventually;

use crate::e2e::task;
use crate::e2e::traffic::Way;
use crate::e2e::world::{SOON, WEB, World};

#[test]
fn a_containerd_of_the_nodes_own_is_started_again() {
    let world = World::new();
    world.ok(&format!("service create web --image {WEB} --replicas 2 --publish 8088:80"));
    world.serving("web", 2);
    let before = task::pids(&world.node);
    for replicas in [3, 4] {
        let containerd = world.kill_containerd();
        assert!(world.who_answers(Way::Outside, 8088).is_ok());
        // Work that was asked for meanwhile is done once it is back.
        world.ok(&format!("service scale web={replicas}"));
        world.serving("web", replicas);
        assert_ne!(world.containerd(), containerd);
    }
    let after = task::pids(&world.node);
    assert_eq!(after.len(), 4);
    assert!(before.iter().all(|(id, pid)| after.get(id) == Some(pid)), "{before:?} {after:?}");
}

#[test]
fn a_foreign_containerd_that_is_gone_is_told_and_waited_for() {
    let mut containerd = Containerd::start();
    let world = World::with(Settings::default().containerd(&containerd.socket()));
    world.ok(&format!("service create web --image {WEB} --publish 8088:80"));
    world.serving("web", 1);
    let before = task::pids(&world.node);
    containerd.process().kill();
    let conditions = || {
        let node = world.warren().json(&["node", "ls"]);
        node[0]["usage"]["conditions"].to_string()
    };
    eventually(2 * SOON, "the node's condition", || {
        let said = conditions();
        if said.contains("containerd does not answer") { Ok(()) } else { Err(said) }
    });
    world.assert_answered_by(Way::Outside, 8088, &["web-1"]);
    assert_eq!(world.serving("web", 1).len(), 1, "a task that runs is told to run");
    world.ok("service scale web=2 --detach");
    containerd.restart();
    world.serving("web", 2);
    let after = task::pids(&world.node);
    assert!(before.iter().all(|(id, pid)| after.get(id) == Some(pid)), "{before:?} {after:?}");
    eventually(2 * SOON, "the end of the condition", || {
        let said = conditions();
        if said == "[]" { Ok(()) } else { Err(said) }
    });
}
