//! Which nodes have no contact.

use std::time::Duration;

use warren_core::Liveness;
use warren_core::liveness::Verdict;
use warren_types::NodeStatus;

use crate::test_cluster::*;

const fn at(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[track_caller]
fn judge(
    liveness: &mut Liveness,
    cluster: &mut TestCluster,
    now: Duration,
) -> (Vec<u128>, Vec<u128>, Option<Duration>) {
    let judgement = liveness.evaluate(&cluster.state, now);
    assert_eq!(liveness.evaluate(&cluster.state, now), judgement, "judging twice");
    for command in judgement.commands(&cluster.state, cluster.now) {
        cluster.accept(command);
    }
    let Verdict { down, recovered: back, recheck_after } = judgement;
    let numbers =
        |nodes: Vec<(warren_types::NodeId, u64)>| nodes.into_iter().map(|(node, _)| node.0.0).collect();
    (numbers(down), numbers(back), recheck_after)
}

#[test]
fn node_is_down_after_eight_seconds_without_contact() {
    let mut cluster = TestCluster::with_nodes(2);
    let mut liveness = Liveness::new(&cluster.state, at(1000));
    liveness.record_contact(node_id(2), at(4000));
    assert_eq!(judge(&mut liveness, &mut cluster, at(4000)), (vec![], vec![], Some(at(5001))));
    assert_eq!(judge(&mut liveness, &mut cluster, at(9000)), (vec![], vec![], Some(at(1))));
    assert_eq!(judge(&mut liveness, &mut cluster, at(9001)), (vec![1], vec![], Some(at(3000))));
    assert_eq!(cluster.state.node(&node_id(1)).unwrap().status, NodeStatus::Down);
    assert_eq!(judge(&mut liveness, &mut cluster, at(12_001)), (vec![2], vec![], None));
    assert_eq!(judge(&mut liveness, &mut cluster, at(99_000)), (vec![], vec![], None));
}

#[test]
fn new_leader_resets_timeouts() {
    let mut cluster = TestCluster::with_nodes(1);
    let mut liveness = Liveness::new(&cluster.state, at(500_000));
    assert_eq!(judge(&mut liveness, &mut cluster, at(508_000)), (vec![], vec![], Some(at(1))));
    assert_eq!(judge(&mut liveness, &mut cluster, at(508_001)), (vec![1], vec![], None));
    let mut next = Liveness::new(&cluster.state, at(0));
    assert_eq!(judge(&mut next, &mut cluster, at(1)), (vec![], vec![], None), "time alone is no contact");
}

#[test]
fn contacted_node_recovers() {
    let mut cluster = TestCluster::with_nodes(1);
    let mut liveness = Liveness::new(&cluster.state, at(0));
    assert_eq!(judge(&mut liveness, &mut cluster, at(9000)).0, [1]);
    liveness.record_contact(node_id(1), at(9500));
    assert_eq!(judge(&mut liveness, &mut cluster, at(10_000)).1, [1]);
    assert_eq!(cluster.state.node(&node_id(1)).unwrap().status, NodeStatus::Ready);
}

#[test]
fn a_new_session_is_contact() {
    let mut cluster = TestCluster::with_nodes(1);
    let mut liveness = Liveness::new(&cluster.state, at(0));
    assert_eq!(judge(&mut liveness, &mut cluster, at(9000)).0, [1]);
    cluster.connect(1);
    assert_eq!(judge(&mut liveness, &mut cluster, at(60_000)), (vec![], vec![], Some(at(8001))));
}

#[test]
fn late_contact_does_not_move_back() {
    let cluster = TestCluster::with_nodes(1);
    let mut liveness = Liveness::new(&cluster.state, at(5000));
    liveness.record_contact(node_id(1), at(4000));
    assert_eq!(liveness.last_contact(&node_id(1)), Some(at(5000)));
    liveness.record_contact(node_id(1), at(6000));
    assert_eq!(liveness.last_contact(&node_id(1)), Some(at(6000)));
    assert_eq!(liveness.last_contact(&node_id(2)), None);
}

#[test]
fn never_connected_node_is_not_marked_down() {
    let mut cluster = TestCluster::new();
    let (name, description) = ("one".parse().unwrap(), description(resources(1, 1)));
    cluster.accept(warren_core::Command::RegisterNode {
        id: node_id(1),
        name,
        role: warren_types::NodeRole::Worker,
        description,
        taints: Default::default(),
        at: cluster.now,
    });
    let mut liveness = Liveness::new(&cluster.state, at(0));
    assert_eq!(judge(&mut liveness, &mut cluster, at(99_000)), (vec![], vec![], None));
}
