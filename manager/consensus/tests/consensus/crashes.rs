//! A group grows from one voter to three, or replaces a lost member: while one machine loses power at one
//! durable write (every machine, every write, on both sides of it), and with random faults.

use warren_consensus::{ConfState, MemberChange};
use warren_log::CrashPoint;

use crate::{
    faults::{RunStats, STEPS, recover, replayable, seeds, step},
    network::TestNetwork,
    rng::Rng,
};

/// A membership change, and the members after it.
type Goal = (MemberChange, ConfState);

fn members(voters: &[u64], learners: &[u64]) -> ConfState {
    ConfState { voters: voters.to_vec(), learners: learners.to_vec(), ..ConfState::default() }
}

/// A single voter, two more machines, and the changes to a group of three.
fn growth(seed: u64) -> (TestNetwork, Vec<Goal>) {
    let goals = vec![
        (MemberChange::add_learner(2), members(&[1], &[2])),
        (MemberChange::add_learner(3), members(&[1], &[2, 3])),
        (MemberChange::promote([2, 3]), members(&[1, 2, 3], &[])),
    ];
    (TestNetwork::with_joiners(1, 2, seed), goals)
}

/// Three voters of which one is lost, a new machine, and the changes to three voters again.
fn replacement(seed: u64) -> (TestNetwork, Vec<Goal>) {
    let mut network = TestNetwork::with_joiners(3, 1, seed);
    network.elect();
    network.lose_member(3);
    let goals = vec![
        (MemberChange::add_learner(4), members(&[1, 2, 3], &[4])),
        (MemberChange::replace(3, 4), members(&[1, 2, 4], &[])),
    ];
    (network, goals)
}

#[derive(Debug, Clone, Copy)]
struct CrashSchedule {
    /// Which member crashes at which of its next writes, and on which side of it.
    crash: Option<(u64, u64, CrashPoint)>,
    /// Whether all members take snapshots all the time, also within joint phases.
    snapshots: bool,
}

/// Proposes the goals until the group has reached them all and has settled.
fn reach(network: &mut TestNetwork, goals: &[Goal], plan: CrashSchedule) {
    if let Some((id, nth, point)) = plan.crash {
        network.member(id).disk.crash_at(nth, point);
    }
    for (change, expected) in goals {
        let mut tries = 0;
        while network.oracle.members() != expected {
            tries += 1;
            assert!(tries < 200, "{plan:?}: stuck at {:?} before {expected:?}", network.oracle.members());
            for id in network.ids() {
                network.start(id);
                if plan.snapshots {
                    network.with(id, |member| member.snapshot());
                }
            }
            network.tick(1);
            let Some(leader) = network.leader() else { continue };
            network.change(leader, change.clone());
            if plan.snapshots {
                // In a joint phase, if this change has one.
                network.with(leader, |member| {
                    member.write_one();
                    member.snapshot();
                });
            }
            network.settle();
        }
    }
    let voters = network.oracle.members().voters.clone();
    // The crash can come at the end; it comes once.
    loop {
        voters.iter().for_each(|id| network.start(*id));
        let leader = network.elect();
        network.propose(leader);
        network.tick(40);
        if voters.iter().all(|id| network.member(*id).run.is_some()) {
            break;
        }
    }
    network.oracle.check_answers();
    let states: Vec<_> = voters.iter().map(|id| network.member(*id).state().to_vec()).collect();
    assert!(states.windows(2).all(|pair| pair[0] == pair[1]), "{plan:?}: members differ at rest");
}

/// Runs it without a crash to count the writes, then with a crash at each of them.
fn at_every_write(ids: &[u64], begin: fn(u64) -> (TestNetwork, Vec<Goal>)) {
    for snapshots in [false, true] {
        let (mut whole, goals) = begin(1);
        let before: Vec<_> = ids.iter().map(|id| whole.member(*id).disk.durable_writes()).collect();
        reach(&mut whole, &goals, CrashSchedule { crash: None, snapshots });
        for (id, before) in ids.iter().zip(before) {
            let writes = whole.member(*id).disk.durable_writes() - before;
            assert!(writes >= 5, "member {id} wrote {writes} times");
            for nth in 1..=writes {
                for point in [CrashPoint::Before, CrashPoint::After] {
                    let (mut network, goals) = begin(1);
                    reach(&mut network, &goals, CrashSchedule { crash: Some((*id, nth, point)), snapshots });
                }
            }
        }
    }
}

#[test]
fn growing_survives_a_crash_at_every_write() {
    at_every_write(&[1, 2, 3], growth);
}

#[test]
fn replacement_survives_crash_at_every_write() {
    at_every_write(&[1, 2, 4], replacement);
}

/// Proposes the next goal from time to time, among all kinds of faults. Remaining goals are reached after the
/// faults.
fn pursue(begin: fn(u64) -> (TestNetwork, Vec<Goal>), seed: u64, reached: &mut usize) -> RunStats {
    let (mut network, goals) = begin(seed);
    let mut rng = Rng(seed);
    let mut stats = RunStats::default();
    let mut next = 0;
    for _ in 0..STEPS {
        step(&mut network, &mut rng, &mut stats);
        let Some((change, expected)) = goals.get(next) else { continue };
        if network.oracle.members() == expected {
            next += 1;
        } else if rng.one_in(20)
            && let Some(leader) = network.oracle.latest_leader()
        {
            network.change(leader, change.clone());
        }
    }
    *reached += next;
    recover(&mut network, &mut stats);
    while next < goals.len() && network.oracle.members() == &goals[next].1 {
        next += 1;
    }
    reach(&mut network, &goals[next..], CrashSchedule { crash: None, snapshots: false });
    stats
}

#[test]
fn growing_and_replacing_survive_faults() {
    for (begin, goals) in [(growth as fn(u64) -> _, 3), (replacement, 2)] {
        let (mut reached, mut crashes) = (0, 0);
        let seeds = seeds(60);
        for seed in &seeds {
            replayable(*seed, |seed| {
                let stats = pursue(begin, seed, &mut reached);
                crashes += stats.crashes;
                stats
            });
        }
        println!("{crashes} crashes, {reached} goals of {} reached among faults", goals * seeds.len());
        let runs = seeds.len();
        assert!(crashes > runs && reached > goals * runs / 2, "{crashes} crashes, {reached} goals");
    }
}
