//! Which nodes are silent.

use std::time::Duration;

use warren_core::Liveness;
use warren_core::liveness::Judgement;
use warren_types::NodeStatus;

use crate::world::*;

const fn at(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[track_caller]
fn judge(
    liveness: &mut Liveness,
    world: &mut World,
    now: Duration,
) -> (Vec<u128>, Vec<u128>, Option<Duration>) {
    let judgement = liveness.judge(&world.state, now);
    assert_eq!(liveness.judge(&world.state, now), judgement, "judging twice");
    for command in judgement.commands(&world.state, world.now) {
        world.accept(command);
    }
    let Judgement { down, back, recheck_after } = judgement;
    let numbers =
        |nodes: Vec<(warren_types::NodeId, u64)>| nodes.into_iter().map(|(node, _)| node.0.0).collect();
    (numbers(down), numbers(back), recheck_after)
}

#[test]
fn a_node_is_down_after_eight_seconds_of_silence() {
    let mut world = World::with_nodes(2);
    let mut liveness = Liveness::start(&world.state, at(1000));
    liveness.heard(node_id(2), at(4000));
    assert_eq!(judge(&mut liveness, &mut world, at(4000)), (vec![], vec![], Some(at(5001))));
    assert_eq!(judge(&mut liveness, &mut world, at(9000)), (vec![], vec![], Some(at(1))));
    assert_eq!(judge(&mut liveness, &mut world, at(9001)), (vec![1], vec![], Some(at(3000))));
    assert_eq!(world.state.node(&node_id(1)).unwrap().status, NodeStatus::Down);
    assert_eq!(judge(&mut liveness, &mut world, at(12_001)), (vec![2], vec![], None));
    assert_eq!(judge(&mut liveness, &mut world, at(99_000)), (vec![], vec![], None));
}

#[test]
fn a_new_leader_gives_every_node_its_full_time() {
    let mut world = World::with_nodes(1);
    let mut liveness = Liveness::start(&world.state, at(500_000));
    assert_eq!(judge(&mut liveness, &mut world, at(508_000)), (vec![], vec![], Some(at(1))));
    assert_eq!(judge(&mut liveness, &mut world, at(508_001)), (vec![1], vec![], None));
    let mut next = Liveness::start(&world.state, at(0));
    assert_eq!(judge(&mut next, &mut world, at(1)), (vec![], vec![], None), "waiting is not hearing");
}

#[test]
fn a_node_that_is_heard_again_comes_back() {
    let mut world = World::with_nodes(1);
    let mut liveness = Liveness::start(&world.state, at(0));
    assert_eq!(judge(&mut liveness, &mut world, at(9000)).0, [1]);
    liveness.heard(node_id(1), at(9500));
    assert_eq!(judge(&mut liveness, &mut world, at(10_000)).1, [1]);
    assert_eq!(world.state.node(&node_id(1)).unwrap().status, NodeStatus::Ready);
}

#[test]
fn a_new_session_is_contact() {
    let mut world = World::with_nodes(1);
    let mut liveness = Liveness::start(&world.state, at(0));
    assert_eq!(judge(&mut liveness, &mut world, at(9000)).0, [1]);
    world.connect(1);
    assert_eq!(judge(&mut liveness, &mut world, at(60_000)), (vec![], vec![], Some(at(8001))));
}

#[test]
fn late_digests_do_not_turn_time_back() {
    let world = World::with_nodes(1);
    let mut liveness = Liveness::start(&world.state, at(5000));
    liveness.heard(node_id(1), at(4000));
    assert_eq!(liveness.last_contact(&node_id(1)), Some(at(5000)));
    liveness.heard(node_id(1), at(6000));
    assert_eq!(liveness.last_contact(&node_id(1)), Some(at(6000)));
    assert_eq!(liveness.last_contact(&node_id(2)), None);
}

#[test]
fn nodes_that_never_connected_are_not_judged() {
    let mut world = World::new();
    let (name, description) = ("one".parse().unwrap(), description(resources(1, 1)));
    world.accept(warren_core::Command::RegisterNode {
        id: node_id(1),
        name,
        role: warren_types::NodeRole::Worker,
        description,
        at: world.now,
    });
    let mut liveness = Liveness::start(&world.state, at(0));
    assert_eq!(judge(&mut liveness, &mut world, at(99_000)), (vec![], vec![], None));
}
