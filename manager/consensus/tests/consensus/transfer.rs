//! Leadership transfer.

use warren_consensus::{DropReason, Event, MemberChange, MessageKind};

use crate::{member::MemberOutput, network::TestNetwork};

fn transfer(network: &mut TestNetwork, from: u64, to: Option<u64>) {
    network.with(from, |member| member.handle(Event::TransferLeadership { to }));
}

/// Three voters and a learner; returns the leader.
fn group(seed: u64) -> (TestNetwork, u64) {
    let mut network = TestNetwork::with_joiners(3, 1, seed);
    let leader = network.elect();
    network.change(leader, MemberChange::add_learner(4));
    network.tick(10);
    assert_eq!(network.oracle.members().learners, [4]);
    (network, leader)
}

#[test]
fn transfer_target_leads_at_once() {
    let (mut network, old) = group(1);
    let new = (1..=3).find(|id| *id != old).unwrap();
    for _ in 0..2 {
        transfer(&mut network, old, Some(new));
    }
    network.settle();
    assert_eq!(network.leader(), Some(new), "without a tick");
    // A member that does not lead has nothing to transfer.
    transfer(&mut network, old, Some(old));
    network.settle();
    assert_eq!(network.leader(), Some(new));
}

#[test]
fn transfer_picks_most_advanced_voter() {
    let (mut network, old) = group(2);
    let [behind, ahead] = [[2, 3], [1, 3], [1, 2]][old as usize - 1];
    network.cut.insert((old, behind));
    network.propose(old);
    network.settle();
    network.cut.clear();
    transfer(&mut network, old, None);
    network.settle();
    assert_eq!(network.leader(), Some(ahead));
}

#[test]
fn proposals_are_dropped_during_transfer() {
    let (mut network, leader) = group(3);
    let to = (1..=3).find(|id| *id != leader).unwrap();
    network.cut.insert((leader, to));
    transfer(&mut network, leader, Some(to));
    let member = network.member(leader);
    member.propose(900);
    member.change(901, MemberChange::remove(4));
    let reason = DropReason::Transferring { to };
    let refused = |proposal| MemberOutput::Dropped { proposal, reason };
    assert_eq!(member.take_outcomes(), [refused(900), refused(901)]);
    // The shortest election timeout.
    network.tick(6);
    assert_eq!(network.leader(), Some(leader), "it gave up, and goes on");
}

#[test]
fn transfer_skips_ineligible_member() {
    let (mut network, leader) = group(4);
    for to in [leader, 4, 9] {
        transfer(&mut network, leader, Some(to));
        assert!(network.in_flight.is_empty());
        assert_eq!(network.leader(), Some(leader), "nothing happens for {to}");
    }
    let mut alone = TestNetwork::with_joiners(1, 1, 5);
    alone.elect();
    alone.change(1, MemberChange::add_learner(2));
    alone.tick(5);
    transfer(&mut alone, 1, None);
    assert_eq!(alone.leader(), Some(1));
}

/// The new leader has everything that was acknowledged, also when it first has to be sent the rest.
#[test]
fn transfer_waits_for_target_to_catch_up() {
    let (mut network, old) = group(6);
    let new = (1..=3).find(|id| *id != old).unwrap();
    network.cut.insert((old, new));
    for _ in 0..3 {
        network.propose(old);
        network.settle();
    }
    network.cut.clear();
    transfer(&mut network, old, Some(new));
    assert!(network.in_flight.iter().all(|in_flight| in_flight.message.kind != MessageKind::TimeoutNow));
    for _ in 0..3 {
        network.settle();
        network.with(old, |member| member.handle(Event::Tick));
    }
    network.settle();
    assert_eq!(network.leader(), Some(new));
    network.oracle.check_answers();
}

#[test]
fn stopping_leader_transfers_first() {
    let (mut network, old) = group(7);
    transfer(&mut network, old, None);
    network.settle();
    let leader = network.leader();
    assert!(leader.is_some_and(|leader| leader != old));
    let member = network.member(old);
    member.propose(900);
    let reason = DropReason::NotLeader { leader };
    assert_eq!(member.take_outcomes(), [MemberOutput::Dropped { proposal: 900, reason }]);
    network.with(old, |member| member.crash());
    network.settle();
    assert_eq!(network.leader(), leader, "nobody misses it");
}
