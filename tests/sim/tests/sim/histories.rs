//! Histories from seeds. `WARREN_SIM_SEED=N` replays one; with `WARREN_SIM_TRACE` set it prints every event.

use warren_test_sim::{Defect, History, Violation, run, run_with};
use warren_testkit::soak;

use crate::many::{all_good, run_all};

/// A history that is shorter or has fewer faults tests nothing.
const LEAST_EVENTS: u64 = 500;
const LEAST_FAULTS: u64 = 3;
/// Of so many disks that went back a loss may be excused that nobody could know, and of few more in a short run.
const MOST_EXCUSED_PERCENT: u64 = 20;
const FEW: u64 = 5;
/// Seeds that found something once: a number, then what it found.
const KEPT: &str = include_str!("../../seeds.txt");

/// How many seeds: given, or a few, or very many.
fn count() -> u64 {
    let given = std::env::var("WARREN_SIM_COUNT").ok();
    given.map_or_else(|| soak::count(500, 10_000) as u64, |given| given.parse().unwrap())
}

#[test]
fn histories_keep_every_invariant() {
    let _alone = crate::all_cores();
    let started = std::time::Instant::now();
    let histories = all_good(run_all(0..count(), None));
    for (seed, history) in &histories {
        let enough = history.events >= LEAST_EVENTS && history.faults >= LEAST_FAULTS;
        assert!(enough, "seed {seed}: {history:?}");
    }
    let sum = |of: fn(&History) -> u64| histories.iter().map(|(_, history)| of(history)).sum::<u64>();
    let never = |of: fn(&History) -> u64| sum(of) == 0;
    assert!(!never(|history| history.acknowledged), "nothing was ever acknowledged");
    assert!(!never(|history| history.shared[0]), "no write of a shared object was ever acknowledged");
    assert!(!never(|history| history.shared[1]), "no compare-and-set ever succeeded");
    assert!(!never(|history| history.shared[2]), "no compare-and-set was ever refused");
    assert!(!never(|history| history.installed), "no member ever took over a snapshot");
    assert!(!never(|history| history.changes), "the members never changed");
    assert!(!never(|history| history.reads), "no read was ever answered");
    assert!(!never(|history| history.followed), "no service ever followed a secret");
    assert!(!never(|history| history.settled), "no volume ever got a place");
    assert!(!never(|history| history.replaced), "no unhealthy task was ever replaced");
    assert!(!never(|history| history.promoted), "no member ever got its vote");
    assert!(!never(|history| history.removed), "no manager was ever removed");
    assert!(!never(|history| history.moves), "no manager ever moved");
    assert!(!never(|history| history.forced), "no manager ever went on alone");
    assert!(!never(|history| history.restored), "no backup was ever restored");
    assert!(!never(|history| history.nodes_removed), "no node was ever removed");
    assert!(!never(|history| history.kept), "no container ever ran on into another life of its cluster");
    assert!(!never(|history| history.forwarded), "no follower ever sent a write to the leader");
    assert!(!never(|history| history.differences), "no worker ever heard what changed only");
    assert!(
        !never(|history| history.ghosts[0] - history.ghosts[1]),
        "no worker ever refused a life that is over"
    );
    assert!(!never(|history| history.left_off), "no task was ever stopped by its node");
    assert!(!never(|history| history.given_up), "no lost task was ever replaced");
    assert!(!never(|history| history.beside), "no task of a lost node ran on beside the one in its place");
    assert!(!never(|history| history.went_back), "no member's disk ever went back");
    assert!(!never(|history| history.regressed), "no member ever found that its disk went back");
    println!(
        "{} disks went back, which {} members found, with a loss that nobody could know in {} histories and one that \
         people accepted in {}",
        sum(|history| history.went_back),
        sum(|history| history.regressed),
        sum(|history| history.excused),
        sum(|history| history.accepted)
    );
    let most = sum(|history| history.went_back) * MOST_EXCUSED_PERCENT / 100 + FEW;
    assert!(sum(|history| history.excused) <= most, "more than {most} losses that nobody could know");
    println!(
        "{} histories in {:?}, 0 violations: {} events, {} faults, {} entries, {} acknowledged writes, \
         {} of shared objects with {} compare-and-sets, of which {} others were refused, \
         {} reads, {} terms, {} changes of members, {} snapshots taken over, {} revisions that follow a secret, \
         {} volumes settled, {} unhealthy tasks replaced, {} votes given, {} managers removed and {} moved, \
         {} went on alone, {} backups restored with {} containers that ran on, {} nodes removed, {} sessions, \
         {} writes forwarded, {} differences of assignments, {} tasks stopped by their nodes, {} lost \
         ones replaced, {} that ran on beside, {} managers of a life that is over found and {} obeyed",
        histories.len(),
        started.elapsed(),
        sum(|history| history.events),
        sum(|history| history.faults),
        sum(|history| history.entries),
        sum(|history| history.acknowledged),
        sum(|history| history.shared[0]),
        sum(|history| history.shared[1]),
        sum(|history| history.shared[2]),
        sum(|history| history.reads),
        sum(|history| history.leaders),
        sum(|history| history.changes),
        sum(|history| history.installed),
        sum(|history| history.followed),
        sum(|history| history.settled),
        sum(|history| history.replaced),
        sum(|history| history.promoted),
        sum(|history| history.removed),
        sum(|history| history.moves),
        sum(|history| history.forced),
        sum(|history| history.restored),
        sum(|history| history.kept),
        sum(|history| history.nodes_removed),
        sum(|history| history.sessions),
        sum(|history| history.forwarded),
        sum(|history| history.differences),
        sum(|history| history.left_off),
        sum(|history| history.given_up),
        sum(|history| history.beside),
        sum(|history| history.ghosts[0]),
        sum(|history| history.ghosts[1]),
    );
}

#[test]
fn seeds_that_found_something_find_nothing_now() {
    for line in KEPT.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        let (seed, found) = line.split_once(' ').unwrap_or_else(|| panic!("{line:?} says not what it found"));
        run(seed.parse().unwrap()).unwrap_or_else(|violation| panic!("{violation}; it once found: {found}"));
    }
}

#[test]
fn one_seed_gives_one_history() {
    for seed in 0..10 {
        assert_eq!(run(seed).unwrap(), run(seed).unwrap(), "seed {seed}");
    }
    let again = run_all(0..10, None);
    for (seed, history) in all_good(again) {
        assert_eq!(run(seed).unwrap(), history, "seed {seed} beside others");
    }
    assert_ne!(run(1).unwrap().trace, run(2).unwrap().trace);
}

/// The simulator is worth what it finds: each of these mistakes is found within a few seeds, and by what it
/// breaks.
#[test]
fn mistakes_are_found() {
    for (defect, invariant) in [
        (Defect::AnswersEarly, "acknowledged"),
        (Defect::SaysRemovedEarly, "nothing is given twice"),
        (Defect::TrustsItsClock, "converges"),
        (Defect::PromotesWhoIsBehind, "nobody votes before it has caught up"),
        (Defect::EvenVoters, "the number of voters is odd"),
        (Defect::KeepsItsIncarnation, "whoever was told to go"),
        (Defect::ObeysAnybody, "workers go forward only"),
        (Defect::AnswersFromNewestState, "answers show the caller's own write"),
        (Defect::AnswersWithNewestVersion, "returned versions are unique"),
        (Defect::ForgetsExpectedVersions, "a compare-and-set succeeds only if nothing came between"),
        (Defect::NeverAlone, "whoever minds"),
        (Defect::SoonAlone, "nobody is left off too early"),
    ] {
        // One mistake may break more than one thing, whichever a seed meets first.
        let is_meant = |found: &Violation| found.what.starts_with(invariant);
        let found = (0..400).find_map(|seed| run_with(seed, Some(defect)).err().filter(is_meant));
        let found = found.unwrap_or_else(|| panic!("{defect:?} was not found by: {invariant}"));
        println!("{defect:?} was found in seed {}, after {} events", found.seed, found.events);
    }
}

#[test]
fn replay() {
    if let Some(seed) = std::env::var("WARREN_SIM_SEED").ok().and_then(|seed| seed.parse().ok()) {
        let history = run(seed).unwrap_or_else(|violation| panic!("{violation}"));
        println!("{history:?}");
    }
}
