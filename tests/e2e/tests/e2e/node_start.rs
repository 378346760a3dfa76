//! `manager init` where it cannot work: it prints the reason and what to do, and leaves no process.

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use warren_testkit::cleanup;
use warren_testkit::cli::{WarrenCli, binary};
use warren_testkit::leaks::{Inventory, LeakScope};
use warren_testkit::netns::{LabHost, NetworkSwitch};
use warren_testkit::node::NodeOptions;
use warren_testkit::scratch::ScratchDir;
use warren_testkit::tool;
use warren_testkit::wait::eventually;

use crate::e2e::fixture::{NodeFixture, PortOccupant, SOON, WEB};
use crate::e2e::task_document;

const FAILED: i32 = 1;
const NOT_FOUND: i32 = 3;
const CONFLICT: i32 = 4;
const DENIED: i32 = 6;

/// The time limit for the error.
const SOON_TOLD: Duration = Duration::from_secs(40);

const INIT: &str = r#"exec "$warren" manager init"#;

/// A shell script that starts a node with an invalid setup, and parts of the error. Options come from the
/// environment; `$data` and `$run` are the two directories, which do not exist yet.
struct FailingStart {
    name: &'static str,
    script: &'static str,
    code: i32,
    says: &'static [&'static str],
}

const STARTS: [FailingStart; 10] = [
    FailingStart {
        name: "a data dir that cannot be made",
        script: r#"exec "$warren" manager init --data-dir /proc/warren"#,
        code: DENIED,
        says: &["data directory /proc/warren cannot be written", "--data-dir"],
    },
    FailingStart {
        name: "a data dir that is a file",
        script: r#"touch "$data"; exec "$warren" manager init"#,
        code: DENIED,
        says: &["cannot be written", "--data-dir"],
    },
    FailingStart {
        name: "a data dir on a read-only file system",
        script: r#"mkdir "$data"; exec unshare --mount sh -c '
            mount --bind "$data" "$data" && mount -o remount,bind,ro "$data" && exec "$warren" manager init'"#,
        code: DENIED,
        says: &["cannot be written", "--data-dir"],
    },
    FailingStart {
        name: "a data dir of a later version",
        script: r#"mkdir "$data"; echo 999 >"$data/version"; exec "$warren" manager init"#,
        code: FAILED,
        says: &["format version 999", "run the Warren version that wrote it"],
    },
    FailingStart {
        name: "no containerd",
        script: r#"exec unshare --mount sh -c '
            for each in $(which -a containerd); do mount --bind /dev/null "$each"; done
            exec "$warren" manager init'"#,
        code: FAILED,
        says: &["containerd is not installed", "apt-get install containerd"],
    },
    FailingStart {
        name: "no runc",
        script: r#"exec unshare --mount sh -c '
            for each in $(which -a runc); do mount --bind /dev/null "$each"; done
            exec "$warren" manager init'"#,
        code: FAILED,
        says: &["runc is not a program on this node", "install it"],
    },
    FailingStart {
        name: "no iptables",
        script: r#"PATH=/nowhere exec "$warren" manager init"#,
        code: FAILED,
        says: &["\"iptables\" was not found", "apt-get install iptables"],
    },
    FailingStart {
        name: "not root",
        script: r#"mkdir "$data" "$run"; chown nobody "$data" "$run"; chmod 711 "${data%/*}"
            cp "$warren" "$run/warren"; touch "$WARREN_CONTEXTS"; chown nobody "$WARREN_CONTEXTS"
            exec setpriv --reuid 65534 --regid 65534 --clear-groups "$run/warren" manager init"#,
        code: DENIED,
        says: &["root"],
    },
    FailingStart {
        name: "nothing to resume",
        script: r#"exec "$warren" manager run"#,
        code: NOT_FOUND,
        says: &["has no manager", "warren manager init"],
    },
    FailingStart {
        name: "a foreign containerd that is not there",
        script: r#"exec "$warren" manager init --containerd-socket "$run/nobody.sock""#,
        code: FAILED,
        says: &["no containerd answers at", "nobody.sock"],
    },
];

#[test]
fn unusable_machine_is_refused_with_reason() {
    let lab = NetworkSwitch::new();
    for FailingStart { name, script, code, says } in &STARTS {
        let host = lab.add_host();
        let text = refused(&host, &ScratchDir::new(), script, *code, name);
        for words in *says {
            assert!(text.contains(words), "the output of {name} must contain {words:?}:\n{text}");
        }
    }
}

#[test]
fn used_port_is_reported_with_its_process() {
    let lab = NetworkSwitch::new();
    let host = lab.add_host();
    let holder = PortOccupant::start(&host, 8080);
    let text = refused(&host, &ScratchDir::new(), INIT, FAILED, "a port that is taken");
    assert!(text.contains("8080") && text.contains("in use"), "{text}");
    drop(holder);
}

#[test]
fn there_is_one_node_per_data_dir_and_per_network() {
    let mut world = NodeFixture::new();
    world.ok(&format!("service create web --image {WEB} --publish 8088:80"));
    world.wait_serving("web", 1);
    let before = (task_document::all(&world.node), task_document::pids(&world.node));
    let pid = world.node.process().pid();

    let lab = NetworkSwitch::new();
    let data = world.node.data_dir().display().to_string();
    let script = format!(r#"exec "$warren" manager init --data-dir {data}"#);
    let text = refused(&lab.add_host(), &ScratchDir::new(), &script, CONFLICT, "a data dir in use");
    assert!(text.contains(&format!("{data} is in use by process {pid}")), "{text}");

    let scratch = ScratchDir::new();
    let script = r#"exec "$warren" manager init --listen 0.0.0.0:9999"#;
    let text = run(world.node.host(), &scratch, script, FAILED, "a second node in one network");
    assert!(text.contains(&format!("another warren node (pid {pid}) runs in this network")), "{text}");
    assert_eq!(cleanup::processes(scratch.path()), []);
    assert_eq!((task_document::all(&world.node), task_document::pids(&world.node)), before);
}

/// Runs `script` on `host`, which must have no new resources afterwards; returns its output.
#[track_caller]
fn refused(host: &LabHost, scratch: &ScratchDir, script: &str, code: i32, name: &str) -> String {
    let netns = host.netns().path();
    let site = LeakScope {
        netns: &netns,
        containerd_socket: &scratch.path().join("run/containerd/containerd.sock"),
        directory: scratch.path(),
        cgroup_pattern: "warren-in-vain",
    };
    let before = Inventory::of_kernel(&site);
    let text = run(host, scratch, script, code, name);
    let difference = before.difference(&Inventory::of_kernel(&site));
    assert!(difference.is_empty(), "{name} left something behind:\n{difference}");
    assert_eq!(cleanup::processes(scratch.path()), [], "{name}");
    text
}

/// Runs `script` with the options of a node in `scratch`; it must fail in time with a reason.
#[track_caller]
fn run(host: &LabHost, scratch: &ScratchDir, script: &str, code: i32, name: &str) -> String {
    let (data, run) = (scratch.path().join("data"), scratch.path().join("run"));
    let clean = WarrenCli::new(&scratch.path().join("contexts.toml")).in_netns(&host.netns().path());
    // The environment of a node, with a shell instead of `warren`.
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
    let text = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(code), "{name}: {text}");
    text
}

#[test]
fn node_of_a_unit_reports_that_it_serves_and_is_recognized_by_the_checks() {
    let units = ScratchDir::new();
    let notifications = units.path().join("notify");
    let systemd = UnixDatagram::bind(&notifications).unwrap();
    systemd.set_read_timeout(Some(SOON_TOLD)).unwrap();
    let options = NodeOptions::default().environment("NOTIFY_SOCKET", notifications.to_str().unwrap());
    let mut world = NodeFixture::bare(options);
    let mut notification = [0; 64];
    let length = systemd.recv(&mut notification).unwrap();
    assert_eq!(&notification[..length], b"READY=1");

    let pid = world.node.process().pid();
    let data = world.node.data_dir().display().to_string();
    let device = "packets between nodes: used by the node itself, device warren-vx";
    let results = eventually(SOON, "the device to other nodes", || {
        // The outcome of others, such as the disk, depends on the machine.
        let checked = world.warren().run(&["system", "check", "--data-dir", &data, "-o", "json"]);
        let results: Vec<serde_json::Value> =
            serde_json::from_str(&checked.stdout).map_err(|error| format!("{error}: {checked}"))?;
        let has_device = results.iter().any(|result| result["message"] == device);
        if has_device { Ok(results) } else { Err(checked.stdout) }
    });
    let message = |name: &str| {
        let found = results.iter().find(|result| result["name"] == name);
        let found = found.unwrap_or_else(|| panic!("no {name}: {results:?}"));
        assert_eq!(found["outcome"], "passed", "{found}");
        found["message"].as_str().unwrap().to_owned()
    };
    assert_eq!(message("port 4789/udp"), device);
    assert_eq!(message("port 8080/tcp"), format!("managers and API: used by the node itself, process {pid}"));
    let socket = world.node.containerd_socket().display().to_string();
    assert!(message("containerd").ends_with(&format!("answers at {socket}")), "{results:?}");
    // The unit has the directory; the run directory is in the stored settings.
    let directory = units.path().display().to_string();
    world.warren().run_ok(&["system", "install", "--data-dir", &data, "--unit-dir", &directory]);
    let unit = std::fs::read_to_string(units.path().join("warren.service")).unwrap();
    let command = format!("\nExecStart=\"{}\" manager run --data-dir \"{data}\"\n", binary().display());
    assert!(unit.contains(&command), "{unit}");
}
