//! What a node says of itself over HTTP: that it works, that it is ready, and its figures. Each can be seen failing.

use std::collections::BTreeMap;
use std::time::Duration;

use nix::sys::signal::{self, Signal};
use warren_testkit::netns::Host;
use warren_testkit::node::Settings;
use warren_testkit::tool;
use warren_testkit::wait::eventually;

use crate::e2e::cluster::Cluster;
use crate::e2e::task;
use crate::e2e::world::{BOX, SOON, WEB, World, containerd_of};

const CONFLICT: i32 = 4;

/// The status and the body that `host` gets from itself for `path`.
#[track_caller]
fn get(host: &Host, path: &str) -> (String, String) {
    let mut curl = host.command("curl");
    curl.args(["--silent", "--show-error", "--max-time", "5", "--write-out", "\n%{http_code}"]);
    curl.arg(format!("http://127.0.0.1:9090{path}"));
    let said = tool::stdout(curl, tool::DEADLINE).unwrap();
    let (body, status) = said.rsplit_once('\n').unwrap();
    (status.to_owned(), body.to_owned())
}

/// Waits until `path` answers with `status` and mentions `reason`.
#[track_caller]
fn answers(host: &Host, path: &str, status: &str, reason: &str) {
    eventually(SOON, &format!("{path} to answer {status} and {reason:?}"), || {
        let (found, body) = get(host, path);
        if found == status && body.contains(reason) { Ok(()) } else { Err(format!("{found}: {body}")) }
    });
}

/// The samples of `/metrics` by name and labels.
#[track_caller]
fn metrics(host: &Host) -> BTreeMap<String, f64> {
    let (status, body) = get(host, "/metrics");
    assert_eq!(status, "200", "{body}");
    let samples = body.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    samples
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
            (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line}")))
        })
        .collect()
}

/// The sum of all samples of `name`, whatever their labels; panics when there is none.
#[track_caller]
fn sum(samples: &BTreeMap<String, f64>, name: &str) -> f64 {
    let own = |key: &&String| key.split('{').next() == Some(name);
    let found: Vec<f64> = samples.keys().filter(own).map(|key| samples[key]).collect();
    assert!(!found.is_empty(), "there is no {name} in {:#?}", samples.keys().collect::<Vec<_>>());
    found.iter().sum()
}

#[test]
fn a_worker_is_ready_with_a_session_and_containerd_and_not_without() {
    let mut cluster = Cluster::new(1);
    let worker = &cluster.workers[0];
    answers(worker.host(), "/health", "200", "");
    answers(worker.host(), "/ready", "200", "");
    assert_eq!(get(worker.host(), "/nothing").0, "404");
    answers(cluster.manager.host(), "/ready", "200", "");
    // A containerd that answers nothing.
    let containerd = containerd_of(worker);
    signal::kill(containerd, Signal::SIGSTOP).unwrap();
    answers(worker.host(), "/ready", "503", "containerd");
    answers(worker.host(), "/health", "200", "");
    let down = |wanted: bool| {
        eventually(2 * SOON, "the node's condition", || {
            let node = cluster.warren().json(&["node", "inspect", "w1"]).to_string();
            if node.contains("containerd down") == wanted { Ok(()) } else { Err(node) }
        });
    };
    down(true);
    // Nothing new is placed there.
    cluster.ok(&format!("service create web --detach --image {BOX} --command sleep --arg 1000"));
    eventually(SOON, "the reason", || {
        let tasks = task::of_service(&cluster.manager, "web");
        let told = tasks.iter().any(|task| task.state == "PENDING" && task.reason.contains("containerd"));
        if told { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
    signal::kill(containerd, Signal::SIGCONT).unwrap();
    answers(worker.host(), "/ready", "200", "");
    down(false);
    cluster.serving("web", 1);
    // No manager.
    cluster.manager.process().pause();
    answers(cluster.workers[0].host(), "/ready", "503", "session");
    cluster.manager.process().resume();
    answers(cluster.workers[0].host(), "/ready", "200", "");
}

#[test]
fn figures_move_with_what_happens() {
    let world = World::new();
    let host = world.node.host();
    let before = metrics(host);
    world.ok(&format!("service create web --image {WEB} --replicas 2 --publish 8088:80"));
    world.create_script("failing", &["--restart-max", "1", "--restart-delay", "100ms"], "exit 3");
    world.create_script(
        "hungry",
        &["--memory", "8Mi", "--restart-max", "1", "--restart-delay", "100ms"],
        "exec tail /dev/zero",
    );
    world.create_script(
        "sick",
        &["--health-cmd", "false", "--health-interval", "200ms"],
        "exec tail -f /dev/null",
    );
    world.create_script("busy", &[], "while :; do :; done");
    world.serving("web", 2);
    let grown = [
        "worker_task_failures_total",
        "container_restarts_total",
        "container_oom_kills_total",
        "health_check_failures_total",
        "worker_task_start_duration_seconds_count",
        "warren_raft_applied_index",
    ];
    eventually(2 * SOON, "the figures to grow", || {
        let now = metrics(host);
        let total = |samples: &BTreeMap<String, f64>, name: &str| {
            samples
                .iter()
                .filter(|(key, _)| key.split('{').next() == Some(name))
                .map(|(_, value)| value)
                .sum::<f64>()
        };
        let still = |name: &&&str| total(&now, name) <= total(&before, name);
        let missing: Vec<_> = grown.iter().filter(still).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?} did not grow")) }
    });
    let samples = metrics(host);
    for name in
        ["worker_heartbeat_failures_total", "node_cpu_used", "node_memory_used_bytes", "node_disk_used_bytes"]
    {
        assert!(sum(&samples, name) >= 0.0);
    }
    assert!(sum(&samples, "worker_tasks_running") >= 3.0);
    assert!(sum(&samples, "node_memory_used_bytes") > 1e6 && sum(&samples, "node_disk_used_bytes") > 1e6);
    for name in ["warren_nodes", "warren_tasks", "warren_services"] {
        assert!(sum(&samples, name) >= 1.0, "{name}");
    }
    for part in ["warren_raft_", "warren_scheduler_", "warren_controller_", "warren_api_"] {
        assert!(samples.keys().any(|key| key.starts_with(part)), "no {part}*");
    }
    // Of each container, by what the kernel counts.
    let of = |service: &str, name: &str| {
        let samples = metrics(host);
        let mine = |key: &&String| key.starts_with(name) && key.contains(&format!("service=\"{service}\""));
        samples.keys().filter(mine).map(|key| samples[key]).sum::<f64>()
    };
    for (service, name, least) in
        [("busy", "container_cpu_seconds_total", 0.2), ("web", "container_memory_bytes", 10_000.0)]
    {
        eventually(SOON, &format!("{name} of {service}"), || {
            let found = of(service, name);
            if found > least { Ok(()) } else { Err(found.to_string()) }
        });
    }
    let samples = metrics(host);
    for name in [
        "container_network_receive_bytes_total",
        "container_network_transmit_bytes_total",
        "container_block_read_bytes_total",
        "container_block_written_bytes_total",
    ] {
        assert!(samples.keys().any(|key| key.starts_with(name)), "{name}");
    }
    // The same for people.
    let top = eventually(SOON, "usage of the busy one", || {
        let top = world.warren().json(&["service", "top", "busy"]);
        let cpu = top[0]["usage"]["cpu"].as_str().and_then(|cpu| cpu.parse::<f64>().ok());
        if cpu.is_some_and(|cpu| cpu > 0.1) { Ok(top) } else { Err(top.to_string()) }
    });
    assert!(top[0]["usage"]["memory"].as_str().is_some_and(|memory| memory != "0B"), "{top}");
    assert!(world.ok("node ls -o wide").contains("CPU"));
    // Figures of tasks that are gone go with them.
    world.ok("service rm busy web failing hungry sick");
    eventually(SOON, "no figures of what is gone", || {
        let left: Vec<String> =
            metrics(host).into_keys().filter(|key| key.contains("service=\"busy\"")).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
}

#[test]
fn an_address_that_is_taken_is_told() {
    let mut world = World::new();
    // The address of the figures is somebody else's.
    world.node.stop();
    let _occupant = world.occupy(9090);
    world.node.run_again();
    let status = world.node.process().wait(SOON);
    assert_eq!(status.code(), Some(CONFLICT));
    let said = world.node.process().log_tail(5);
    assert!(said.contains("127.0.0.1:9090") && said.contains("--metrics-listen"), "{said}");
}

#[test]
fn nothing_listens_where_nothing_shall() {
    let world = World::with(Settings::default().argument("--metrics-listen").argument("none"));
    let mut ss = world.node.host().command("ss");
    ss.args(["-Hlnt", "sport = :9090"]);
    assert_eq!(tool::stdout(ss, Duration::from_secs(5)).unwrap(), "");
}
