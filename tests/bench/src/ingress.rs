//! A port in ingress mode beside HAProxy in TCP mode, in front of the same task on another node, and beside the way to
//! the task's own address from the entry node: requests per second, latency, and the CPU time of the whole machine per
//! request.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, ensure};
use warren_testkit::http_load::{HttpClient, HttpLoad};
use warren_testkit::image::PackedImage;
use warren_testkit::netns::{LabHost, NetworkSwitch};
use warren_testkit::node::{LabNode, NodeOptions};
use warren_testkit::process::ChildProcess;
use warren_testkit::wait::eventually;
use warren_testkit::{demo, tool};

use crate::figures::BenchFigures;
use crate::node::machine_cpu_seconds;

/// Pairs of runs.
const ROUNDS: usize = 5;
/// The duration of a run.
const RUN: Duration = Duration::from_secs(8);
/// Clients at the same time.
const CLIENTS: usize = 8;
const INGRESS_PORT: u16 = 8088;
/// Of the same tasks, on their own node.
const HOST_PORT: u16 = 8091;
const PROXY_PORT: u16 = 8090;

pub fn measure(figures: &mut BenchFigures) -> anyhow::Result<()> {
    println!("\na port in ingress mode and HAProxy, in front of the same task on another node");
    let lab = NetworkSwitch::new();
    let manager = LabNode::start_manager(lab.add_host(), NodeOptions::default());
    let join = |name| LabNode::join(lab.add_host(), NodeOptions::default(), &manager, name);
    let (entry, server) = (join("entry"), join("server"));
    let archive = manager.scratch().join("web.tar");
    let image: PackedImage = demo::image(demo::REFERENCE)?.oci_archive();
    image.write(&archive)?;
    let warren = manager.warren();
    warren.run_ok(&["image", "import", archive.to_str().context("a path in UTF-8")?]);
    let ingress = format!("{INGRESS_PORT}:80");
    let host = format!("{HOST_PORT}:80,mode=host");
    let placement = "node.name==server";
    warren.run_ok(
        &[
            &["service", "create", "web", "--image", demo::REFERENCE, "--constraint", placement][..],
            &["--publish", &ingress, "--publish", &host, "--health-http", ":80/healthz"],
        ]
        .concat(),
    );
    let proxy_host = lab.add_host();
    let proxy = start_proxy(&proxy_host, &manager, (server.host().address(), HOST_PORT).into())?;
    let task: serde_json::Value =
        serde_json::from_str(&warren.run_ok(&["task", "inspect", "web.1", "-o", "json"]))?;
    let task = task["address"].as_str().context("the task has an address")?.parse::<IpAddr>()?;
    let client = lab.add_host();
    let targets = [
        BenchTarget {
            name: "ingress port of another node",
            client: &client,
            address: (entry.host().address(), INGRESS_PORT).into(),
        },
        BenchTarget {
            name: "HAProxy on another node",
            client: &client,
            address: (proxy_host.address(), PROXY_PORT).into(),
        },
        BenchTarget {
            name: "the task's own address from the entry node",
            client: entry.host(),
            address: (task, 80).into(),
        },
    ];
    // More than the connections of a minute, so that none waits for a port that a closed one still holds.
    for host in [&client, entry.host(), &proxy_host] {
        let mut ports = host.command("sysctl");
        ports.args(["-w", "net.ipv4.ip_local_port_range=1024 65535"]);
        tool::stdout(ports, tool::DEADLINE)?;
    }
    for keeps_connection in [false, true] {
        compare(figures, &targets, keeps_connection)?;
    }
    drop(proxy);
    Ok(())
}

/// A way to the task.
struct BenchTarget<'a> {
    name: &'static str,
    client: &'a LabHost,
    address: SocketAddr,
}

/// HAProxy on a host of its own.
fn start_proxy(host: &LabHost, manager: &LabNode, server: SocketAddr) -> anyhow::Result<ChildProcess> {
    let settings = format!(
        "global\n  maxconn 1000\ndefaults\n  mode tcp\n  timeout connect 5s\n  timeout client 60s\n  \
         timeout server 60s\nlisten web\n  bind :{PROXY_PORT}\n  server web {server}\n"
    );
    let (path, log) = (manager.scratch().join("haproxy.cfg"), manager.scratch().join("haproxy.log"));
    std::fs::write(&path, settings)?;
    let mut command = host.command("haproxy");
    command.arg("-db").arg("-f").arg(&path);
    Ok(ChildProcess::spawn("haproxy", command, &log))
}

/// What clients of one target saw.
struct RunFigures {
    per_second: f64,
    /// The 99th percentile, in milliseconds.
    p99: f64,
    /// CPU time of the machine per 1,000 requests, with clients and server.
    cpu_seconds: f64,
}

fn run(target: &BenchTarget<'_>, keeps_connection: bool) -> anyhow::Result<RunFigures> {
    let client = HttpClient {
        namespace: target.client.netns().path(),
        target: target.address,
        keeps_connection,
        pause: Duration::ZERO,
    };
    let before = machine_cpu_seconds()?;
    let load = HttpLoad::start(std::iter::repeat_n(client, CLIENTS));
    // Not a wait for something: what is measured is this time itself.
    std::thread::sleep(RUN);
    let mut report = load.end();
    let cpu = machine_cpu_seconds()? - before;
    ensure!(report.failures.is_empty(), "{}: {:?}", report.failures.len(), report.failures.first());
    report.latencies.sort();
    let count = report.latencies.len();
    let p99 = report.latencies.get(count * 99 / 100).context("no request was answered")?;
    Ok(RunFigures {
        per_second: count as f64 / RUN.as_secs_f64(),
        p99: p99.as_secs_f64() * 1000.0,
        cpu_seconds: cpu / count as f64 * 1000.0,
    })
}

fn compare(
    figures: &mut BenchFigures,
    targets: &[BenchTarget<'_>; 3],
    keeps_connection: bool,
) -> anyhow::Result<()> {
    for BenchTarget { client, address, .. } in targets {
        eventually(Duration::from_secs(30), "an answer", || {
            let mut curl = client.command("curl");
            curl.args(["-sS", "-m", "5", &format!("http://{address}/healthz")]);
            tool::stdout(curl, tool::DEADLINE).map_err(|error| error.to_string())
        });
    }
    let mut seen: [Vec<RunFigures>; 3] = Default::default();
    for _ in 0..ROUNDS {
        for (target, seen) in targets.iter().zip(&mut seen) {
            seen.push(run(target, keeps_connection)?);
        }
    }
    let how = if keeps_connection { "kept connections" } else { "a connection per request" };
    println!("{how}, {CLIENTS} clients");
    for (BenchTarget { name, .. }, seen) in targets.iter().zip(&seen) {
        let all = |of: fn(&RunFigures) -> f64| seen.iter().map(of).collect::<Vec<_>>();
        figures.add_samples(&format!("{name}, {how}"), &all(|run| run.per_second), "requests/s", "");
        figures.add_samples(&format!("{name}, {how}, 99 % within"), &all(|run| run.p99), "ms", "");
        let cpu = format!("{name}, {how}, CPU per 1,000 requests");
        figures.add_samples(&cpu, &all(|run| run.cpu_seconds), "s", "");
    }
    let [ingress, proxy, direct] = &seen;
    let ratio = |others: &[RunFigures], of: fn(&RunFigures) -> f64| -> Vec<f64> {
        ingress.iter().zip(others).map(|(own, other)| of(own) / of(other)).collect()
    };
    figures.add_samples(
        &format!("{how}: requests, ratio to HAProxy"),
        &ratio(proxy, |run| run.per_second),
        "x",
        "",
    );
    figures.add_samples(&format!("{how}: p99, ratio to HAProxy"), &ratio(proxy, |run| run.p99), "x", "");
    figures.add_samples(
        &format!("{how}: CPU, ratio to HAProxy"),
        &ratio(proxy, |run| run.cpu_seconds),
        "x",
        "",
    );
    let direct = ratio(direct, |run| run.per_second);
    figures.add_samples(
        &format!("{how}: requests, ratio to the way from the entry node"),
        &direct,
        "x",
        ">= 0.9",
    );
    Ok(())
}
