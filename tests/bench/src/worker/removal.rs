//! All containers of an agent are removed at once: what is waited for in turns shows here.

use std::time::Instant;

use anyhow::{Context, ensure};
use jiff::Timestamp;

use super::Scale;
use super::idle::SERVICE;
use super::world::World;
use crate::figures::Figures;

pub fn measure(figures: &mut Figures, world: &mut World, scale: Scale) -> anyhow::Result<()> {
    let read = world.worker.process().log().len();
    let (start, said) = (Instant::now(), Timestamp::now());
    world.warren().ok(&["service", "rm", SERVICE]);
    let took = start.elapsed().as_secs_f64();
    let left = world.pids()?;
    ensure!(left.is_empty(), "no container should be left, found {left:?}");
    let log = world.worker.process().log();
    let lines = log.get(read..).unwrap_or_default().lines();
    let removed = lines.filter(|line| line.contains(": done ") && line.contains(" verb=RemoveContainer "));
    let times = removed.filter_map(|line| line.split(' ').next()?.parse::<Timestamp>().ok());
    let times: Vec<i64> = times.map(|time| time.as_microsecond() - said.as_microsecond()).collect();
    ensure!(times.len() == scale.containers, "{} containers were removed, says the agent", times.len());
    let first = times.iter().min().context("a container was removed")?;
    let what = format!("service rm of {} tasks", scale.containers);
    figures.add(&format!("{what}: whole command"), took, "s", "");
    figures.add(&format!("{what}: the first is removed after"), *first as f64 / 1e6, "s", "");
    Ok(())
}
