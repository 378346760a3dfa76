//! Three voters: elections, followers, slow disks, members that fall behind.

use warren_consensus::{DropReason, Event, MessageKind};

use crate::{member::MemberOutput, network::TestNetwork};

fn others(leader: u64) -> [u64; 2] {
    [[2, 3], [1, 3], [1, 2]][leader as usize - 1]
}

fn isolate(network: &mut TestNetwork, id: u64) {
    for other in others(id) {
        network.cut.extend([(id, other), (other, id)]);
    }
}

fn equal_states(network: &TestNetwork) -> bool {
    network.members.windows(2).all(|pair| pair[0].state() == pair[1].state())
}

#[test]
fn three_voters_elect_leader_and_converge() {
    let mut network = TestNetwork::new(3, 1);
    let leader = network.elect();
    for _ in 0..5 {
        network.propose(leader);
    }
    network.settle();
    network.tick(3);
    assert!(equal_states(&network));
    assert_eq!(network.member(leader).state().len(), 1 + 1 + 5);
}

#[test]
fn follower_drops_proposal_with_leader_id() {
    let mut network = TestNetwork::new(3, 2);
    let leader = network.elect();
    let follower = network.member(others(leader)[0]);
    follower.propose(99);
    let reason = DropReason::NotLeader { leader: Some(leader) };
    assert_eq!(follower.take_outcomes(), [MemberOutput::Dropped { proposal: 99, reason }]);
    assert_eq!(follower.outbox, [], "and does not forward it");
}

#[test]
fn an_idle_group_writes_nothing_and_keeps_its_leader() {
    let mut network = TestNetwork::new(3, 3);
    network.elect();
    network.tick(20);
    let writes = |network: &TestNetwork| -> Vec<u64> {
        network.members.iter().map(|member| member.disk.durable_writes()).collect()
    };
    let (before, terms) = (writes(&network), network.oracle.terms_with_leaders());
    network.tick(500);
    assert_eq!(writes(&network), before);
    assert_eq!(network.oracle.terms_with_leaders(), terms);
}

#[test]
fn slow_leader_commits_with_followers() {
    let mut network = TestNetwork::new(3, 4);
    let leader = network.elect();
    let proposal = network.propose(leader);
    assert_eq!(network.member(leader).writes_waiting(), 1);
    // All but the leader write; messages pass.
    for _ in 0..4 {
        for id in others(leader) {
            network.with(id, |member| member.write_all());
        }
        for in_flight in std::mem::take(&mut network.in_flight) {
            network.deliver(in_flight.message.to, vec![in_flight]);
        }
    }
    let applied = |network: &mut TestNetwork, id: u64| {
        network.member(id).state().iter().any(|(.., data)| *data == format!("command {proposal}"))
    };
    assert!(applied(&mut network, others(leader)[0]), "two of three have it");
    assert!(!applied(&mut network, leader), "a member applies only what it has written itself");
    network.settle();
    assert!(network.oracle.acknowledged.contains(&proposal));
}

#[test]
fn messages_wait_for_durable_term() {
    let mut network = TestNetwork::new(3, 5);
    for _ in 0..40 {
        network.with(1, |member| member.handle(Event::Tick));
        let waiting = network.member(1).writes_waiting() > 0;
        for in_flight in &network.in_flight {
            assert_eq!(in_flight.message.kind, MessageKind::PreVote, "nothing else is sent unwritten");
        }
        if waiting {
            break;
        }
        // Respond to the pre-votes, do not let member 1 write.
        for _ in 0..2 {
            for in_flight in std::mem::take(&mut network.in_flight) {
                network.deliver(in_flight.message.to, vec![in_flight]);
            }
        }
    }
    assert_eq!(network.member(1).writes_waiting(), 1);
    assert!(network.in_flight.is_empty());
    network.with(1, |member| member.write_all());
    assert!(network.in_flight.iter().all(|in_flight| in_flight.message.kind == MessageKind::Vote));
    assert_eq!(network.in_flight.len(), 2);
}

#[test]
fn proposal_of_partitioned_leader_is_superseded() {
    let mut network = TestNetwork::new(3, 6);
    let old = network.elect();
    isolate(&mut network, old);
    let lost = network.propose(old);
    network.tick(40);
    let new = network.elect();
    assert_ne!(new, old);
    network.cut.clear();
    network.tick(10);
    assert!(network.oracle.refused.contains(&lost));
    assert!(!network.oracle.acknowledged.contains(&lost));
    assert!(equal_states(&network));
}

#[test]
fn a_leader_without_a_quorum_steps_down() {
    let mut network = TestNetwork::new(3, 7);
    let old = network.elect();
    isolate(&mut network, old);
    network.tick(15);
    let member = network.member(old);
    member.propose(77);
    let refused = MemberOutput::Dropped { proposal: 77, reason: DropReason::NotLeader { leader: None } };
    assert_eq!(member.take_outcomes(), [refused]);
}

#[test]
fn lagging_member_gets_snapshot_then_entries() {
    let mut network = TestNetwork::new(3, 8);
    let leader = network.elect();
    let behind = others(leader)[0];
    network.with(behind, |member| member.crash());
    for _ in 0..30 {
        network.propose(leader);
        network.settle();
    }
    network.with(leader, |member| member.snapshot());
    for _ in 0..3 {
        network.propose(leader);
    }
    network.settle();
    network.start(behind);
    network.tick(30);
    assert_eq!(network.member(behind).snapshots.len(), 1, "it came as a snapshot");
    assert!(equal_states(&network));
    // It restarts from the snapshot it was sent.
    network.with(behind, |member| member.crash());
    network.start(behind);
    network.tick(30);
    assert!(equal_states(&network));
}

#[test]
fn proposal_covered_by_snapshot_is_indeterminate() {
    let mut network = TestNetwork::new(3, 9);
    let old = network.elect();
    isolate(&mut network, old);
    let lost = network.propose(old);
    network.with(old, |member| member.write_all());
    network.in_flight.clear();
    network.tick(40);
    let new = network.elect();
    assert_ne!(new, old);
    for _ in 0..30 {
        network.propose(new);
        network.settle();
    }
    network.with(new, |member| member.snapshot());
    network.cut.clear();
    network.tick(30);
    assert!(network.oracle.unknown.contains(&lost));
    assert!(!network.oracle.refused.contains(&lost));
    assert!(equal_states(&network));
}

#[test]
fn a_follower_can_ask_to_read() {
    let mut network = TestNetwork::new(3, 10);
    let leader = network.elect();
    network.propose(leader);
    network.settle();
    network.read(others(leader)[1]);
    network.read(leader);
    network.settle();
    assert_eq!(network.oracle.reads_answered, 2);
}

#[test]
fn partitioned_leader_answers_no_read() {
    let mut network = TestNetwork::new(3, 11);
    let old = network.elect();
    isolate(&mut network, old);
    network.read(old);
    network.settle();
    assert_eq!(network.oracle.reads_answered, 0);
}

#[test]
fn misaddressed_message_is_ignored() {
    let mut network = TestNetwork::new(3, 12);
    let leader = network.elect();
    network.with(leader, |member| (0..3).for_each(|_| member.handle(Event::Tick)));
    let in_flight = network.in_flight.pop().unwrap();
    let wrong = (1..=3).find(|id| *id != in_flight.message.to && *id != leader).unwrap();
    network.in_flight.clear();
    network.deliver(wrong, vec![in_flight]);
    assert!(network.in_flight.is_empty());
}

/// A leader, and a follower that crashed before the latest `missed` entries.
fn with_one_behind(seed: u64, missed: usize) -> (TestNetwork, u64, u64) {
    let mut network = TestNetwork::new(3, seed);
    let leader = network.elect();
    network.tick(5);
    let behind = others(leader)[0];
    network.with(behind, |member| member.crash());
    for _ in 0..missed {
        network.propose(leader);
        network.settle();
    }
    network.with(leader, |member| member.snapshot());
    (network, leader, behind)
}

#[test]
fn slightly_lagging_member_gets_entries() {
    // The members keep five entries before a snapshot.
    for (missed, snapshots) in [(5, 0), (6, 1)] {
        let (mut network, _, behind) = with_one_behind(13, missed);
        network.start(behind);
        network.tick(30);
        assert_eq!(network.member(behind).snapshots.len(), snapshots, "{missed} missed");
        assert!(equal_states(&network));
    }
}

#[test]
fn lost_snapshot_is_sent_again() {
    let (mut network, leader, behind) = with_one_behind(14, 10);
    network.start(behind);
    let mut lost = false;
    for _ in 0..200 {
        network.with(leader, |member| member.handle(Event::Tick));
        for in_flight in std::mem::take(&mut network.in_flight) {
            if in_flight.message.kind == MessageKind::Snapshot && !lost {
                lost = true;
                network.drop_message(in_flight, true);
            } else {
                network.deliver(in_flight.message.to, vec![in_flight]);
            }
        }
        for id in network.ids() {
            network.with(id, |member| member.write_all());
        }
        if lost && equal_states(&network) {
            return;
        }
    }
    panic!("lost: {lost}; the member never caught up");
}

#[test]
fn returning_member_does_not_disrupt() {
    let mut network = TestNetwork::new(3, 15);
    let leader = network.elect();
    let away = others(leader)[1];
    isolate(&mut network, away);
    network.tick(100);
    let terms = network.oracle.terms_with_leaders();
    network.cut.clear();
    network.tick(50);
    assert_eq!(network.oracle.terms_with_leaders(), terms);
    assert_eq!(network.elect(), leader);
}
