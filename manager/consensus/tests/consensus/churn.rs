//! Faults while the members change all the time: any member proposes any change, and some succeed.
//!
//! A failing seed is replayed with `WARREN_SEED=<seed> cargo test -p warren-consensus churn`.

use warren_consensus::{DropReason, Event, MemberChange, MemberStep};

use crate::{
    faults::{RunStats, STEPS, recover, replayable, seeds, step},
    network::TestNetwork,
    rng::Rng,
};

const MACHINES: u64 = 5;

fn any_change(dice: &mut Rng) -> MemberChange {
    let steps = 1 + dice.below(3);
    let step = |_| {
        let id = 1 + dice.below(MACHINES as usize) as u64;
        match dice.below(5) {
            0..3 => MemberStep::Voter(id),
            3 => MemberStep::Learner(id),
            _ => MemberStep::Remove(id),
        }
    };
    MemberChange::new((0..steps).map(step).collect::<Vec<_>>())
}

fn run(voters: u64, seed: u64) -> (RunStats, TestNetwork) {
    let mut dice = Rng(seed);
    let mut counters = RunStats::default();
    let mut network = TestNetwork::with_joiners(voters, MACHINES - voters, seed);
    for _ in 0..STEPS {
        let any = 1 + dice.below(MACHINES as usize) as u64;
        let id = if dice.one_in(4) { any } else { network.oracle.latest_leader().unwrap_or(any) };
        match dice.below(30) {
            0..2 => {
                let change = any_change(&mut dice);
                network.change(id, change);
            }
            2 if dice.one_in(3) => {
                let to = dice.one_in(2).then(|| 1 + dice.below(MACHINES as usize) as u64);
                network.with(id, |member| member.handle(Event::TransferLeadership { to }));
            }
            3 => network.with(any, |member| member.begin_snapshot()),
            _ => step(&mut network, &mut dice, &mut counters),
        }
    }
    recover(&mut network, &mut counters);
    let members = network.oracle.members().clone();
    assert!(members.voters_outgoing.is_empty(), "a joint phase that does not end: {members:?}");
    let in_group: Vec<_> = members.voters.iter().chain(&members.learners).collect();
    for pair in in_group.windows(2) {
        let (left, right) = (*pair[0], *pair[1]);
        assert_eq!(*network.member(left).machine().unwrap().members(), members);
        let left = network.member(left).state().to_vec();
        assert_eq!(left, network.member(right).state(), "members differ at rest");
    }
    (counters, network)
}

#[test]
fn groups_of_any_members_survive_faults() {
    let mut sum = RunStats::default();
    let (mut joint, mut invalid, mut pending, mut handed_over) = (0, 0, 0, 0);
    let seeds = seeds(200);
    for seed in &seeds {
        replayable(*seed, |seed| {
            let (counters, network) = run(1 + seed % 3, seed);
            let history = network.oracle.history();
            joint += history.iter().filter(|members| !members.voters_outgoing.is_empty()).count();
            for reason in &network.oracle.reasons {
                match reason {
                    DropReason::InvalidChange(_) => invalid += 1,
                    DropReason::ChangePending => pending += 1,
                    DropReason::Transferring { .. } => handed_over += 1,
                    _ => {}
                }
            }
            sum.crashes += counters.crashes;
            sum.acknowledged += counters.acknowledged;
            sum.terms += counters.terms;
            sum.changes += counters.changes;
            sum.snapshots_sent += counters.snapshots_sent;
            counters
        });
    }
    println!(
        "{sum:?}, {joint} joint, refused: {invalid} invalid, {pending} pending, {handed_over} handed over"
    );
    let runs = seeds.len();
    assert!(sum.crashes > runs && sum.acknowledged > 5 * runs && sum.terms > 2 * runs, "{sum:?}");
    assert!(sum.changes > runs && joint > runs / 4, "{sum:?}, {joint} joint");
    let refusals = invalid > 0 && pending > 0 && handed_over > 0;
    assert!(runs < 10 || (sum.snapshots_sent > 0 && refusals), "{sum:?}");
}

#[test]
fn one_seed_of_churn_gives_one_trace() {
    for seed in seeds(5) {
        let first = replayable(seed, |seed| run(1, seed).0);
        assert_eq!(first, replayable(seed, |seed| run(1, seed).0));
        assert_ne!(first.trace, replayable(seed + 1_000, |seed| run(1, seed).0).trace);
    }
}
