//! The cost of health checks: the agent's CPU with many HTTP checks, and one exec check compared to `ctr task
//! exec`.

use std::time::Instant;

use anyhow::{Context, ensure};
use warren_testkit::containerd::ctr;
use warren_testkit::tool;
use warren_testkit::wait::try_eventually;

use super::WorkerBenchScale;
use super::fixture::{BOX, SOON, WorkerBench, image};
use super::processes::{self, CONTAINERD, SHIM};
use crate::figures::BenchFigures;
use crate::node::{cpu_seconds, cpu_seconds_with_children};

const HTTP: &str = "checked";
const EXEC: &str = "executed";

pub fn measure(
    figures: &mut BenchFigures,
    world: &mut WorkerBench,
    scale: WorkerBenchScale,
) -> anyhow::Result<()> {
    world.import(&image())?;
    http(figures, world, scale)?;
    exec(figures, world, scale)
}

fn http(figures: &mut BenchFigures, world: &mut WorkerBench, scale: WorkerBenchScale) -> anyhow::Result<()> {
    let count = scale.containers.to_string();
    let words = ["service", "create", HTTP, "--image", BOX, "--stop-grace", "0s", "--replicas", &count];
    let serve =
        ["--command", "httpd", "--arg", "-f", "--arg", "-p", "--arg", "80", "--arg", "-h", "--arg", "/etc"];
    let check = ["--health-http", ":80/passwd", "--health-interval", "5s"];
    world.warren().run_ok(&[&words[..], &check, &serve].concat());
    let agent = world.agent();
    std::thread::sleep(scale.observed_for / 3);
    let before = cpu_seconds(agent)?;
    // Not a wait for something: what is measured is this time itself.
    std::thread::sleep(scale.observed_for);
    let share = (cpu_seconds(agent)? - before) / scale.observed_for.as_secs_f64() * 100.0;
    let what = format!(
        "{count} containers with an HTTP check every 5 s, {:?}: CPU of the agent",
        scale.observed_for
    );
    figures.add(&what, share, "% of core", "< 1");
    let tasks = world.warren().json(&["service", "ps", HTTP]);
    let ready =
        tasks.as_array().map(Vec::as_slice).unwrap_or_default().iter().filter(|task| task["ready"] == true);
    ensure!(ready.count() == scale.containers, "all are healthy after it: {tasks}");
    world.warren().run_ok(&["service", "rm", HTTP]);
    Ok(())
}

/// The same command, `true`, in the same container.
fn exec(figures: &mut BenchFigures, world: &mut WorkerBench, scale: WorkerBenchScale) -> anyhow::Result<()> {
    let words = ["service", "create", EXEC, "--image", BOX, "--stop-grace", "0s"];
    let check = ["--health-cmd", "true", "--health-interval", "100ms"];
    world.warren().run_ok(&[&words[..], &check].concat());
    let (id, _) = world.only_task(EXEC)?;
    let agent = world.agent();
    let done = |world: &WorkerBench| -> anyhow::Result<f64> { world.metric("health_checks_total") };
    let (checks, spent) = (done(world)?, cpu_seconds_with_children(agent)?);
    std::thread::sleep(scale.observed_for / 3);
    let checks = done(world)? - checks;
    ensure!(checks > 10.0, "only {checks} checks were done");
    let cost = (cpu_seconds_with_children(agent)? - spent) / checks * 1000.0;
    figures.add("an exec check: CPU of the agent and what it runs", cost, "ms", "");
    let shown = world.warren().json(&["task", "inspect", &id]);
    let results = shown["checks"].as_array().context("a task shows its checks")?;
    let walls: Vec<f64> =
        results.iter().filter_map(|check| check["durationUs"].as_f64()).map(|us| us / 1000.0).collect();
    figures.add_samples("an exec check: from start to end", &walls, "ms", "");
    world.warren().run_ok(&["service", "update", EXEC, "--no-health"]);
    let (id, _) = world.only_serving(EXEC)?;
    let mut parts = processes::of_kind(&world.worker, CONTAINERD);
    parts.extend(processes::of_kind(&world.worker, SHIM));
    let before = processes::cpu_of_all(&parts)?;
    let own = i32::try_from(std::process::id())?;
    let clients = cpu_seconds_with_children(own)? - cpu_seconds(own)?;
    let mut walls = Vec::new();
    for round in 0..scale.stops.max(5) {
        let name = format!("bench-{round}");
        let words = ["--namespace", "warren", "tasks", "exec", "--exec-id", &name, &id, "true"];
        let begin = Instant::now();
        tool::stdout(ctr(&world.worker.containerd_socket(), words), tool::DEADLINE)?;
        walls.push(begin.elapsed().as_secs_f64() * 1000.0);
    }
    let clients = cpu_seconds_with_children(own)? - cpu_seconds(own)? - clients;
    let parts = processes::cpu_of_all(&parts)? - before;
    figures.add_samples("`ctr task exec`: from start to end", &walls, "ms", "");
    let each = (clients + parts) / walls.len() as f64 * 1000.0;
    figures.add("`ctr task exec`: CPU of ctr, containerd and shim, without runc", each, "ms", "");
    world.warren().run_ok(&["service", "rm", EXEC]);
    try_eventually(SOON, "no container", || {
        let left = world.pids().map_err(|error| error.to_string())?;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })?;
    Ok(())
}
