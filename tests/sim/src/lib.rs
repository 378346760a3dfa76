//! A whole cluster in one thread, from one seed: the pure crates as they ship, with simulated disks,
//! networks, container runtimes and clocks around them.
//!
//! Three machines of managers (one founds the cluster, the others join), five workers, two clients, and three
//! writers of shared objects. Everything that happens is an event at a virtual time. All randomness comes
//! from the seed, so a seed gives one history; its hash proves that. In the first phase faults are injected
//! (`faults.rs` has the list): managers are wiped, replaced, removed, moved and demoted, and sometimes most
//! or all of them are lost and the cluster begins another incarnation. Then faults stop, and the cluster must
//! converge.
//!
//! It must never read a clock, start a thread or use an order that differs per process. Start reading at
//! `event.rs` (what can happen) and [`ClusterSimulation`] (when it happens), then `manager.rs` and
//! `worker.rs` (which execute the results of the pure crates), and `invariants.rs` with one file per
//! invariant.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod client;
mod event;
mod faults;
mod invariants;
mod manager;
mod network;
mod random;
mod simulation;
mod trace;
mod worker;
mod writers;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use invariants::SimViolation;
pub use simulation::{ClusterSimulation, PlantedDefect, SimulationReport};

/// Runs the history of `seed` to its end.
///
/// # Errors
/// What was violated, and when.
pub fn run(seed: u64) -> Result<SimulationReport, SimViolation> {
    run_with(seed, None)
}

/// Runs the history of `seed` with a planted defect. A panic of the code under test is a violation too.
///
/// # Errors
/// What was violated, and when.
pub fn run_with(seed: u64, defect: Option<PlantedDefect>) -> Result<SimulationReport, SimViolation> {
    let mut world = ClusterSimulation::new(seed, defect);
    match catch_unwind(AssertUnwindSafe(|| world.run())) {
        Ok(ended) => ended,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a text");
            Err(world.violation(&format!("panicked: {text}")))
        }
    }
}
