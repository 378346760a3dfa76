//! How a group grows, shrinks and replaces members, step by step.

use warren_consensus::{
    ConfState, DropReason, Event, InvalidMemberChange, MemberChange, MemberStep, PeerProgress,
};

use crate::{
    member::{MemberOutput, TestMember, restore},
    network::TestNetwork,
};

fn members(voters: &[u64], learners: &[u64]) -> ConfState {
    ConfState { voters: voters.to_vec(), learners: learners.to_vec(), ..ConfState::default() }
}

fn joint(voters: &[u64], outgoing: &[u64]) -> ConfState {
    ConfState { voters_outgoing: outgoing.to_vec(), auto_leave: true, ..members(voters, &[]) }
}

/// Makes the change, which must succeed.
fn change(network: &mut TestNetwork, change: MemberChange) {
    let leader = network.elect();
    let id = network.change(leader, change);
    network.settle();
    network.tick(2);
    assert!(network.oracle.acknowledged.contains(&id), "{:?}", network.oracle.reasons);
}

/// A group of one that became three.
fn grown(seed: u64) -> TestNetwork {
    let mut network = TestNetwork::with_joiners(1, 2, seed);
    for step in [MemberChange::add_learner(2), MemberChange::add_learner(3), MemberChange::promote([2, 3])] {
        change(&mut network, step);
    }
    network
}

#[test]
fn one_voter_becomes_three_in_one_joint_change() {
    let mut network = grown(1);
    let expected = [
        members(&[1], &[]),
        members(&[1], &[2]),
        members(&[1], &[2, 3]),
        ConfState { auto_leave: true, ..joint(&[1, 2, 3], &[1]) },
        members(&[1, 2, 3], &[]),
    ];
    assert_eq!(network.oracle.history(), expected.iter().collect::<Vec<_>>());
    network.with(1, |member| member.crash());
    assert_ne!(network.elect(), 1, "the group works without its founder");
    network.with(2, |member| member.crash());
    network.tick(50);
    assert_eq!(network.leader(), None, "but not with one of three");
}

/// The end of the joint phase is sent as soon as the leader has applied its beginning, without any request.
#[test]
fn a_joint_phase_ends_by_itself() {
    let mut network = grown(2);
    network.member(1).slow_state = true;
    network.change(1, MemberChange::new([MemberStep::Remove(2), MemberStep::Learner(3)]));
    network.settle();
    assert_eq!(network.oracle.members().voters_outgoing, [1, 2, 3]);
    network.member(1).slow_state = false;
    network.with(1, TestMember::report_applied);
    network.settle();
    assert_eq!(*network.oracle.members(), members(&[1], &[3]), "without a tick");
}

#[test]
fn invalid_change_is_refused_with_reason() {
    use InvalidMemberChange::*;
    use MemberStep::{Learner, Remove, Voter};
    let mut network = grown(3);
    network.members.push(TestMember::bootstrap(4, &[1]));
    change(&mut network, MemberChange::add_learner(4));
    let cases: [(&[MemberStep], InvalidMemberChange); 12] = [
        (&[], Empty),
        (&[Voter(0)], ZeroId),
        (&[Learner(5), Voter(5)], DuplicateMember { id: 5 }),
        (&[Voter(2)], AlreadyVoter { id: 2 }),
        (&[Learner(4)], AlreadyLearner { id: 4 }),
        (&[Learner(4), Voter(5)], AlreadyLearner { id: 4 }),
        (&[Remove(7)], NotMember { id: 7 }),
        (&[Voter(5), Remove(7)], NotMember { id: 7 }),
        (&[Remove(1), Remove(2), Remove(3)], NoVoters),
        (&[Remove(1), Learner(2), Remove(3)], NoVoters),
        (&[Remove(1)], RemovesLeader { id: 1 }),
        (&[Learner(1), Voter(4)], RemovesLeader { id: 1 }),
    ];
    for (steps, reason) in cases {
        let member = network.member(1);
        member.change(900, MemberChange::new(steps));
        let dropped = MemberOutput::Dropped { proposal: 900, reason: DropReason::InvalidChange(reason) };
        assert_eq!(member.take_outcomes(), [dropped], "{steps:?}");
        assert_eq!(member.writes_waiting(), 0, "nothing was replicated");
    }
}

#[test]
fn concurrent_change_is_refused() {
    let mut network = TestNetwork::with_joiners(3, 1, 4);
    let leader = network.elect();
    let follower = 1 + leader % 3;
    let refused = |network: &mut TestNetwork, id: u64| {
        let member = network.member(id);
        member.change(900, MemberChange::add_learner(8));
        match member.take_outcomes().as_slice() {
            [MemberOutput::Dropped { proposal: 900, reason }] => *reason,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(&mut network, follower), DropReason::NotLeader { leader: Some(leader) });
    network.change(leader, MemberChange::add_learner(4));
    assert_eq!(refused(&mut network, leader), DropReason::ChangePending);
    network.settle();
    let promotion = MemberChange::new([MemberStep::Voter(4), MemberStep::Remove(follower)]);
    network.change(leader, promotion);
    while network.oracle.members().voters_outgoing.is_empty() {
        network.with(leader, |member| {
            member.write_one();
        });
        for flying in std::mem::take(&mut network.in_flight) {
            let to = flying.message.to;
            network.deliver(to, vec![flying]);
            network.with(to, |member| {
                member.write_one();
            });
        }
    }
    assert_eq!(refused(&mut network, leader), DropReason::ChangePending, "in the joint phase");
    network.settle();
    assert!(network.oracle.members().voters_outgoing.is_empty());
}

#[test]
fn change_before_first_entry_of_term_is_refused() {
    let mut member = TestMember::bootstrap(1, &[1]);
    member.start(1);
    member.take_outcomes();
    member.change(900, MemberChange::add_learner(2));
    let dropped = MemberOutput::Dropped { proposal: 900, reason: DropReason::ChangePending };
    assert_eq!(member.take_outcomes(), [dropped]);
    member.write_all();
    member.take_outcomes();
    member.change(901, MemberChange::add_learner(2));
    member.write_all();
    let expected = MemberOutput::Members { index: 2, members: members(&[1], &[2]) };
    assert_eq!(member.take_outcomes().first(), Some(&expected), "it comes before the entry");
}

#[test]
fn leader_reports_peer_progress() {
    let mut network = grown(5);
    let last = network.member(1).state().len() as u64;
    let peer = |id| PeerProgress { id, matched: last, active: true, silent: false };
    assert_eq!(network.member(1).machine().unwrap().peers(), [peer(2), peer(3)]);
    assert_eq!(network.member(2).machine().unwrap().peers(), []);
    network.with(3, |member| member.crash());
    network.propose(1);
    network.tick(3);
    assert!(network.member(1).machine().unwrap().peers()[1].active, "it answered just now");
    network.tick(12);
    let away = PeerProgress { id: 3, matched: last, active: false, silent: true };
    assert_eq!(network.member(1).machine().unwrap().peers()[1], away);
}

#[test]
fn new_learner_starts_from_snapshot() {
    let mut network = grown(6);
    for _ in 0..20 {
        network.propose(1);
        network.settle();
    }
    network.with(1, |member| member.snapshot());
    network.members.push(TestMember::bootstrap(4, &[1]));
    network.start(4);
    change(&mut network, MemberChange::add_learner(4));
    network.tick(10);
    let learner = network.member(4);
    assert_eq!(learner.snapshots.len(), 1, "it came as a snapshot");
    assert_eq!(*learner.machine().unwrap().members(), members(&[1, 2, 3], &[4]));
    let state = network.member(4).state().to_vec();
    assert_eq!(state, network.member(1).state());
    // A learner never asks for votes, even without a leader.
    for id in 1..=3 {
        network.with(id, |member| member.crash());
    }
    network.with(4, |member| {
        member.crash();
        member.start(9);
        member.take_outcomes();
        (0..100).for_each(|_| member.handle(Event::Tick));
    });
    assert!(network.in_flight.is_empty());
}

/// The snapshot is finished after a later membership change; it has the members as of its index.
#[test]
fn snapshot_keeps_members_of_its_index() {
    let mut network = TestNetwork::with_joiners(1, 2, 7);
    change(&mut network, MemberChange::add_learner(2));
    network.with(1, |member| member.begin_snapshot());
    change(&mut network, MemberChange::add_learner(3));
    network.with(1, |member| member.end_snapshot());
    let stored = restore(&network.member(1).disk.open()).snapshot.unwrap();
    assert_eq!(stored.conf_state, members(&[1], &[2]));
    network.with(1, |member| member.crash());
    network.start(1);
    network.settle();
    assert_eq!(*network.member(1).machine().unwrap().members(), members(&[1], &[2, 3]));
}

#[test]
fn a_lost_member_is_replaced_by_a_new_one() {
    let mut network = grown(8);
    network.with(3, |member| member.crash());
    network.members.push(TestMember::bootstrap(4, &[1]));
    network.start(4);
    change(&mut network, MemberChange::add_learner(4));
    change(&mut network, MemberChange::replace(3, 4));
    assert_eq!(*network.oracle.members(), members(&[1, 2, 4], &[]));
    network.with(1, |member| member.crash());
    let leader = network.elect();
    assert!([2, 4].contains(&leader), "two of the three are enough");
}

/// A member uses the newest change that it knows to be committed. So the end of a joint phase survives the
/// member that learned it first if one of those that stay has learned it as well; if none has, they wait for
/// the replaced member.
#[test]
fn leave_joint_survives_leader_loss() {
    for learned in [true, false] {
        let mut network = grown(15);
        network.lose_member(3);
        network.members.push(TestMember::bootstrap(4, &[1]));
        network.start(4);
        change(&mut network, MemberChange::add_learner(4));
        network.change(1, MemberChange::replace(3, 4));
        let knows_the_end = |network: &mut TestNetwork, id| {
            *network.member(id).machine().unwrap().members() == members(&[1, 2, 4], &[])
        };
        while !knows_the_end(&mut network, 1) {
            network.with(1, TestMember::write_all);
            deliver_once(&mut network);
            [2, 4].iter().for_each(|id| network.with(*id, TestMember::write_all));
        }
        assert!(!knows_the_end(&mut network, 2) && !knows_the_end(&mut network, 4));
        if learned {
            network.in_flight.retain(|flying| flying.message.to == 2);
            deliver_once(&mut network);
            network.with(2, TestMember::write_all);
        }
        network.in_flight.clear();
        for id in [1, 2, 4] {
            network.with(id, TestMember::crash);
        }
        network.lose_member(1);
        [2, 4].iter().for_each(|id| network.start(*id));
        network.tick(200);
        assert_eq!(network.leader().is_some(), learned);
        assert_eq!(*network.oracle.members(), members(&[1, 2, 4], &[]));
    }
}

/// Also if it never learns that it was removed.
#[test]
fn removed_member_does_not_disrupt() {
    let mut network = grown(10);
    for (from, to) in [(1, 3), (3, 1), (2, 3), (3, 2)] {
        network.cut.insert((from, to));
    }
    change(&mut network, MemberChange::remove(3));
    network.cut.clear();
    let terms = network.oracle.terms_with_leaders();
    network.tick(100);
    assert_eq!(network.oracle.terms_with_leaders(), terms);
    assert_eq!(network.leader(), Some(1));
    assert_eq!(*network.oracle.members(), members(&[1, 2], &[]));
}

fn deliver_once(network: &mut TestNetwork) {
    for flying in std::mem::take(&mut network.in_flight) {
        network.deliver(flying.message.to, vec![flying]);
    }
}

/// It has the entry that removes it, and no member knows yet that it is committed, when it is elected.
#[test]
fn leader_can_commit_its_own_removal() {
    let mut network = grown(11);
    network.change(1, MemberChange::remove(2));
    network.with(1, |member| member.write_all());
    deliver_once(&mut network);
    for id in [2, 3] {
        network.with(id, |member| member.write_all());
    }
    network.with(1, |member| member.crash());
    network.in_flight.clear();
    // Long enough to expire the old leader.
    (0..6).for_each(|_| network.with(3, |member| member.handle(Event::Tick)));
    for _ in 0..100 {
        if network.oracle.latest_leader() == Some(2) {
            break;
        }
        network.with(2, |member| member.handle(Event::Tick));
        [2, 3].iter().for_each(|id| network.with(*id, |member| member.write_all()));
        deliver_once(&mut network);
    }
    // Its first entry reaches member 3, the proposal after it does not.
    let lost = network.propose(2);
    network.with(2, |member| assert!(member.write_one()));
    let first = network.in_flight.iter().position(|flying| flying.message.to == 3).unwrap();
    let first = network.in_flight.remove(first);
    network.in_flight.clear();
    network.deliver(3, vec![first]);
    network.with(3, |member| member.write_all());
    deliver_once(&mut network);
    assert_eq!(*network.oracle.members(), members(&[1, 3], &[]), "it committed its own removal");
    assert!(network.oracle.unknown.contains(&lost), "and does not receive later changes");
    let removed = network.member(2);
    removed.propose(900);
    let refused = MemberOutput::Dropped { proposal: 900, reason: DropReason::NotLeader { leader: None } };
    assert_eq!(removed.take_outcomes(), [refused], "it leads no more");
    network.start(1);
    let leader = network.elect();
    assert!([1, 3].contains(&leader));
    network.tick(5);
    let (left, right) = (network.member(1).state().to_vec(), network.member(3).state().to_vec());
    assert_eq!(left, right);
}

#[test]
fn shrink_to_one_voter_leads_at_once() {
    let mut network = grown(12);
    change(&mut network, MemberChange::new([MemberStep::Remove(2), MemberStep::Remove(3)]));
    assert_eq!(*network.oracle.members(), members(&[1], &[]));
    for id in 1..=3 {
        network.with(id, |member| member.crash());
    }
    network.start(1);
    network.settle();
    assert_eq!(network.leader(), Some(1), "without a tick, after the changes were applied again");
}

/// At its start it only knows that it was alone when the log began.
#[test]
fn founder_of_grown_group_needs_quorum() {
    for snapshot in [false, true] {
        let mut network = grown(13);
        if snapshot {
            network.with(1, |member| member.snapshot());
        }
        for id in 1..=3 {
            network.with(id, |member| member.crash());
        }
        let terms = network.oracle.terms_with_leaders();
        network.start(1);
        network.tick(100);
        assert_eq!(network.oracle.terms_with_leaders(), terms, "nobody is elected");
        network.start(2);
        network.elect();
    }
}

/// The leader crashes in the joint phase; the next leader ends it, also from a snapshot of it.
#[test]
fn joint_phase_survives_leader_loss() {
    for snapshot in [false, true] {
        let mut network = TestNetwork::with_joiners(3, 2, 14);
        let old = network.elect();
        network.change(old, MemberChange::promote([4, 5]));
        // Until all are in the joint phase, and none has the end of it.
        for _ in 0..20 {
            for flying in std::mem::take(&mut network.in_flight) {
                network.deliver(flying.message.to, vec![flying]);
            }
            for id in network.ids() {
                network.with(id, |member| member.write_all());
            }
            let inside = |id: &u64, network: &TestNetwork| {
                let machine = network.members[*id as usize - 1].machine().unwrap();
                !machine.members().voters_outgoing.is_empty()
            };
            if (1..=3).filter(|id| inside(id, &network)).count() >= 2 {
                break;
            }
        }
        network.in_flight.clear();
        if snapshot {
            for id in network.ids() {
                network.with(id, |member| member.snapshot());
            }
        }
        for id in network.ids() {
            network.with(id, |member| member.crash());
        }
        for id in network.ids().into_iter().filter(|id| *id != old) {
            network.start(id);
        }
        let new = network.elect();
        network.tick(10);
        assert_ne!(new, old);
        assert_eq!(*network.oracle.members(), members(&[1, 2, 3, 4, 5], &[]));
    }
}
