//! `/health`, `/ready` and `/metrics` of a node, each also in a failing state.

use std::collections::BTreeMap;

use nix::sys::signal::{self, Signal};
use warren_testkit::netns::LabHost;
use warren_testkit::node::NodeOptions;
use warren_testkit::tool;
use warren_testkit::wait::{WaitResult, eventually};

use crate::e2e::cluster::WorkerCluster;
use crate::e2e::fixture::{BOX, NodeFixture, SOON, WEB, containerd_of};
use crate::e2e::task_document;

const CONFLICT: i32 = 4;

/// The status and the body of `path` on `host`.
fn try_get(host: &LabHost, path: &str) -> WaitResult<(String, String)> {
    let mut curl = host.command("curl");
    curl.args(["--silent", "--show-error", "--max-time", "5", "--write-out", "\n%{http_code}"]);
    curl.arg(format!("http://127.0.0.1:9090{path}"));
    let output = tool::stdout(curl, tool::DEADLINE).map_err(|error| error.to_string())?;
    let (body, status) = output.rsplit_once('\n').unwrap();
    Ok((status.to_owned(), body.to_owned()))
}

#[track_caller]
fn get(host: &LabHost, path: &str) -> (String, String) {
    try_get(host, path).unwrap()
}

/// Waits until `path` answers with `status` and a body that contains `reason`.
#[track_caller]
pub(super) fn wait_for_status(host: &LabHost, path: &str, status: &str, reason: &str) {
    eventually(SOON, &format!("{path} to answer {status} and {reason:?}"), || {
        let (found, body) = try_get(host, path)?;
        if found == status && body.contains(reason) { Ok(()) } else { Err(format!("{found}: {body}")) }
    });
}

/// The samples of `/metrics` by name and labels.
fn try_metrics(host: &LabHost) -> WaitResult<BTreeMap<String, f64>> {
    let (status, body) = try_get(host, "/metrics")?;
    if status != "200" {
        return Err(format!("{status}: {body}"));
    }
    let samples = body.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let samples = samples.map(|line| {
        let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line}")))
    });
    Ok(samples.collect())
}

/// Waits for the samples of `/metrics`.
#[track_caller]
fn metrics(host: &LabHost) -> BTreeMap<String, f64> {
    eventually(SOON, "the metrics", || try_metrics(host))
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
fn worker_is_ready_only_with_session_and_containerd() {
    let mut cluster = WorkerCluster::new(1);
    let worker = &cluster.workers[0];
    wait_for_status(worker.host(), "/health", "200", "");
    wait_for_status(worker.host(), "/ready", "200", "");
    assert_eq!(get(worker.host(), "/nothing").0, "404");
    wait_for_status(cluster.manager.host(), "/ready", "200", "");
    // A containerd that does not answer.
    let containerd = containerd_of(worker);
    signal::kill(containerd, Signal::SIGSTOP).unwrap();
    wait_for_status(worker.host(), "/ready", "503", "containerd");
    wait_for_status(worker.host(), "/health", "200", "");
    let down = |expected: bool| {
        eventually(2 * SOON, "the node's condition", || {
            let node = cluster.warren().json(&["node", "inspect", "w1"]).to_string();
            if node.contains("runtime unavailable") == expected { Ok(()) } else { Err(node) }
        });
    };
    down(true);
    // No new tasks are placed there.
    cluster.ok(&format!("service create web --detach --image {BOX} --command sleep --arg 1000"));
    eventually(SOON, "the reason", || {
        let tasks = task_document::of_service(&cluster.manager, "web");
        let reported = tasks.iter().any(|task| task.state == "PENDING" && task.reason.contains("containerd"));
        if reported { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
    signal::kill(containerd, Signal::SIGCONT).unwrap();
    wait_for_status(worker.host(), "/ready", "200", "");
    down(false);
    cluster.wait_serving("web", 1);
    // No manager.
    cluster.manager.process().pause();
    wait_for_status(cluster.workers[0].host(), "/ready", "503", "session");
    cluster.manager.process().resume();
    wait_for_status(cluster.workers[0].host(), "/ready", "200", "");
}

#[test]
fn metrics_change_with_activity() {
    let world = NodeFixture::new();
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
    world.wait_serving("web", 2);
    world.wait_serving("busy", 1);
    let grown = [
        "worker_task_failures_total",
        "container_restarts_total",
        "container_oom_kills_total",
        "container_health_check_failures_total",
        "worker_task_start_duration_seconds_count",
        "warren_raft_applied_index",
    ];
    eventually(2 * SOON, "the figures to grow", || {
        let now = try_metrics(host)?;
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
    for name in [
        "worker_heartbeat_failures_total",
        "node_cpu_used_cores",
        "node_memory_used_bytes",
        "node_disk_used_bytes",
    ] {
        assert!(sum(&samples, name) >= 0.0);
    }
    assert!(sum(&samples, "worker_tasks_running") >= 3.0);
    assert!(sum(&samples, "node_memory_used_bytes") > 1e6 && sum(&samples, "node_disk_used_bytes") > 1e6);
    for name in ["warren_nodes", "warren_tasks", "warren_services"] {
        assert!(sum(&samples, name) >= 1.0, "{name}");
    }
    for part in ["warren_raft_", "warren_scheduler_", "warren_background_task_", "warren_api_"] {
        assert!(samples.keys().any(|key| key.starts_with(part)), "no {part}*");
    }
    // For each container, from the kernel's counters.
    let of = |service: &str, name: &str| -> WaitResult<f64> {
        let samples = try_metrics(host)?;
        let mine = |key: &&String| key.starts_with(name) && key.contains(&format!("service=\"{service}\""));
        Ok(samples.keys().filter(mine).map(|key| samples[key]).sum())
    };
    for (service, name, least) in
        [("busy", "container_cpu_seconds_total", 0.2), ("web", "container_memory_bytes", 10_000.0)]
    {
        eventually(SOON, &format!("{name} of {service}"), || {
            let found = of(service, name)?;
            if found > least { Ok(()) } else { Err(found.to_string()) }
        });
    }
    let samples = metrics(host);
    for name in [
        "container_network_receive_bytes_total",
        "container_network_transmit_bytes_total",
        "container_block_read_bytes_total",
        "container_block_write_bytes_total",
    ] {
        assert!(samples.keys().any(|key| key.starts_with(name)), "{name}");
    }
    // The same in the CLI.
    let top = eventually(SOON, "usage of the busy one", || {
        let top = world.warren().json(&["service", "top", "busy"]);
        let cpu = top[0]["usage"]["cpu"].as_str().and_then(|cpu| cpu.parse::<f64>().ok());
        if cpu.is_some_and(|cpu| cpu > 0.1) { Ok(top) } else { Err(top.to_string()) }
    });
    assert!(top[0]["usage"]["memory"].as_str().is_some_and(|memory| memory != "0B"), "{top}");
    assert!(world.ok("node ls -o wide").contains("CPU"));
    // Metrics of removed tasks are removed.
    world.ok("service rm busy web failing hungry sick");
    eventually(SOON, "the removal of metrics of removed tasks", || {
        let left = try_metrics(host)?.into_keys().filter(|key| key.contains("service=\"busy\""));
        let left: Vec<String> = left.collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
}

#[test]
fn used_metrics_address_is_reported() {
    let mut world = NodeFixture::with_box();
    // Another process listens on the metrics address.
    world.node.stop();
    let _occupant = world.occupy(9090);
    world.node.run_again();
    let status = world.node.process().wait(SOON);
    assert_eq!(status.code(), Some(CONFLICT));
    let output = world.node.process().log_tail(5);
    assert!(output.contains("127.0.0.1:9090") && output.contains("--metrics-listen"), "{output}");
}

#[test]
fn metrics_none_opens_no_port() {
    let world = NodeFixture::bare(NodeOptions::default().argument("--metrics-listen").argument("none"));
    let mut ss = world.node.host().command("ss");
    ss.args(["-Hlnt", "sport = :9090"]);
    assert_eq!(tool::stdout(ss, tool::DEADLINE).unwrap(), "");
}
