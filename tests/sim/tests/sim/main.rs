//! Runs the simulator: histories from seeds, and the proof that it finds defects.

#![allow(clippy::unwrap_used)]

mod batch;
mod bugs;
mod histories;
mod worker_steps;
mod workspace;

use std::sync::{Mutex, MutexGuard, PoisonError};

static CORES: Mutex<()> = Mutex::new(());

/// A test that uses every core for minutes runs alone, so that its measurements are valid.
fn all_cores() -> MutexGuard<'static, ()> {
    CORES.lock().unwrap_or_else(PoisonError::into_inner)
}
