//! Histories from seeds. `WARREN_SIM_SEED=N` replays one; with `WARREN_SIM_TRACE` set it prints every event.

#![allow(clippy::unwrap_used)]

use warren_test_sim::{Defect, World, run};
use warren_testkit::soak;

/// A history that is shorter or has fewer faults tests nothing.
const LEAST_EVENTS: u64 = 500;
const LEAST_FAULTS: u64 = 3;

#[test]
fn histories_keep_every_invariant() {
    let count = soak::count(300, 10_000) as u64;
    let (mut acknowledged, mut faults) = (0, 0);
    for seed in 0..count {
        let history = run(seed).unwrap_or_else(|violation| panic!("{violation}"));
        assert!(history.events >= LEAST_EVENTS, "seed {seed}: {history:?}");
        assert!(history.faults >= LEAST_FAULTS, "seed {seed}: {history:?}");
        acknowledged += history.acknowledged;
        faults += history.faults;
    }
    println!("{count} histories, {acknowledged} acknowledged writes, {faults} faults, 0 violations");
}

#[test]
fn one_seed_gives_one_history() {
    for seed in 0..10 {
        assert_eq!(run(seed).unwrap(), run(seed).unwrap(), "seed {seed}");
    }
    assert_ne!(run(1).unwrap().trace, run(2).unwrap().trace);
}

/// The simulator is worth what it finds: each of these mistakes is found within a few seeds.
#[test]
fn mistakes_are_found() {
    for defect in [Defect::AnswersEarly, Defect::SaysRemovedEarly, Defect::StoresLater] {
        let found = (0..200).find_map(|seed| World::new(seed, Some(defect)).run().err());
        assert!(found.is_some(), "{defect:?} was not found");
    }
}

#[test]
fn replay() {
    if let Some(seed) = std::env::var("WARREN_SIM_SEED").ok().and_then(|seed| seed.parse().ok()) {
        run(seed).unwrap_or_else(|violation| panic!("{violation}"));
    }
}
