//! What must be true after every event, and at the end. One file per invariant.

mod acknowledged;
mod addresses;
mod reasons;
pub mod rest;
mod state;

use crate::world::World;

/// An invariant that did not hold, and how to see it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Gives the same history again.
    pub seed: u64,
    /// Milliseconds after the start.
    pub at: u64,
    /// How many events had happened.
    pub events: u64,
    /// What was wrong.
    pub what: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seed, at, events, what } = self;
        writeln!(f, "seed {seed}, {at} ms, event {events}: {what}")?;
        write!(f, "see it again: WARREN_SIM_SEED={seed} cargo test -p warren-test-sim replay")
    }
}

/// Everything that must hold at any time.
pub fn check(world: &World) -> Result<(), String> {
    state::holds(world)?;
    acknowledged::holds(world)?;
    addresses::holds(world)?;
    reasons::holds(world)
}
