//! Several managers and simulated workers, in separate processes: figures of a control plane on one machine.
//!
//! Start reading at [`group`]; `fake_workers` starts the process of the workers, `fake_worker_process` runs
//! in it.

mod commits;
mod endpoints;
mod failover;
pub mod fake_worker_process;
mod fake_workers;
mod group;
mod load;
mod removal;
mod services;

/// The argument that runs this program as simulated workers.
pub use fake_workers::SUBCOMMAND as FAKE_WORKERS;
pub use load::WorkerLoad;

use std::time::Duration;

use crate::figures::BenchFigures;

/// The amount of work.
#[derive(Debug, Clone, Copy)]
pub struct ManagerBenchScale {
    kills: usize,
    /// Workers and replicas, with three managers and with one.
    three: (usize, u32),
    one: (usize, u32),
    /// One manager, and a service as large as clusters allow by default.
    default_limit: (usize, u32),
    /// Idle workers, and how long they are observed.
    idle: usize,
    observed_for: Duration,
    /// Tasks of the manager whose memory is measured, and of the service whose removal is measured.
    tasks: u32,
}

impl ManagerBenchScale {
    /// The scale selected by the arguments.
    pub fn of(words: &[String]) -> ManagerBenchScale {
        if words.iter().any(|keyword| keyword == "quick") {
            let watched = Duration::from_secs(10);
            return ManagerBenchScale {
                kills: 4,
                three: (20, 500),
                one: (50, 1_000),
                default_limit: (50, 500),
                idle: 500,
                observed_for: watched,
                tasks: 2_000,
            };
        }
        let watched = Duration::from_secs(30);
        ManagerBenchScale {
            kills: 50,
            three: (100, 5_000),
            one: (1_000, 20_000),
            default_limit: (1_000, 10_000),
            idle: 10_000,
            observed_for: watched,
            tasks: 100_000,
        }
    }
}

/// Durable commits.
pub fn measure_commits(figures: &mut BenchFigures) -> anyhow::Result<()> {
    println!(
        "\ndurable commits, three managers in processes of their own: creating services, mutual TLS on loopback"
    );
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    commits::measure(figures, &runtime)
}

/// The cost of losing a leader.
pub fn measure_failover(figures: &mut BenchFigures, scale: ManagerBenchScale) -> anyhow::Result<()> {
    println!("\nthree managers, the leader is killed {} times", scale.kills);
    failover::measure(figures, scale)
}

/// Many workers: one of several measurements.
pub fn measure_load(
    figures: &mut BenchFigures,
    part: WorkerLoad,
    scale: ManagerBenchScale,
) -> anyhow::Result<()> {
    println!("\nworkers that pretend to run tasks, over gRPC and TLS: {}", part.name());
    load::measure(figures, part, scale)
}
