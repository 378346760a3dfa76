//! Measures this machine: prints a row per figure and writes them all to `target/bench.json`.
//!
//! What has a peer is measured alternately with it in the same run, and the ratio is taken pair by pair, so
//! that a noisy machine affects both. The targets are printed beside the figures; no figure fails the run.
//! Run by `make bench`. Start reading at [`figures`]; `scheduling` measures the pure core, `commits` the log
//! below the API, `snapshot` the cost of a snapshot for concurrent writers, `node` a real node on real containers,
//! `stack` the deployment of a stack, `ingress` a port beside HAProxy, `dns` the DNS server, `worker` an agent with
//! the parts `worker-many`, `worker-stops`, `worker-logs`, `worker-checks` and `worker-secrets`; `managers` several
//! managers with simulated workers: `managers-commits`, `managers-failover`, `managers-deploy`, `managers-memory`,
//! `managers-idle`, `managers-losses`, `managers-removal` and `managers-endpoints`. Arguments select the parts; for
//! `quick` and `hybrid` see [`worker`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod allocator;
mod commits;
mod dns;
mod figures;
mod ingress;
mod multi_manager;
mod node;
mod scheduling;
mod snapshot;
mod stack;
mod worker;

use std::path::Path;

use anyhow::{Context, ensure};

use figures::BenchFigures;

#[global_allocator]
static COUNTING: allocator::BenchAllocator = allocator::BenchAllocator;

/// The parts that can be measured separately.
const PARTS: [&str; 22] = [
    "scheduling",
    "commits",
    "snapshot",
    "node",
    "stack",
    "ingress",
    "dns",
    "worker",
    "worker-many",
    "worker-stops",
    "worker-logs",
    "worker-checks",
    "worker-secrets",
    "managers",
    "managers-commits",
    "managers-failover",
    "managers-deploy",
    "managers-memory",
    "managers-idle",
    "managers-losses",
    "managers-removal",
    "managers-endpoints",
];

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|keyword| keyword == multi_manager::FAKE_WORKERS) {
        return multi_manager::fake_worker_process::main(&words[1..]);
    }
    if words.first().is_some_and(|keyword| keyword == dns::SERVER) {
        return dns::serve();
    }
    let (how, only): (Vec<String>, Vec<String>) =
        words.into_iter().partition(|keyword| ["quick", "hybrid"].contains(&keyword.as_str()));
    let unknown: Vec<&String> = only.iter().filter(|keyword| !PARTS.contains(&keyword.as_str())).collect();
    ensure!(unknown.is_empty(), "{unknown:?} cannot be measured; choose of {PARTS:?}, quick, hybrid");
    let expected = |name: &str| only.is_empty() || only.iter().any(|part| part == name);
    let of_worker = |name: &str| expected(name) || expected("worker");
    let scale = worker::WorkerBenchScale::of(&how);
    let mut figures = BenchFigures::default();
    if expected("scheduling") {
        scheduling::measure(&mut figures);
    }
    if expected("commits") {
        commits::measure(&mut figures)?;
    }
    if expected("snapshot") {
        snapshot::measure(&mut figures)?;
    }
    if expected("node") {
        node::measure(&mut figures)?;
    }
    if expected("stack") {
        stack::measure(&mut figures)?;
    }
    if expected("ingress") {
        ingress::measure(&mut figures)?;
    }
    if expected("dns") {
        dns::measure(&mut figures)?;
    }
    if of_worker("worker-many") {
        worker::measure_many(&mut figures, scale)?;
    }
    if of_worker("worker-stops") {
        worker::measure_stops(&mut figures, scale)?;
    }
    if of_worker("worker-logs") {
        worker::measure_logs(&mut figures, scale)?;
    }
    if of_worker("worker-checks") {
        worker::measure_checks(&mut figures, scale)?;
    }
    if of_worker("worker-secrets") {
        worker::measure_secrets(&mut figures, scale)?;
    }
    let of_managers = |name: &str| expected(name) || expected("managers");
    let scale = multi_manager::ManagerBenchScale::of(&how);
    if of_managers("managers-commits") {
        multi_manager::measure_commits(&mut figures)?;
    }
    if of_managers("managers-failover") {
        multi_manager::measure_failover(&mut figures, scale)?;
    }
    for part in multi_manager::WorkerLoad::ALL {
        if of_managers(part.name()) {
            multi_manager::measure_load(&mut figures, part, scale)?;
        }
    }
    let path = Path::new("target/bench.json");
    std::fs::write(path, figures.to_json()).with_context(|| format!("writing {}", path.display()))?;
    println!("\nwritten to {}", path.display());
    Ok(())
}
