//! The simulator at work: histories from seeds, and proof that it finds what is wrong.

#![allow(clippy::unwrap_used)]

mod bugs;
mod histories;
mod many;
mod workspace;

use std::sync::{Mutex, MutexGuard, PoisonError};

static CORES: Mutex<()> = Mutex::new(());

/// Whoever uses every core for minutes does so alone, so that what it measures is its own.
fn all_cores() -> MutexGuard<'static, ()> {
    CORES.lock().unwrap_or_else(PoisonError::into_inner)
}
