//! Many histories on all cores, reported in the order of their seeds.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use warren_test_sim::{Defect, History, Violation, run_with};

/// So many violations of each invariant are shown.
const SHOWN: usize = 3;

type Ended = Result<History, Violation>;

/// Runs every seed. The result does not depend on which thread ran what.
pub fn run_all(seeds: Range<u64>, defect: Option<Defect>) -> BTreeMap<u64, Ended> {
    let next = AtomicU64::new(seeds.start);
    let all: Mutex<BTreeMap<u64, Ended>> = Mutex::default();
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

/// All histories; shows the first that violated something, of each invariant.
#[track_caller]
pub fn all_good(ended: BTreeMap<u64, Ended>) -> Vec<(u64, History)> {
    let (mut good, mut bad) = (Vec::new(), BTreeMap::<String, Vec<Violation>>::new());
    for (seed, ended) in ended {
        match ended {
            Ok(history) => good.push((seed, history)),
            Err(violation) => bad.entry(invariant(&violation)).or_default().push(violation),
        }
    }
    let first = |(name, found): (&String, &Vec<Violation>)| {
        let shown: Vec<String> = found.iter().take(SHOWN).map(Violation::to_string).collect();
        format!("{} times {name}\n{}", found.len(), shown.join("\n"))
    };
    let told: Vec<String> = bad.iter().map(first).collect();
    assert!(bad.is_empty(), "histories violated something:\n{}", told.join("\n"));
    good
}

/// The name of what was violated.
fn invariant(violation: &Violation) -> String {
    violation.what.split(':').next().unwrap_or_default().to_string()
}
