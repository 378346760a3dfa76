//! A group grows from one voter to three, or replaces a member that is lost: while one machine
//! loses its power at one durable write (every machine, every write, on both sides of it), and
//! while chance breaks everything.

use warren_consensus::{ConfState, MemberChange};
use warren_log::CrashPoint;

use crate::{
    dice::Dice,
    faults::{STEPS, Tally, recover, replayable, seeds, step},
    network::Network,
};

/// What is asked for, and who the members are then.
type Goal = (MemberChange, ConfState);

fn members(voters: &[u64], learners: &[u64]) -> ConfState {
    ConfState { voters: voters.to_vec(), learners: learners.to_vec(), ..ConfState::default() }
}

/// A lone voter, two machines beside it, and the way to a group of three.
fn growth(seed: u64) -> (Network, Vec<Goal>) {
    let goals = vec![
        (MemberChange::add_learner(2), members(&[1], &[2])),
        (MemberChange::add_learner(3), members(&[1], &[2, 3])),
        (MemberChange::promote([2, 3]), members(&[1, 2, 3], &[])),
    ];
    (Network::with_joiners(1, 2, seed), goals)
}

/// Three voters of which one is lost, a new machine, and the way to three again.
fn replacement(seed: u64) -> (Network, Vec<Goal>) {
    let mut network = Network::with_joiners(3, 1, seed);
    network.elect();
    network.lose_member(3);
    let goals = vec![
        (MemberChange::add_learner(4), members(&[1, 2, 3], &[4])),
        (MemberChange::replace(3, 4), members(&[1, 2, 4], &[])),
    ];
    (network, goals)
}

#[derive(Debug, Clone, Copy)]
struct Plan {
    /// Who crashes at which of its writes from now on, and where.
    crash: Option<(u64, u64, CrashPoint)>,
    /// Whether everybody takes snapshots all the time, also within joint phases.
    snapshots: bool,
}

/// Works on the goals until the group has reached them all, and is at rest.
fn reach(network: &mut Network, goals: &[Goal], plan: Plan) {
    if let Some((id, nth, point)) = plan.crash {
        network.member(id).disk.crash_at(nth, point);
    }
    for (change, expected) in goals {
        let mut tries = 0;
        while network.truth.members() != expected {
            tries += 1;
            assert!(tries < 200, "{plan:?}: stuck at {:?} before {expected:?}", network.truth.members());
            for id in network.ids() {
                network.start(id);
                if plan.snapshots {
                    network.with(id, |member| member.snapshot());
                }
            }
            network.pass(1);
            let Some(leader) = network.leader() else { continue };
            network.change(leader, change.clone());
            if plan.snapshots {
                // In a joint phase, if this is one.
                network.with(leader, |member| {
                    member.write_one();
                    member.snapshot();
                });
            }
            network.settle();
        }
    }
    let voters = network.truth.members().voters.clone();
    // The crash can come in the end; it comes once.
    loop {
        voters.iter().for_each(|id| network.start(*id));
        let leader = network.elect();
        network.propose(leader);
        network.pass(40);
        if voters.iter().all(|id| network.member(*id).run.is_some()) {
            break;
        }
    }
    network.truth.check_answers();
    let states: Vec<_> = voters.iter().map(|id| network.member(*id).state().to_vec()).collect();
    assert!(states.windows(2).all(|pair| pair[0] == pair[1]), "{plan:?}: members differ at rest");
}

/// Runs it without a crash to count the writes, then with a crash at each of them.
fn at_every_write(ids: &[u64], begin: fn(u64) -> (Network, Vec<Goal>)) {
    for snapshots in [false, true] {
        let (mut whole, goals) = begin(1);
        let before: Vec<_> = ids.iter().map(|id| whole.member(*id).disk.durable_writes()).collect();
        reach(&mut whole, &goals, Plan { crash: None, snapshots });
        for (id, before) in ids.iter().zip(before) {
            let writes = whole.member(*id).disk.durable_writes() - before;
            assert!(writes >= 5, "member {id} wrote {writes} times");
            for nth in 1..=writes {
                for point in [CrashPoint::Before, CrashPoint::After] {
                    let (mut network, goals) = begin(1);
                    reach(&mut network, &goals, Plan { crash: Some((*id, nth, point)), snapshots });
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
fn replacing_a_lost_member_survives_a_crash_at_every_write() {
    at_every_write(&[1, 2, 4], replacement);
}

/// Asks the leader for the next goal from time to time, among all the faults there are. What is
/// left is reached when they end.
fn pursue(begin: fn(u64) -> (Network, Vec<Goal>), seed: u64, reached: &mut usize) -> Tally {
    let (mut network, goals) = begin(seed);
    let mut dice = Dice(seed);
    let mut tally = Tally::default();
    let mut next = 0;
    for _ in 0..STEPS {
        step(&mut network, &mut dice, &mut tally);
        let Some((change, expected)) = goals.get(next) else { continue };
        if network.truth.members() == expected {
            next += 1;
        } else if dice.one_in(20)
            && let Some(leader) = network.truth.latest_leader()
        {
            network.change(leader, change.clone());
        }
    }
    *reached += next;
    recover(&mut network, &mut tally);
    while next < goals.len() && network.truth.members() == &goals[next].1 {
        next += 1;
    }
    reach(&mut network, &goals[next..], Plan { crash: None, snapshots: false });
    tally
}

#[test]
fn growing_and_replacing_survive_faults() {
    for (begin, goals) in [(growth as fn(u64) -> _, 3), (replacement, 2)] {
        let (mut reached, mut crashes) = (0, 0);
        let seeds = seeds(60);
        for seed in &seeds {
            replayable(*seed, |seed| {
                let tally = pursue(begin, seed, &mut reached);
                crashes += tally.crashes;
                tally
            });
        }
        println!("{crashes} crashes, {reached} goals of {} reached among faults", goals * seeds.len());
        let runs = seeds.len();
        assert!(crashes > runs && reached > goals * runs / 2, "{crashes} crashes, {reached} goals");
    }
}
