//! A worker on real containers: what its agent costs when nothing changes, how soon it takes containers over, how long
//! a stop takes, and whether it loses a line of a container that writes much.
//!
//! The worker is one that joined a manager without tasks; `hybrid` among the arguments measures a node that is both.
//! `quick` makes all of it smaller, for trying it out. Nothing here judges times, but each part fails when what it
//! measured is not what it says: a container with another process, a line that is missing.

mod adoption;
mod checks;
mod contents;
mod idle;
mod logs;
mod processes;
mod removal;
mod stopping;
mod world;

use std::time::Duration;

use crate::figures::Figures;
use world::World;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// Of a node that does nothing.
    containers: usize,
    /// How long it is watched.
    watched: Duration,
    /// Stops.
    stops: usize,
    /// Starts of the agent.
    adoptions: usize,
    /// How long a container writes.
    writing: Duration,
    is_hybrid: bool,
}

impl Scale {
    /// What the words of the command line ask for.
    #[must_use]
    pub fn of(words: &[String]) -> Scale {
        let is_hybrid = words.iter().any(|word| word == "hybrid");
        if words.iter().any(|word| word == "quick") {
            let (watched, writing) = (Duration::from_secs(30), Duration::from_secs(2));
            return Scale { containers: 10, watched, stops: 3, adoptions: 2, writing, is_hybrid };
        }
        let (watched, writing) = (Duration::from_secs(60), Duration::from_secs(10));
        Scale { containers: 100, watched, stops: 20, adoptions: 5, writing, is_hybrid }
    }
}

/// Memory and CPU of an agent with many containers, then how it takes them over, and how long all take to go.
pub fn measure_many(figures: &mut Figures, scale: Scale) -> anyhow::Result<()> {
    println!("\na worker with {} containers", scale.containers);
    let mut world = World::start(scale);
    idle::measure(figures, &mut world, scale)?;
    adoption::measure(figures, &mut world, scale)?;
    removal::measure(figures, &mut world, scale)
}

/// What checks cost.
pub fn measure_checks(figures: &mut Figures, scale: Scale) -> anyhow::Result<()> {
    println!("\na worker whose containers are checked");
    checks::measure(figures, &mut World::start(scale), scale)
}

/// Whether secrets slow starts.
pub fn measure_contents(figures: &mut Figures, scale: Scale) -> anyhow::Result<()> {
    println!("\na worker whose tasks have secrets");
    contents::measure(figures, &mut World::start(scale), scale)
}

/// Stops of single containers.
pub fn measure_stops(figures: &mut Figures, scale: Scale) -> anyhow::Result<()> {
    println!("\na worker whose containers are stopped");
    stopping::measure(figures, &mut World::start(scale), scale)
}

/// One container that writes much.
pub fn measure_logs(figures: &mut Figures, scale: Scale) -> anyhow::Result<()> {
    println!("\na worker with a container that writes 100 MB/s");
    logs::measure(figures, &mut World::start(scale), scale)
}
