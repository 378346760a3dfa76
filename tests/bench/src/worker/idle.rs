//! The cost of an idle agent: memory with and without tasks, CPU while nothing changes.

use anyhow::ensure;

use super::WorkerBenchScale;
use super::fixture::{WorkerBench, image};
use super::processes::{self, CONTAINERD, LOGGER, SHIM};
use crate::figures::BenchFigures;
use crate::node::cpu_seconds;

/// The service of all containers, which have no checks.
pub const SERVICE: &str = "idle";

pub fn measure(
    figures: &mut BenchFigures,
    world: &mut WorkerBench,
    scale: WorkerBenchScale,
) -> anyhow::Result<()> {
    let agent = world.agent();
    let (kind, aim) = if scale.is_hybrid { ("hybrid node", "") } else { ("agent", "< 15") };
    let fresh = processes::memory(agent)?;
    figures.add(&format!("{kind} with 0 tasks, RSS"), fresh.resident / 1024.0, "MiB", aim);
    figures.add(&format!("{kind} with 0 tasks, PSS"), fresh.proportional / 1024.0, "MiB", "");
    world.import(&image())?;
    let empty = processes::memory(agent)?;
    figures.add(
        &format!("{kind} with 0 tasks that imported an image, RSS"),
        empty.resident / 1024.0,
        "MiB",
        "",
    );
    let count = scale.containers;
    let replicas = count.to_string();
    let words = ["service", "create", SERVICE, "--image", super::fixture::BOX, "--stop-grace", "0s"];
    world.warren().run_ok(&[&words[..], &["--replicas", &replicas]].concat());
    let running = world.pids()?.len();
    ensure!(running == count, "{count} containers should run, found {running}");
    cpu(figures, world, scale)?;
    let full = processes::memory(agent)?;
    // After the observation, when temporary memory of the starts is returned.
    let growth = (full.resident - empty.resident) / count as f64;
    figures.add(&format!("{kind} with {count} tasks, RSS"), full.resident / 1024.0, "MiB", "");
    figures.add(&format!("growth per task, RSS of the {kind}"), growth, "KiB", "< 100");
    for kind in [SHIM, LOGGER] {
        let pids = processes::of_kind(&world.worker, kind);
        ensure!(pids.len() == count, "one {kind} for each of {count} containers, found {}", pids.len());
        let sum = processes::memory_of_all(&pids)?;
        figures.add(&format!("{kind} beside each task, RSS"), sum.resident / count as f64, "KiB", "");
        figures.add(&format!("{kind} beside each task, PSS"), sum.proportional / count as f64, "KiB", "");
    }
    Ok(())
}

/// While nothing changes.
fn cpu(figures: &mut BenchFigures, world: &mut WorkerBench, scale: WorkerBenchScale) -> anyhow::Result<()> {
    let agent = world.agent();
    let containerd = processes::of_kind(&world.worker, CONTAINERD);
    ensure!(containerd.len() == 1, "one containerd of the worker, found {containerd:?}");
    let before = world.pids()?;
    // Work after the starts is complete after the next list and sweep.
    std::thread::sleep(scale.observed_for / 3);
    let spent = (cpu_seconds(agent)?, cpu_seconds(containerd[0])?);
    // Not a wait for something: what is measured is this time itself.
    std::thread::sleep(scale.observed_for);
    let later = (cpu_seconds(agent)?, cpu_seconds(containerd[0])?);
    ensure!(world.pids()? == before, "containers changed while nothing should");
    let share = |from: f64, to: f64| (to - from) / scale.observed_for.as_secs_f64() * 100.0;
    let what = format!("{} containers, nothing changes, {:?}", before.len(), scale.observed_for);
    // A hybrid node's manager uses CPU as well.
    let aim = if scale.is_hybrid { "" } else { "< 0.5" };
    figures.add(&format!("{what}: CPU of the agent"), share(spent.0, later.0), "% of core", aim);
    figures.add(&format!("{what}: CPU of containerd"), share(spent.1, later.1), "% of core", "");
    Ok(())
}
