//! All containers of an agent are removed at once: shows where removals wait for each other.

use std::time::Instant;

use anyhow::{Context, ensure};
use jiff::Timestamp;

use super::WorkerBenchScale;
use super::fixture::WorkerBench;
use super::idle::SERVICE;
use crate::figures::BenchFigures;

pub fn measure(
    figures: &mut BenchFigures,
    world: &mut WorkerBench,
    scale: WorkerBenchScale,
) -> anyhow::Result<()> {
    let read = world.worker.process().log().len();
    let (start, started_at) = (Instant::now(), Timestamp::now());
    world.warren().run_ok(&["service", "rm", SERVICE]);
    let took = start.elapsed().as_secs_f64();
    let left = world.pids()?;
    ensure!(left.is_empty(), "no container should be left, found {left:?}");
    let log = world.worker.process().log();
    let lines = log.get(read..).unwrap_or_default().lines();
    let removed = lines
        .filter(|line| line.contains(": action completed ") && line.contains(" action=RemoveContainer "));
    let times = removed.filter_map(|line| line.split(' ').next()?.parse::<Timestamp>().ok());
    let times: Vec<i64> = times.map(|time| time.as_microsecond() - started_at.as_microsecond()).collect();
    ensure!(
        times.len() == scale.containers,
        "{} containers were removed, by the log of the agent",
        times.len()
    );
    let first = times.iter().min().context("a container was removed")?;
    let what = format!("service rm of {} tasks", scale.containers);
    figures.add(&format!("{what}: whole command"), took, "s", "");
    figures.add(&format!("{what}: the first is removed after"), *first as f64 / 1e6, "s", "");
    Ok(())
}
