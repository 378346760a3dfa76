//! Several managers, and workers that only pretend to run tasks, each in processes of their own: what one machine shows
//! of a cluster's control plane.
//!
//! Start reading at [`group`]; `fakes` has the workers' process, `fake` is one of them.

mod commits;
mod failover;
pub mod fake;
mod fakes;
mod group;
mod load;

/// The word by which this program runs as workers that pretend.
pub use fakes::WORD as FAKE_WORKERS;
pub use load::Load;

use std::time::Duration;

use crate::figures::Figures;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    kills: usize,
    /// Workers and replicas, with three managers and with one.
    three: (usize, u32),
    one: (usize, u32),
    /// Workers that do nothing, and how long they are watched.
    idle: usize,
    watched: Duration,
    /// Tasks of the manager whose memory is looked at.
    tasks: u32,
}

impl Scale {
    /// What the words of the command line ask for.
    pub fn of(words: &[String]) -> Scale {
        if words.iter().any(|word| word == "quick") {
            let watched = Duration::from_secs(10);
            return Scale { kills: 4, three: (20, 500), one: (50, 1_000), idle: 500, watched, tasks: 2_000 };
        }
        let watched = Duration::from_secs(30);
        Scale { kills: 50, three: (100, 5_000), one: (1_000, 20_000), idle: 10_000, watched, tasks: 100_000 }
    }
}

/// Durable commits.
pub fn measure_commits(figures: &mut Figures) -> anyhow::Result<()> {
    println!(
        "\ndurable commits, three managers in processes of their own: creating services, mutual TLS on loopback"
    );
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    commits::measure(figures, &runtime)
}

/// What the loss of a leader costs.
pub fn measure_failover(figures: &mut Figures, scale: Scale) -> anyhow::Result<()> {
    println!("\nthree managers, the leader is killed {} times", scale.kills);
    failover::measure(figures, scale)
}

/// Many workers: one question of several.
pub fn measure_load(figures: &mut Figures, part: Load, scale: Scale) -> anyhow::Result<()> {
    println!("\nworkers that pretend to run tasks, over gRPC and TLS: {}", part.word());
    load::measure(figures, part, scale)
}
