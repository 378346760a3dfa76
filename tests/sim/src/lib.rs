//! A whole cluster in one thread, from one seed: the pure crates as they ship, with a simulated disk, network,
//! container runtime and clock around them.
//!
//! One manager and one worker so far. Everything that happens is an event at a virtual time; chance comes from the
//! seed alone, so a seed gives one history, whose hash is the proof. Faults: the manager loses power at a durable
//! write or between two, the agent is killed, sessions break, actions fail before or after they took effect,
//! processes exit. Then the faults stop, and the cluster must come to rest as wanted.
//!
//! It must never read a clock, start a thread or use an order that differs per process. Start reading at
//! [`World`] (what happens when), then `manager.rs` and `worker.rs` (the executors of events and effects), and
//! `invariants/` (what is checked after every event, one file each).

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod chance;
mod client;
mod invariants;
mod manager;
mod planner;
mod worker;
mod world;

pub use invariants::Violation;
pub use world::{Defect, History, World};

/// Runs the history of `seed` to its end.
///
/// # Errors
/// What was violated, and when.
pub fn run(seed: u64) -> Result<History, Violation> {
    World::new(seed, None).run()
}
