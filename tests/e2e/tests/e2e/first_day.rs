//! Obstacles of a new user: secrets of programs that change their user, and a node that is silent.

use std::time::Duration;

use warren_testkit::wait::eventually;

use crate::e2e::cluster::WorkerCluster;
use crate::e2e::fixture::{BOX, NodeFixture, SOON};

const TIMED_OUT: i32 = 7;

/// Starts as root and reads the secret as another user, as the entrypoints of official images do.
const READ_AS_NOBODY: &str =
    "su -s /bin/sh nobody -c 'cat /run/secrets/pw' || exit 3; echo; trap exit TERM; sleep 1000 & wait";

#[test]
fn program_that_changes_its_user_gets_a_hint_about_its_secret() {
    let world = NodeFixture::with_box();
    let file = world.node.scratch().join("pw");
    std::fs::write(&file, "xyzzy").unwrap();
    world.ok(&format!("secret create pw {}", file.display()));
    let create = |name, secret| {
        let words = ["service", "create", name, "--image", BOX, "--restart", "none", "--secret", secret];
        [&words[..], &["--command", "sh", "--arg", "-c", "--arg", READ_AS_NOBODY]].concat()
    };
    world.warren().run_ok(&[&create("db", "pw")[..], &["--detach"]].concat());
    let hint = "exited with code 3; not restarted; if it could not read its secrets: pw has mode 0400 and belongs to \
                the container's user; a program that changes its user needs --secret pw,mode=0444 or uid=N";
    eventually(SOON, "the hint", || {
        let table = world.ok("service ps db");
        if table.contains(hint) { Ok(()) } else { Err(table) }
    });
    world.warren().run_ok(&create("readable", "pw,mode=0444"));
    eventually(SOON, "the secret in the logs of the program", || {
        let logs = world.ok("service logs readable");
        if logs.contains("xyzzy") { Ok(()) } else { Err(logs) }
    });
    world.ok("service rm db readable");
}

#[test]
fn removal_names_the_silent_node_and_what_force_does() {
    let cluster = WorkerCluster::new(1);
    let name = cluster.workers[0].name().to_owned();
    cluster.ok(&format!("service create web --image {BOX} --command sleep --arg 1000"));
    cluster.wait_serving("web", 1);
    let weak = cluster.ok("cluster check-security");
    for line in [
        "\u{203c} traffic between nodes: packets of tasks can be read on the way: not encrypted (VXLAN)",
        "\u{221a} privileges of services",
        "\u{221a} admission policy",
        "\u{221a} images",
    ] {
        assert!(weak.contains(line), "{weak}");
    }
    cluster.workers[0].host().disconnect();
    let text = cluster.warren().run_refused(&["service", "rm", "web", "--timeout", "20s"], TIMED_OUT);
    let (shown, error) = text.split_once("error:").unwrap();
    for part in [shown, error] {
        let line = format!("node {name}: has not confirmed the end of web.1; if the machine is lost, ");
        assert!(part.contains(&line) && part.contains(&format!("`warren node rm --force {name}`")), "{text}");
    }
    cluster.ok(&format!("node rm --force {name}"));
    eventually(SOON + Duration::from_secs(5), "the end of the service", || {
        let left = cluster.ok("service ls -q");
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
}
