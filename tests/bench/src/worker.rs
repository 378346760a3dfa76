//! A worker on real containers: the cost of an idle agent, the time until it adopts containers, the time of a
//! stop, and whether it loses a line of a container that writes much.
//!
//! The worker joined a manager without tasks; with the argument `hybrid` one node is both. `quick` makes all
//! of it smaller, for a trial. Times do not fail the run, but each part fails when its subject is wrong: a
//! container with another process, a missing line.

mod adoption;
mod checks;
mod fixture;
mod idle;
mod logs;
mod processes;
mod removal;
mod secrets;
mod stopping;

use std::time::Duration;

use crate::figures::BenchFigures;
use fixture::WorkerBench;

/// The amount of work.
#[derive(Debug, Clone, Copy)]
pub struct WorkerBenchScale {
    /// For an idle node.
    containers: usize,
    /// The observation time.
    observed_for: Duration,
    /// Stops.
    stops: usize,
    /// Starts of the agent.
    adoptions: usize,
    /// How long a container writes.
    writing: Duration,
    is_hybrid: bool,
}

impl WorkerBenchScale {
    /// The scale selected by the arguments.
    #[must_use]
    pub fn of(words: &[String]) -> WorkerBenchScale {
        let is_hybrid = words.iter().any(|keyword| keyword == "hybrid");
        if words.iter().any(|keyword| keyword == "quick") {
            let (watched, writing) = (Duration::from_secs(30), Duration::from_secs(2));
            return WorkerBenchScale {
                containers: 10,
                observed_for: watched,
                stops: 3,
                adoptions: 2,
                writing,
                is_hybrid,
            };
        }
        let (watched, writing) = (Duration::from_secs(60), Duration::from_secs(10));
        WorkerBenchScale {
            containers: 100,
            observed_for: watched,
            stops: 20,
            adoptions: 5,
            writing,
            is_hybrid,
        }
    }
}

/// Memory and CPU of an agent with many containers, then their adoption, and the time to remove all of them.
pub fn measure_many(figures: &mut BenchFigures, scale: WorkerBenchScale) -> anyhow::Result<()> {
    println!("\na worker with {} containers", scale.containers);
    let mut world = WorkerBench::start(scale);
    idle::measure(figures, &mut world, scale)?;
    adoption::measure(figures, &mut world, scale)?;
    removal::measure(figures, &mut world, scale)
}

/// The cost of health checks.
pub fn measure_checks(figures: &mut BenchFigures, scale: WorkerBenchScale) -> anyhow::Result<()> {
    println!("\na worker whose containers are checked");
    checks::measure(figures, &mut WorkerBench::start(scale), scale)
}

/// Whether secrets slow down starts.
pub fn measure_secrets(figures: &mut BenchFigures, scale: WorkerBenchScale) -> anyhow::Result<()> {
    println!("\na worker whose tasks have secrets");
    secrets::measure(figures, &mut WorkerBench::start(scale), scale)
}

/// Stops of single containers.
pub fn measure_stops(figures: &mut BenchFigures, scale: WorkerBenchScale) -> anyhow::Result<()> {
    println!("\na worker whose containers are stopped");
    stopping::measure(figures, &mut WorkerBench::start(scale), scale)
}

/// One container that writes much.
pub fn measure_logs(figures: &mut BenchFigures, scale: WorkerBenchScale) -> anyhow::Result<()> {
    println!("\na worker with a container that writes 100 MB/s");
    logs::measure(figures, &mut WorkerBench::start(scale), scale)
}
