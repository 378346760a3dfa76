//! A whole cluster in one thread, from one seed: the pure crates as they ship, with simulated disks,
//! networks, container runtimes and clocks around them.
//!
//! Three machines of managers, of which one founds the cluster and the others join it, five workers, two
//! clients, and three that write the same objects. Everything that happens is an event at a virtual time; chance
//! comes from the seed alone, so a seed gives one history, whose hash is the proof. For a while everything breaks
//! (`faults.rs` has the list): managers are wiped, replaced, removed, moved and demoted, and sometimes most or all
//! of them are lost and the cluster begins another life. Then faults stop, and the cluster must come to rest as
//! wanted.
//!
//! It must never read a clock, start a thread or use an order that differs per process. Start reading at
//! `event.rs` (what can happen) and [`World`] (when it happens), then `manager.rs` and `worker.rs` (who
//! executes the pure crates' answers), and `invariants.rs` with one file for each thing that must hold.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod chance;
mod client;
mod event;
mod faults;
mod invariants;
mod manager;
mod network;
mod trace;
mod worker;
mod world;
mod writers;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use invariants::Violation;
pub use world::{Defect, History, World};

/// Runs the history of `seed` to its end.
///
/// # Errors
/// What was violated, and when.
pub fn run(seed: u64) -> Result<History, Violation> {
    run_with(seed, None)
}

/// Runs the history of `seed` with a mistake put in on purpose. A panic of the code under test is a violation
/// too.
///
/// # Errors
/// What was violated, and when.
pub fn run_with(seed: u64, defect: Option<Defect>) -> Result<History, Violation> {
    let mut world = World::new(seed, defect);
    match catch_unwind(AssertUnwindSafe(|| world.run())) {
        Ok(ended) => ended,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a text");
            Err(world.violation(&format!("panicked: {text}")))
        }
    }
}
