//! `manager init` where it cannot work: it says why and what to do, and leaves nothing running.

use std::process::Command;
use std::time::Duration;

use warren_testkit::leaks::{Inventory, Site};
use warren_testkit::leftovers;
use warren_testkit::netns::{Host, Lab};
use warren_testkit::scratch::Scratch;
use warren_testkit::tool;
use warren_testkit::warren::{Warren, binary};

use crate::e2e::task;
use crate::e2e::world::{Occupant, WEB, World};

const FAILED: i32 = 1;
const NOT_FOUND: i32 = 3;
const CONFLICT: i32 = 4;
const DENIED: i32 = 6;

/// It has to say so before a person wonders.
const SOON_TOLD: Duration = Duration::from_secs(40);

const INIT: &str = r#"exec "$warren" manager init"#;

/// A shell script that starts a node which cannot be, and what the error has to mention. Settings come from the
/// environment; `$data` and `$run` are the two directories, which do not exist yet.
struct Start {
    name: &'static str,
    script: &'static str,
    code: i32,
    says: &'static [&'static str],
}

const STARTS: [Start; 10] = [
    Start {
        name: "a data dir that cannot be made",
        script: r#"exec "$warren" manager init --data-dir /proc/warren"#,
        code: DENIED,
        says: &["data directory /proc/warren cannot be written", "--data-dir"],
    },
    Start {
        name: "a data dir that is a file",
        script: r#"touch "$data"; exec "$warren" manager init"#,
        code: DENIED,
        says: &["cannot be written", "--data-dir"],
    },
    Start {
        name: "a data dir on a read-only file system",
        script: r#"mkdir "$data"; exec unshare --mount sh -c '
            mount --bind "$data" "$data" && mount -o remount,bind,ro "$data" && exec "$warren" manager init'"#,
        code: DENIED,
        says: &["cannot be written", "--data-dir"],
    },
    Start {
        name: "a data dir of a later version",
        script: r#"mkdir "$data"; echo 999 >"$data/version"; exec "$warren" manager init"#,
        code: FAILED,
        says: &["format version 999", "run the Warren version that wrote it"],
    },
    Start {
        name: "no containerd",
        script: r#"exec unshare --mount sh -c '
            for each in $(which -a containerd); do mount --bind /dev/null "$each"; done
            exec "$warren" manager init'"#,
        code: FAILED,
        says: &["containerd is not installed", "apt-get install containerd"],
    },
    Start {
        name: "no runc",
        script: r#"exec unshare --mount sh -c '
            for each in $(which -a runc); do mount --bind /dev/null "$each"; done
            exec "$warren" manager init'"#,
        code: FAILED,
        says: &["runc is not a program on this node", "install it"],
    },
    Start {
        name: "no iptables",
        script: r#"PATH=/nowhere exec "$warren" manager init"#,
        code: FAILED,
        says: &["\"iptables\" was not found", "apt-get install iptables"],
    },
    Start {
        name: "not root",
        script: r#"mkdir "$data" "$run"; chown nobody "$data" "$run"; chmod 711 "${data%/*}"
            cp "$warren" "$run/warren"; touch "$WARREN_CONTEXTS"; chown nobody "$WARREN_CONTEXTS"
            exec setpriv --reuid 65534 --regid 65534 --clear-groups "$run/warren" manager init"#,
        code: DENIED,
        says: &["root"],
    },
    Start {
        name: "nothing to resume",
        script: r#"exec "$warren" manager run"#,
        code: NOT_FOUND,
        says: &["holds no manager", "warren manager init"],
    },
    Start {
        name: "a foreign containerd that is not there",
        script: r#"exec "$warren" manager init --containerd-socket "$run/nobody.sock""#,
        code: FAILED,
        says: &["no containerd answers at", "nobody.sock"],
    },
];

#[test]
fn a_machine_that_cannot_be_a_node_is_told_why() {
    let lab = Lab::new();
    for Start { name, script, code, says } in &STARTS {
        let host = lab.host();
        let said = refused(&host, &Scratch::new(), script, *code, name);
        for words in *says {
            assert!(said.contains(words), "{name} should mention {words:?} and says:\n{said}");
        }
    }
}

#[test]
fn a_port_that_somebody_has_is_named() {
    let lab = Lab::new();
    let host = lab.host();
    let holder = Occupant::start(&host, 8080);
    let said = refused(&host, &Scratch::new(), INIT, FAILED, "a port that is taken");
    assert!(said.contains("8080") && said.contains("in use"), "{said}");
    drop(holder);
}

#[test]
fn there_is_one_node_per_data_dir_and_per_network() {
    let mut world = World::new();
    world.ok(&format!("service create web --image {WEB} --publish 8088:80"));
    world.serving("web", 1);
    let before = (task::all(&world.node), task::pids(&world.node));
    let pid = world.node.process().pid();

    let lab = Lab::new();
    let data = world.node.data_dir().display().to_string();
    let script = format!(r#"exec "$warren" manager init --data-dir {data}"#);
    let said = refused(&lab.host(), &Scratch::new(), &script, CONFLICT, "a data dir in use");
    assert!(said.contains(&format!("{data} is in use by process {pid}")), "{said}");

    let scratch = Scratch::new();
    let script = r#"exec "$warren" manager init --listen 0.0.0.0:9999"#;
    let said = run(world.node.host(), &scratch, script, FAILED, "a second node in one network");
    assert!(said.contains(&format!("another warren node (pid {pid}) runs in this network")), "{said}");
    assert_eq!(leftovers::processes(scratch.path()), []);
    assert_eq!((task::all(&world.node), task::pids(&world.node)), before);
}

/// Runs `script` on `host`, on which nothing may be left afterwards; returns what it said.
#[track_caller]
fn refused(host: &Host, scratch: &Scratch, script: &str, code: i32, name: &str) -> String {
    let netns = host.netns().path();
    let site = Site {
        netns: &netns,
        containerd_socket: &scratch.path().join("run/containerd/containerd.sock"),
        directory: scratch.path(),
        cgroup_mark: "warren-in-vain",
    };
    let before = Inventory::of_kernel(&site);
    let said = run(host, scratch, script, code, name);
    let difference = before.difference(&Inventory::of_kernel(&site));
    assert!(difference.is_empty(), "{name} left something behind:\n{difference}");
    assert_eq!(leftovers::processes(scratch.path()), [], "{name}");
    said
}

/// Runs `script` with the settings of a node in `scratch`; it must fail in time and say why.
#[track_caller]
fn run(host: &Host, scratch: &Scratch, script: &str, code: i32, name: &str) -> String {
    let (data, run) = (scratch.path().join("data"), scratch.path().join("run"));
    let clean = Warren::new(&scratch.path().join("contexts.toml")).inside(&host.netns().path());
    // The environment that a node gets, with a shell in the place of `warren`.
    let mut shell: Command = host.command("sh");
    for (variable, value) in clean.command(&[]).get_envs() {
        match value {
            Some(value) => shell.env(variable, value),
            None => shell.env_remove(variable),
        };
    }
    shell.env("warren", binary()).env("data", &data).env("run", &run);
    shell.env("WARREN_DATA_DIR", &data).env("WARREN_RUN_DIR", &run);
    shell.env("WARREN_ADVERTISE", host.address().to_string());
    shell.env("WARREN_CONTAINERD_SOCKET", run.join("containerd/containerd.sock"));
    shell.args(["-c", script]);
    let ended = tool::output(shell, SOON_TOLD).unwrap_or_else(|error| panic!("{name}: {error}"));
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(code), "{name}: {said}");
    said
}
