//! Three voters: elections, followers, slow disks, members that fall behind.

use warren_consensus::{DropReason, Event, MessageKind};

use crate::{member::Outcome, network::Network};

fn others(leader: u64) -> [u64; 2] {
    [[2, 3], [1, 3], [1, 2]][leader as usize - 1]
}

fn isolate(network: &mut Network, id: u64) {
    for other in others(id) {
        network.cut.extend([(id, other), (other, id)]);
    }
}

fn equal_states(network: &Network) -> bool {
    network.members.windows(2).all(|pair| pair[0].state() == pair[1].state())
}

#[test]
fn three_voters_elect_one_and_apply_the_same() {
    let mut network = Network::new(3, 1);
    let leader = network.elect();
    for _ in 0..5 {
        network.propose(leader);
    }
    network.settle();
    network.pass(3);
    assert!(equal_states(&network));
    assert_eq!(network.member(leader).state().len(), 1 + 1 + 5);
}

#[test]
fn a_follower_refuses_and_names_the_leader() {
    let mut network = Network::new(3, 2);
    let leader = network.elect();
    let follower = network.member(others(leader)[0]);
    follower.propose(99);
    let reason = DropReason::NotLeader { leader: Some(leader) };
    assert_eq!(follower.take_outcomes(), [Outcome::Dropped { proposal: 99, reason }]);
    assert_eq!(follower.outbox, [], "and does not forward it");
}

#[test]
fn an_idle_group_writes_nothing_and_keeps_its_leader() {
    let mut network = Network::new(3, 3);
    network.elect();
    network.pass(20);
    let writes = |network: &Network| -> Vec<u64> {
        network.members.iter().map(|member| member.disk.durable_writes()).collect()
    };
    let (before, terms) = (writes(&network), network.truth.terms_with_leaders());
    network.pass(500);
    assert_eq!(writes(&network), before);
    assert_eq!(network.truth.terms_with_leaders(), terms);
}

#[test]
fn a_leader_with_a_slow_disk_commits_by_the_others() {
    let mut network = Network::new(3, 4);
    let leader = network.elect();
    let proposal = network.propose(leader);
    assert_eq!(network.member(leader).writes_waiting(), 1);
    // Everyone but the leader writes; messages pass.
    for _ in 0..4 {
        for id in others(leader) {
            network.with(id, |member| member.write_all());
        }
        for flying in std::mem::take(&mut network.flying) {
            network.deliver(flying.message.to, vec![flying]);
        }
    }
    let applied = |network: &mut Network, id: u64| {
        network.member(id).state().iter().any(|(.., data)| *data == format!("command {proposal}"))
    };
    assert!(applied(&mut network, others(leader)[0]), "two of three have it");
    assert!(!applied(&mut network, leader), "a member applies only what it has written itself");
    network.settle();
    assert!(network.truth.acknowledged.contains(&proposal));
}

#[test]
fn no_vote_and_no_append_leaves_before_the_term_is_written() {
    let mut network = Network::new(3, 5);
    for _ in 0..40 {
        network.with(1, |member| member.on(Event::Tick));
        let waiting = network.member(1).writes_waiting() > 0;
        for flying in &network.flying {
            assert_eq!(flying.message.kind, MessageKind::PreVote, "nothing else is sent unwritten");
        }
        if waiting {
            break;
        }
        // Answer the pre-votes, do not let member 1 write.
        for _ in 0..2 {
            for flying in std::mem::take(&mut network.flying) {
                network.deliver(flying.message.to, vec![flying]);
            }
        }
    }
    assert_eq!(network.member(1).writes_waiting(), 1);
    assert!(network.flying.is_empty());
    network.with(1, |member| member.write_all());
    assert!(network.flying.iter().all(|flying| flying.message.kind == MessageKind::Vote));
    assert_eq!(network.flying.len(), 2);
}

#[test]
fn a_proposal_of_a_cut_off_leader_is_superseded() {
    let mut network = Network::new(3, 6);
    let old = network.elect();
    isolate(&mut network, old);
    let lost = network.propose(old);
    network.pass(40);
    let new = network.elect();
    assert_ne!(new, old);
    network.cut.clear();
    network.pass(10);
    assert!(network.truth.refused.contains(&lost));
    assert!(!network.truth.acknowledged.contains(&lost));
    assert!(equal_states(&network));
}

#[test]
fn a_leader_without_a_quorum_steps_down() {
    let mut network = Network::new(3, 7);
    let old = network.elect();
    isolate(&mut network, old);
    network.pass(15);
    let member = network.member(old);
    member.propose(77);
    let refused = Outcome::Dropped { proposal: 77, reason: DropReason::NotLeader { leader: None } };
    assert_eq!(member.take_outcomes(), [refused]);
}

#[test]
fn a_member_far_behind_gets_a_snapshot_and_the_rest() {
    let mut network = Network::new(3, 8);
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
    network.pass(30);
    assert_eq!(network.member(behind).snapshots.len(), 1, "it came as a snapshot");
    assert!(equal_states(&network));
    // It restarts from the snapshot it was sent.
    network.with(behind, |member| member.crash());
    network.start(behind);
    network.pass(30);
    assert!(equal_states(&network));
}

#[test]
fn a_lost_proposal_covered_by_a_snapshot_is_unknown() {
    let mut network = Network::new(3, 9);
    let old = network.elect();
    isolate(&mut network, old);
    let lost = network.propose(old);
    network.with(old, |member| member.write_all());
    network.flying.clear();
    network.pass(40);
    let new = network.elect();
    assert_ne!(new, old);
    for _ in 0..30 {
        network.propose(new);
        network.settle();
    }
    network.with(new, |member| member.snapshot());
    network.cut.clear();
    network.pass(30);
    assert!(network.truth.unknown.contains(&lost));
    assert!(!network.truth.refused.contains(&lost));
    assert!(equal_states(&network));
}

#[test]
fn a_follower_can_ask_to_read() {
    let mut network = Network::new(3, 10);
    let leader = network.elect();
    network.propose(leader);
    network.settle();
    network.read(others(leader)[1]);
    network.read(leader);
    network.settle();
    assert_eq!(network.truth.reads_answered, 2);
}

#[test]
fn a_cut_off_leader_answers_no_read() {
    let mut network = Network::new(3, 11);
    let old = network.elect();
    isolate(&mut network, old);
    network.read(old);
    network.settle();
    assert_eq!(network.truth.reads_answered, 0);
}

#[test]
fn messages_for_someone_else_mean_nothing() {
    let mut network = Network::new(3, 12);
    let leader = network.elect();
    network.with(leader, |member| (0..3).for_each(|_| member.on(Event::Tick)));
    let flying = network.flying.pop().unwrap();
    let wrong = (1..=3).find(|id| *id != flying.message.to && *id != leader).unwrap();
    network.flying.clear();
    network.deliver(wrong, vec![flying]);
    assert!(network.flying.is_empty());
}

/// A leader, and a follower that crashed before the latest `missed` entries.
fn with_one_behind(seed: u64, missed: usize) -> (Network, u64, u64) {
    let mut network = Network::new(3, seed);
    let leader = network.elect();
    network.pass(5);
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
fn a_member_a_little_behind_gets_the_kept_entries() {
    // The members keep five entries before a snapshot.
    for (missed, snapshots) in [(5, 0), (6, 1)] {
        let (mut network, _, behind) = with_one_behind(13, missed);
        network.start(behind);
        network.pass(30);
        assert_eq!(network.member(behind).snapshots.len(), snapshots, "{missed} missed");
        assert!(equal_states(&network));
    }
}

#[test]
fn a_snapshot_that_got_lost_is_sent_again() {
    let (mut network, leader, behind) = with_one_behind(14, 10);
    network.start(behind);
    let mut lost = false;
    for _ in 0..200 {
        network.with(leader, |member| member.on(Event::Tick));
        for flying in std::mem::take(&mut network.flying) {
            if flying.message.kind == MessageKind::Snapshot && !lost {
                lost = true;
                network.lose(flying, true);
            } else {
                network.deliver(flying.message.to, vec![flying]);
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
fn a_member_that_was_cut_off_does_not_disturb_when_it_returns() {
    let mut network = Network::new(3, 15);
    let leader = network.elect();
    let away = others(leader)[1];
    isolate(&mut network, away);
    network.pass(100);
    let terms = network.truth.terms_with_leaders();
    network.cut.clear();
    network.pass(50);
    assert_eq!(network.truth.terms_with_leaders(), terms);
    assert_eq!(network.elect(), leader);
}
