//! The node's process restarts; its containers are not disturbed.

use std::collections::BTreeMap;

use warren_testkit::cleanup;
use warren_testkit::tool;
use warren_testkit::wait::eventually;

use crate::e2e::fixture::{NodeFixture, SOON, WEB};
use crate::e2e::task_document::{self, TaskDocument};
use crate::e2e::traffic::{CLIENT_LOCATIONS, ClientLocation, PageClient};

#[test]
fn containers_and_ports_outlive_the_node() {
    let mut world = NodeFixture::new();
    world.ok(&format!("service create web --image {WEB} --replicas 2 --publish 8088:80"));
    world.wait_serving("web", 2);
    let before = identities(&world);
    // The tasks are ready before the port is open.
    world.assert_answered_by(ClientLocation::Outside, 8088, &["web-1", "web-2"]);
    let asker = PageClient::start(&world, 8088);
    for way in ["SIGTERM", "SIGKILL", "init"] {
        if way == "SIGTERM" {
            assert!(world.node.stop().success(), "{}", world.node.process().log_tail(20));
        } else {
            world.node.kill();
        }
        asker.assert_progress(SOON);
        world.warren().run_refused(&["service", "ls"], 5);
        if way == "init" {
            world.node.init_again();
        } else {
            world.node.run_again();
        }
        world.node.wait_ready();
        eventually(SOON, &format!("the same tasks after {way}"), || {
            let now = identities(&world);
            if now == before { Ok(()) } else { Err(format!("{now:#?} instead of {before:#?}")) }
        });
    }
    // The next task is ready before its server listens, since it has no check.
    asker.assert_never_refused();
    // It continues where it was: new requests are executed.
    world.ok("service scale web=3");
    world.assert_answered_by(ClientLocation::Outside, 8088, &["web-1", "web-2", "web-3"]);
    assert_eq!(identities(&world).len(), 3);
}

/// For each running container: its process, and the task document with its start time.
fn identities(world: &NodeFixture) -> BTreeMap<String, (i32, TaskDocument)> {
    let tasks: BTreeMap<String, TaskDocument> =
        task_document::all(&world.node).into_iter().map(|task| (task.id.clone(), task)).collect();
    let of_task = |(id, pid): (String, i32)| {
        let task = tasks.get(&id).unwrap_or_else(|| panic!("no task has the container {id}")).clone();
        (id, (pid, task))
    };
    task_document::pids(&world.node).into_iter().map(of_task).collect()
}

#[test]
fn exit_while_the_node_is_down_is_detected() {
    let mut world = NodeFixture::new();
    world.ok(&format!("service create web --image {WEB} --publish 8088:80"));
    let task = world.wait_serving("web", 1).remove(0);
    world.node.kill();
    world.node.ctr(["--namespace", "warren", "tasks", "kill", "--signal", "SIGKILL", &task.id]);
    world.node.run_again();
    world.node.wait_ready();
    let again = eventually(SOON, "the second attempt", || {
        let found = task_document::serving(&world.node, "web", 1)?.remove(0);
        if found.attempt == 2 { Ok(found) } else { Err(format!("{found:?}")) }
    });
    assert_eq!(again.id, task.id);
    world.assert_answered_by(ClientLocation::Outside, 8088, &["web-1"]);
}

#[test]
fn after_a_reboot_everything_runs_again() {
    let mut world = NodeFixture::new();
    world.ok(&format!("service create web --image {WEB} --replicas 2 --publish 8088:80"));
    world.wait_serving("web", 2);
    let before = task_document::pids(&world.node);
    for _ in 0..2 {
        reboot(&mut world);
        assert!(world.answering_host(ClientLocation::Outside, 8088).is_err());
        world.node.run_again();
        world.node.wait_ready();
        world.wait_serving("web", 2);
        for way in CLIENT_LOCATIONS {
            world.assert_answered_by(way, 8088, &["web-1", "web-2"]);
        }
        let after = task_document::pids(&world.node);
        assert_eq!(after.len(), 2);
        assert!(after.values().all(|pid| !before.values().any(|old| old == pid)));
    }
}

/// Removes what a machine loses with its power: processes, mounts, `/run`, links, addresses, firewall.
#[track_caller]
fn reboot(world: &mut NodeFixture) {
    world.node.kill();
    assert_eq!(cleanup::remove(world.node.scratch()), Vec::<String>::new());
    std::fs::remove_dir_all(world.node.run_dir()).unwrap();
    let script = "for table in raw filter nat mangle; do iptables -t $table -F && iptables -t $table -X; done \
                  && ip address flush dev lo label 'lo:*' \
                  && for proto in 87; do ip route flush proto $proto; done";
    let mut shell = world.node.host().command("sh");
    shell.args(["-c", script]);
    if let Err(error) = tool::stdout(shell, tool::DEADLINE) {
        panic!("{error}");
    }
}
