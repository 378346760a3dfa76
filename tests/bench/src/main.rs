//! Measures this machine: prints a row per figure and writes them all to `target/bench.json`.
//!
//! What has a peer is measured in turn with it in the same run, and the ratio is taken pair by pair, so that a noisy
//! machine disturbs both. Nothing here judges; the aims stand beside the figures. Run by `make bench`.
//! Start reading at [`figures`]; `deciding` measures the pure core, `commits` the log below the API, `snapshot` what a
//! snapshot costs those who write meanwhile, `node` a real node on real containers, `worker` the agent of one:
//! `worker-many`, `worker-stops`, `worker-logs`, `worker-checks` and `worker-contents` are its parts; `managers`
//! several managers with workers that pretend: `managers-commits`, `managers-failover`, `managers-deploy`,
//! `managers-memory`, `managers-idle` and `managers-losses`. Arguments choose what is measured; `quick` and `hybrid`
//! say how, see [`worker`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod allocator;
mod commits;
mod deciding;
mod figures;
mod managers;
mod node;
mod snapshot;
mod worker;

use std::path::Path;

use anyhow::{Context, ensure};

use figures::Figures;

#[global_allocator]
static COUNTING: allocator::Counting = allocator::Counting;

/// What can be measured by itself.
const PARTS: [&str; 17] = [
    "deciding",
    "commits",
    "snapshot",
    "node",
    "worker",
    "worker-many",
    "worker-stops",
    "worker-logs",
    "worker-checks",
    "worker-contents",
    "managers",
    "managers-commits",
    "managers-failover",
    "managers-deploy",
    "managers-memory",
    "managers-idle",
    "managers-losses",
];

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == managers::FAKE_WORKERS) {
        return managers::fake::main(&words[1..]);
    }
    let (how, only): (Vec<String>, Vec<String>) =
        words.into_iter().partition(|word| ["quick", "hybrid"].contains(&word.as_str()));
    let unknown: Vec<&String> = only.iter().filter(|word| !PARTS.contains(&word.as_str())).collect();
    ensure!(unknown.is_empty(), "{unknown:?} cannot be measured; choose of {PARTS:?}, quick, hybrid");
    let wanted = |name: &str| only.is_empty() || only.iter().any(|part| part == name);
    let of_worker = |name: &str| wanted(name) || wanted("worker");
    let scale = worker::Scale::of(&how);
    let mut figures = Figures::default();
    if wanted("deciding") {
        deciding::measure(&mut figures);
    }
    if wanted("commits") {
        commits::measure(&mut figures)?;
    }
    if wanted("snapshot") {
        snapshot::measure(&mut figures)?;
    }
    if wanted("node") {
        node::measure(&mut figures)?;
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
    if of_worker("worker-contents") {
        worker::measure_contents(&mut figures, scale)?;
    }
    let of_managers = |name: &str| wanted(name) || wanted("managers");
    let scale = managers::Scale::of(&how);
    if of_managers("managers-commits") {
        managers::measure_commits(&mut figures)?;
    }
    if of_managers("managers-failover") {
        managers::measure_failover(&mut figures, scale)?;
    }
    for part in managers::Load::ALL {
        if of_managers(part.word()) {
            managers::measure_load(&mut figures, part, scale)?;
        }
    }
    let path = Path::new("target/bench.json");
    std::fs::write(path, figures.to_json()).with_context(|| format!("writing {}", path.display()))?;
    println!("\nwritten to {}", path.display());
    Ok(())
}
