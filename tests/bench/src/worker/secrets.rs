//! Whether secrets slow down task starts: services with ten secrets each and without, started alternately.

use std::time::Instant;

use anyhow::ensure;
use warren_testkit::wait::try_eventually;

use super::WorkerBenchScale;
use super::fixture::{BOX, SOON, WorkerBench, image};
use crate::figures::BenchFigures;

/// Secrets of each task.
const EACH: usize = 10;
/// Starts of both kinds.
const ROUNDS: usize = 5;

pub fn measure(
    figures: &mut BenchFigures,
    world: &mut WorkerBench,
    scale: WorkerBenchScale,
) -> anyhow::Result<()> {
    world.import(&image())?;
    let count = scale.containers;
    let file = world.worker.scratch().join("secret");
    std::fs::write(&file, [b's'; 1024])?;
    let file = file.display().to_string();
    for number in 0..count * EACH {
        world.warren().run_ok(&["secret", "create", &format!("s{number}"), &file]);
    }
    for place in 0..count {
        let (with, without) = (format!("with{place}"), format!("without{place}"));
        let secrets: Vec<String> = (0..EACH).map(|one| format!("s{}", place * EACH + one)).collect();
        let flags: Vec<&str> = secrets.iter().flat_map(|secret| ["--secret", secret]).collect();
        let words =
            |name| ["service", "create", name, "--image", BOX, "--replicas", "0", "--stop-grace", "0s"];
        world.warren().run_ok(&[&words(&with)[..], &flags].concat());
        world.warren().run_ok(&words(&without));
    }
    let (mut with, mut without, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let plain = start(world, "without", count)?;
        let secret = start(world, "with", count)?;
        ratios.push(secret / plain);
        without.push(plain);
        with.push(secret);
    }
    let what = |with: &str| format!("{count} tasks started at once, {with}");
    figures.add_samples(&what("no secrets"), &without, "s", "");
    figures.add_samples(&what(&format!("{EACH} secrets of 1 KiB each")), &with, "s", "");
    figures.add_samples("with / without, pair by pair", &ratios, "x", "< 1.10");
    Ok(())
}

/// Scales all services of a kind to one task; returns the time until all run, and scales them back.
fn start(world: &WorkerBench, kind: &str, count: usize) -> anyhow::Result<f64> {
    let scale = |replicas: usize| -> Vec<String> {
        (0..count).map(|place| format!("{kind}{place}={replicas}")).collect()
    };
    let run = |words: &[String]| {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        world.warren().run_ok(&[&["service", "scale", "--detach"][..], &words].concat());
    };
    let (up, down) = (scale(1), scale(0));
    let begin = Instant::now();
    run(&up);
    let running = |expected: usize| {
        try_eventually(SOON, &format!("{expected} containers"), || {
            let found = world.pids().map_err(|error| error.to_string())?.len();
            if found == expected { Ok(()) } else { Err(format!("{found}")) }
        })
    };
    running(count)?;
    let taken = begin.elapsed().as_secs_f64();
    run(&down);
    running(0)?;
    ensure!(taken > 0.0, "time passes");
    Ok(taken)
}
