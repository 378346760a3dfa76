//! Random faults of all kinds; the invariants in `network.rs` are checked at every step.
//!
//! A failing seed is replayed with `WARREN_SEED=<seed> cargo test -p warren-consensus`; more seeds
//! are tried with `WARREN_SEEDS=<count>`.

use warren_consensus::Event;
use warren_log::CrashPoint;

use crate::{network::TestNetwork, rng::Rng};

/// Counts of a run, to show that it had faults and progress.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RunStats {
    pub trace: Vec<u64>,
    pub crashes: usize,
    pub acknowledged: usize,
    pub terms: usize,
    pub reads: usize,
    pub snapshots_sent: usize,
    /// Membership changes that were applied.
    pub changes: usize,
}

pub const STEPS: usize = 3_000;

pub fn step(network: &mut TestNetwork, rng: &mut Rng, stats: &mut RunStats) {
    let id = 1 + rng.below(network.members.len()) as u64;
    match rng.below(100) {
        0..45 => carry(network, rng, stats),
        45..65 => network.with(id, |member| member.handle(Event::Tick)),
        65..80 => network.with(id, |member| {
            member.write_one();
        }),
        80..90 => {
            network.propose(id);
        }
        90..93 => network.read(id),
        93..95 => network.with(id, |member| member.snapshot()),
        95 => {
            let other = 1 + rng.below(network.members.len()) as u64;
            network.cut.insert((id, other));
        }
        96 => network.cut.clear(),
        97 => {
            let point = if rng.one_in(2) { CrashPoint::Before } else { CrashPoint::After };
            network.member(id).disk.crash_at(1 + rng.below(5) as u64, point);
        }
        98 if rng.one_in(3) => network.with(id, |member| member.crash()),
        _ => {
            if network.member(id).run.is_none() {
                stats.crashes += 1;
                network.start(id);
            }
        }
    }
}

/// Delivers some messages to one member: late, twice, reordered, or not at all.
fn carry(network: &mut TestNetwork, rng: &mut Rng, stats: &mut RunStats) {
    if network.in_flight.is_empty() {
        return;
    }
    let picked = rng.below(network.in_flight.len());
    let to = network.in_flight[picked].message.to;
    let mut batch = vec![take(network, rng, picked)];
    if rng.one_in(4)
        && let Some(more) = network.in_flight.iter().position(|in_flight| in_flight.message.to == to)
    {
        batch.push(take(network, rng, more));
    }
    if rng.one_in(12) {
        for in_flight in batch {
            network.drop_message(in_flight, rng.one_in(2));
        }
        return;
    }
    stats.snapshots_sent += batch.iter().filter(|in_flight| in_flight.message.snapshot.is_some()).count();
    network.deliver(to, batch);
}

fn take(network: &mut TestNetwork, rng: &mut Rng, at: usize) -> crate::network::InFlightMessage {
    if rng.one_in(10) { network.in_flight[at].clone() } else { network.in_flight.swap_remove(at) }
}

fn run(size: u64, seed: u64) -> RunStats {
    let mut rng = Rng(seed);
    let mut stats = RunStats::default();
    let mut network = TestNetwork::new(size, seed);
    for _ in 0..STEPS {
        step(&mut network, &mut rng, &mut stats);
    }
    recover(&mut network, &mut stats);
    let states: Vec<_> = network.members.iter().map(|member| member.state()).collect();
    assert!(states.windows(2).all(|pair| pair[0] == pair[1]), "members differ at rest");
    stats
}

/// The faults end: all members return, and the group must agree and continue.
pub fn recover(network: &mut TestNetwork, stats: &mut RunStats) {
    network.cut.clear();
    for id in network.ids() {
        network.with(id, |member| member.crash());
        network.start(id);
    }
    let leader = network.elect();
    network.propose(leader);
    network.tick(100);
    network.oracle.check_answers();
    stats.acknowledged = network.oracle.acknowledged.len();
    stats.terms = network.oracle.terms_with_leaders();
    stats.reads = network.oracle.reads_answered;
    stats.changes = network.oracle.history().len() - 1;
    stats.trace = network.trace();
}

/// Runs a seed, and prints it if the run fails.
pub fn replayable(seed: u64, run: impl FnOnce(u64) -> RunStats) -> RunStats {
    struct OnPanic(u64);
    impl Drop for OnPanic {
        fn drop(&mut self) {
            if std::thread::panicking() {
                println!("replay: WARREN_SEED={} cargo test -p warren-consensus", self.0);
            }
        }
    }
    let _named = OnPanic(seed);
    run(seed)
}

pub fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("WARREN_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => {
            let count = std::env::var("WARREN_SEEDS").map_or(count, |count| count.parse().unwrap());
            (0..count).collect()
        }
    }
}

#[test]
fn three_voters_survive_faults() {
    let mut sum = RunStats::default();
    let seeds = seeds(150);
    for seed in &seeds {
        let stats = replayable(*seed, |seed| run(3, seed));
        sum.crashes += stats.crashes;
        sum.acknowledged += stats.acknowledged;
        sum.terms += stats.terms;
        sum.reads += stats.reads;
        sum.snapshots_sent += stats.snapshots_sent;
    }
    println!("{sum:?}");
    let runs = seeds.len();
    assert!(sum.crashes > runs && sum.acknowledged > 5 * runs && sum.terms > 2 * runs, "{sum:?}");
    assert!(sum.reads > runs / 2 && (runs < 10 || sum.snapshots_sent > 0), "{sum:?}");
}

#[test]
fn five_voters_survive_faults() {
    for seed in seeds(40) {
        replayable(seed, |seed| run(5, seed));
    }
}

#[test]
fn one_voter_survives_faults() {
    for seed in seeds(60) {
        replayable(seed, |seed| run(1, seed));
    }
}

#[test]
fn one_seed_gives_one_trace() {
    for seed in seeds(5) {
        let first = replayable(seed, |seed| run(3, seed));
        assert_eq!(first, replayable(seed, |seed| run(3, seed)));
        assert_ne!(first.trace, replayable(seed + 1_000, |seed| run(3, seed)).trace);
    }
}
