//! Handing the leadership over.

use warren_consensus::{DropReason, Event, MemberChange, MessageKind};

use crate::{member::Outcome, network::Network};

fn transfer(network: &mut Network, from: u64, to: Option<u64>) {
    network.with(from, |member| member.on(Event::TransferLeader { to }));
}

/// Three voters and a learner; who leads.
fn group(seed: u64) -> (Network, u64) {
    let mut network = Network::with_joiners(3, 1, seed);
    let leader = network.elect();
    network.change(leader, MemberChange::add_learner(4));
    network.pass(10);
    assert_eq!(network.truth.members().learners, [4]);
    (network, leader)
}

#[test]
fn the_chosen_voter_leads_without_waiting_for_a_silence() {
    let (mut network, old) = group(1);
    let new = (1..=3).find(|id| *id != old).unwrap();
    for _ in 0..2 {
        transfer(&mut network, old, Some(new));
    }
    network.settle();
    assert_eq!(network.leader(), Some(new), "without a tick");
    // Someone who does not lead has nothing to hand over.
    transfer(&mut network, old, Some(old));
    network.settle();
    assert_eq!(network.leader(), Some(new));
}

#[test]
fn the_voter_that_is_furthest_is_chosen() {
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
fn nothing_is_proposed_meanwhile_and_it_ends() {
    let (mut network, leader) = group(3);
    let to = (1..=3).find(|id| *id != leader).unwrap();
    network.cut.insert((leader, to));
    transfer(&mut network, leader, Some(to));
    let member = network.member(leader);
    member.propose(900);
    member.change(901, MemberChange::remove(4));
    let reason = DropReason::Transferring { to };
    let refused = |proposal| Outcome::Dropped { proposal, reason };
    assert_eq!(member.take_outcomes(), [refused(900), refused(901)]);
    // The shortest election timeout.
    network.pass(6);
    assert_eq!(network.leader(), Some(leader), "it gave up, and goes on");
}

#[test]
fn who_cannot_lead_is_not_chosen() {
    let (mut network, leader) = group(4);
    for to in [leader, 4, 9] {
        transfer(&mut network, leader, Some(to));
        assert!(network.flying.is_empty());
        assert_eq!(network.leader(), Some(leader), "nothing happens for {to}");
    }
    let mut alone = Network::with_joiners(1, 1, 5);
    alone.elect();
    alone.change(1, MemberChange::add_learner(2));
    alone.pass(5);
    transfer(&mut alone, 1, None);
    assert_eq!(alone.leader(), Some(1));
}

/// The one that takes over has everything that was acknowledged, also when it first has to be sent
/// the rest.
#[test]
fn a_voter_behind_catches_up_first() {
    let (mut network, old) = group(6);
    let new = (1..=3).find(|id| *id != old).unwrap();
    network.cut.insert((old, new));
    for _ in 0..3 {
        network.propose(old);
        network.settle();
    }
    network.cut.clear();
    transfer(&mut network, old, Some(new));
    assert!(network.flying.iter().all(|flying| flying.message.kind != MessageKind::TimeoutNow));
    for _ in 0..3 {
        network.settle();
        network.with(old, |member| member.on(Event::Tick));
    }
    network.settle();
    assert_eq!(network.leader(), Some(new));
    network.truth.check_answers();
}

#[test]
fn a_leader_that_stops_hands_over_first() {
    let (mut network, old) = group(7);
    transfer(&mut network, old, None);
    network.settle();
    let leader = network.leader();
    assert!(leader.is_some_and(|leader| leader != old));
    let member = network.member(old);
    member.propose(900);
    let reason = DropReason::NotLeader { leader };
    assert_eq!(member.take_outcomes(), [Outcome::Dropped { proposal: 900, reason }]);
    network.with(old, |member| member.crash());
    network.settle();
    assert_eq!(network.leader(), leader, "nobody misses it");
}
