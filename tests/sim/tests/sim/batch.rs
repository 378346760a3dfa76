//! Many histories on all cores, reported in the order of their seeds.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use warren_test_sim::{PlantedDefect, SimViolation, SimulationReport, run_with};

/// Violations of each invariant that are shown.
const SHOWN: usize = 3;

type SeedResult = Result<SimulationReport, SimViolation>;

/// Runs every seed. The result does not depend on which thread ran which seed.
pub fn run_all(seeds: Range<u64>, defect: Option<PlantedDefect>) -> BTreeMap<u64, SeedResult> {
    let next = AtomicU64::new(seeds.start);
    let all: Mutex<BTreeMap<u64, SeedResult>> = Mutex::default();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let ended = run_with(seed, defect);
                    all.lock().unwrap().insert(seed, ended);
                }
            });
        }
    });
    all.into_inner().unwrap()
}

/// Returns all histories; panics with the first violations of each invariant.
#[track_caller]
pub fn expect_no_violation(ended: BTreeMap<u64, SeedResult>) -> Vec<(u64, SimulationReport)> {
    let (mut good, mut bad) = (Vec::new(), BTreeMap::<String, Vec<SimViolation>>::new());
    for (seed, ended) in ended {
        match ended {
            Ok(history) => good.push((seed, history)),
            Err(violation) => bad.entry(invariant(&violation)).or_default().push(violation),
        }
    }
    let first = |(name, found): (&String, &Vec<SimViolation>)| {
        let shown: Vec<String> = found.iter().take(SHOWN).map(SimViolation::to_string).collect();
        format!("{} times {name}\n{}", found.len(), shown.join("\n"))
    };
    let output: Vec<String> = bad.iter().map(first).collect();
    assert!(bad.is_empty(), "histories violated invariants:\n{}", output.join("\n"));
    good
}

/// The name of the violated invariant.
fn invariant(violation: &SimViolation) -> String {
    violation.what.split(':').next().unwrap_or_default().to_string()
}
