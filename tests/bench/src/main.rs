//! Measures this machine: prints a row per figure and writes them all to `target/bench.json`.
//!
//! What has a peer is measured in turn with it in the same run, and the ratio is taken pair by pair, so that a noisy
//! machine disturbs both. Nothing here judges; the aims stand beside the figures. Run by `make bench`.
//! Start reading at [`figures`]; `deciding` measures the pure core, `commits` the log below
//! the API, `snapshot` what a snapshot costs those who write meanwhile, `node` a real node on real containers.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod allocator;
mod commits;
mod deciding;
mod figures;
mod node;
mod snapshot;

use std::path::Path;

use anyhow::Context;

use figures::Figures;

#[global_allocator]
static COUNTING: allocator::Counting = allocator::Counting;

fn main() -> anyhow::Result<()> {
    let only: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |name: &str| only.is_empty() || only.iter().any(|arg| arg == name);
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
    let path = Path::new("target/bench.json");
    std::fs::write(path, figures.to_json()).with_context(|| format!("writing {}", path.display()))?;
    println!("\nwritten to {}", path.display());
    Ok(())
}
