//! Histories from seeds. `WARREN_SIM_SEED=N` replays one; with `WARREN_SIM_TRACE` set it prints every event.

use std::collections::BTreeSet;

use warren_test_sim::{PlantedDefect, SimulationReport, run, run_with};
use warren_testkit::soak;

use crate::batch::{expect_no_violation, run_all};

/// A history with fewer events or faults tests nothing.
const LEAST_EVENTS: u64 = 500;
const LEAST_FAULTS: u64 = 3;
/// Tasks without a node that a service has only if there are far too many replicas.
const MANY_UNPLACED: u64 = 90;
/// Share of disk regressions with an excused loss that is allowed, and a constant for short runs.
const MOST_EXCUSED_PERCENT: u64 = 20;
const FEW: u64 = 5;
/// Seeds that found a defect once: a number, then what it found.
const KEPT: &str = include_str!("../../seeds.txt");

/// The number of seeds: as given, or few, or very many in a soak run.
fn count() -> u64 {
    let given = std::env::var("WARREN_SIM_COUNT").ok();
    given.map_or_else(|| soak::count(500, 10_000) as u64, |given| given.parse().unwrap())
}

#[test]
fn histories_keep_every_invariant() {
    let _alone = crate::all_cores();
    let started = std::time::Instant::now();
    let histories = expect_no_violation(run_all(0..count(), None));
    for (seed, history) in &histories {
        let enough = history.events >= LEAST_EVENTS && history.faults >= LEAST_FAULTS;
        assert!(enough, "seed {seed}: {history:?}");
    }
    let sum =
        |of: fn(&SimulationReport) -> u64| histories.iter().map(|(_, history)| of(history)).sum::<u64>();
    let never = |of: fn(&SimulationReport) -> u64| sum(of) == 0;
    assert!(!never(|history| history.acknowledged), "nothing was ever acknowledged");
    assert!(!never(|history| history.shared[0]), "no write of a shared object was ever acknowledged");
    assert!(!never(|history| history.shared[1]), "no compare-and-set ever succeeded");
    assert!(!never(|history| history.shared[2]), "no compare-and-set was ever refused");
    assert!(!never(|history| history.installed), "no member ever installed a snapshot");
    assert!(!never(|history| history.changes), "the membership never changed");
    assert!(!never(|history| history.reads), "no read was ever answered");
    assert!(!never(|history| history.secret_revisions), "no service ever followed a secret");
    assert!(!never(|history| history.updates_rolled_back), "no failed update was ever rolled back");
    assert!(!never(|history| history.volumes_bound), "no volume was ever bound to a node");
    let most_unplaced = histories.iter().map(|(_, history)| history.most_unplaced).max();
    assert!(most_unplaced > Some(MANY_UNPLACED), "no service ever had more replicas than there is room for");
    assert!(!never(|history| history.replaced), "no unhealthy task was ever replaced");
    assert!(!never(|history| history.promoted), "no member was ever promoted");
    assert!(!never(|history| history.removed), "no manager was ever removed");
    assert!(!never(|history| history.moves), "no manager ever moved");
    assert!(!never(|history| history.new_clusters_forced), "no manager ever forced a new cluster");
    assert!(!never(|history| history.restored), "no backup was ever restored");
    assert!(!never(|history| history.nodes_removed), "no node was ever removed");
    assert!(
        !never(|history| history.surviving_containers),
        "no container ever kept running into another incarnation"
    );
    assert!(!never(|history| history.forwarded), "no follower ever forwarded a write");
    assert!(!never(|history| history.differences), "no worker ever got an incremental update");
    assert!(
        !never(|history| history.stale_managers[0] - history.stale_managers[1]),
        "no worker ever rejected a superseded incarnation"
    );
    assert!(!never(|history| history.network_updates), "no worker ever got an update of the network");
    assert!(!never(|history| history.reassigned[0]), "no address of a task was ever assigned again");
    assert!(!never(|history| history.reassigned[1]), "no virtual address was ever assigned again");
    assert!(!never(|history| history.reassigned[2]), "no subnet was ever assigned again");
    assert!(!never(|history| history.reassigned[3]), "no node number was ever assigned again");
    assert!(!never(|history| history.stopped_disconnected), "no task was ever stopped by its node");
    assert!(!never(|history| history.tasks_replaced), "no lost task was ever replaced");
    assert!(
        !never(|history| history.duplicate_tasks),
        "no task of a lost node ever ran beside its replacement"
    );
    assert!(
        !never(|history| history.disks_restored),
        "no member's disk was ever restored from an older image"
    );
    assert!(!never(|history| history.regressed), "no member ever detected that its disk regressed");
    println!(
        "{} disks regressed, {} members detected it; an excused loss ended {} histories and an \
         accepted one {}",
        sum(|history| history.disks_restored),
        sum(|history| history.regressed),
        sum(|history| history.excused),
        sum(|history| history.accepted)
    );
    let most = sum(|history| history.disks_restored) * MOST_EXCUSED_PERCENT / 100 + FEW;
    assert!(sum(|history| history.excused) <= most, "more than {most} excused losses");
    println!(
        "{} histories in {:?}, 0 violations: {} events, {} faults, {} entries, {} acknowledged writes, \
         {} of shared objects with {} compare-and-sets, of which {} others were refused, \
         {} reads, {} terms, {} changes of members, {} snapshots taken over, {} revisions that follow a secret, \
         {} updates rolled back, \
         {} volumes settled, {} unhealthy tasks replaced, {} votes given, {} managers removed and {} moved, \
         {} went on alone, {} backups restored with {} containers that ran on, {} nodes removed, {} sessions, \
         {} writes forwarded, {} differences of assignments, {} tasks stopped by their nodes, {} lost \
         ones replaced, {} that ran on beside, {} managers of an earlier incarnation found and {} obeyed, \
         {} updates of the network, assigned again: {} addresses of tasks, {} virtual addresses, {} subnets and \
         {} node numbers",
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
        sum(|history| history.secret_revisions),
        sum(|history| history.updates_rolled_back),
        sum(|history| history.volumes_bound),
        sum(|history| history.replaced),
        sum(|history| history.promoted),
        sum(|history| history.removed),
        sum(|history| history.moves),
        sum(|history| history.new_clusters_forced),
        sum(|history| history.restored),
        sum(|history| history.surviving_containers),
        sum(|history| history.nodes_removed),
        sum(|history| history.sessions),
        sum(|history| history.forwarded),
        sum(|history| history.differences),
        sum(|history| history.stopped_disconnected),
        sum(|history| history.tasks_replaced),
        sum(|history| history.duplicate_tasks),
        sum(|history| history.stale_managers[0]),
        sum(|history| history.stale_managers[1]),
        sum(|history| history.network_updates),
        sum(|history| history.reassigned[0]),
        sum(|history| history.reassigned[1]),
        sum(|history| history.reassigned[2]),
        sum(|history| history.reassigned[3]),
    );
}

#[test]
fn regression_seeds_pass() {
    for line in KEPT.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        let (seed, found) = line.split_once(' ').unwrap_or_else(|| panic!("{line:?} has no description"));
        run(seed.parse().unwrap()).unwrap_or_else(|violation| panic!("{violation}; it once found: {found}"));
    }
}

#[test]
fn one_seed_gives_one_history() {
    for seed in 0..10 {
        assert_eq!(run(seed).unwrap(), run(seed).unwrap(), "seed {seed}");
    }
    let again = run_all(0..10, None);
    for (seed, history) in expect_no_violation(again) {
        assert_eq!(run(seed).unwrap(), history, "seed {seed} beside others");
    }
    assert_ne!(run(1).unwrap().trace, run(2).unwrap().trace);
}

/// Each planted defect, the invariant that finds it, and a seed that did last; other seeds are tried after it.
const PLANTED: [(PlantedDefect, &str, u64); 14] = [
    (PlantedDefect::AnswerBeforeDurable, "acknowledged", 0),
    (PlantedDefect::ReportRemovedEarly, "addresses and ports have one owner", 0),
    (PlantedDefect::TrustLocalClock, "converges", 32),
    (PlantedDefect::PromoteLaggingMember, "only members that caught up vote", 37),
    (PlantedDefect::AllowEvenVoters, "the number of voters is odd", 0),
    (PlantedDefect::KeepIncarnation, "addresses and ports have one owner", 1056),
    (PlantedDefect::IgnoreAssignmentVersion, "assignment versions only increase", 1),
    (PlantedDefect::AnswerFromNewestState, "answers show the caller's own write", 2),
    (PlantedDefect::AnswerWithNewestVersion, "returned versions are unique", 2),
    (PlantedDefect::DropExpectedVersion, "a compare-and-set succeeds only without a write in between", 0),
    (PlantedDefect::IgnoreNetworkAcks, "nobody is sent to another owner's address", 8),
    (PlantedDefect::AckBeforeKernel, "nobody is sent to another owner's address", 1568),
    (PlantedDefect::IgnoreDisconnect, "a disconnected task", 17),
    (PlantedDefect::DisconnectTooEarly, "no task is stopped before its disconnect timeout", 2),
];

#[test]
fn planted_defects_are_found() {
    for (defect, invariant, last) in PLANTED {
        // One defect may violate more than one invariant; the seed decides which is first.
        let mut others = BTreeSet::new();
        let found = std::iter::once(last).chain(0..1000).find_map(|seed| {
            let found = run_with(seed, Some(defect)).err()?;
            if found.what.starts_with(invariant) {
                return Some(found);
            }
            others.insert(found.what.split(':').next().unwrap_or_default().to_owned());
            None
        });
        let found =
            found.unwrap_or_else(|| panic!("{defect:?} was not found by: {invariant}; by {others:?}"));
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
