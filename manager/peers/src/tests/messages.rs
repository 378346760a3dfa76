//! Raft messages arrive in order, and a slow peer does not affect the others.

use std::net::TcpListener;
use std::time::Instant;

use warren_core::State;
use warren_store::RaftInput;

use super::super::*;
use super::fixture::{PeersFixture, TEST_TIMEOUT, all_connected, id, message, until};
use super::proxy::TestProxy;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_arrive_in_order() {
    let (_world, mut nodes) = PeersFixture::of(3).await;
    let messages = (1..=1000).flat_map(|index| [message(1, 2, index, 1000), message(1, 3, index, 1000)]);
    nodes[0].outgoing.send(messages.collect());
    nodes[1].outgoing.send(vec![message(2, 1, 7, 0)]);
    for node in &mut nodes[1..] {
        let own = node.peers.own_id();
        for index in 1..=1000 {
            assert_eq!(node.message().await, message(1, own, index, 1000));
        }
    }
    assert_eq!(nodes[0].message().await, message(2, 1, 7, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_manager_is_reconnected() {
    let (world, mut nodes) = PeersFixture::of(3).await;
    let killed = nodes.remove(1);
    let listens = killed.listens;
    let _held = killed.kill().await;
    while !matches!(nodes[0].next().await, RaftInput::PeerUnreachable(2)) {}
    nodes[0].outgoing.send(vec![message(1, 2, 1, 1), message(1, 3, 1, 1)]);
    assert_eq!(nodes[1].message().await.index, 1, "the third one is as ever");
    until("the line to close", || nodes[0].peers.client(2).is_none()).await;
    nodes.push(world.start(2, TcpListener::bind(listens).unwrap(), world.state()));
    all_connected(&nodes).await;
    nodes[0].outgoing.send(vec![message(1, 2, 2, 1)]);
    assert_eq!(nodes[2].message().await.index, 2, "what was sent meanwhile is gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_peer_blocks_no_other() {
    let mut world = PeersFixture::new();
    let mut listeners = Vec::new();
    for member in 1..=3 {
        listeners.push(world.listen(member));
    }
    let gate = TestProxy::in_front_of(world.addresses[&2]).await;
    world.addresses.insert(2, gate.address);
    let mut nodes = Vec::new();
    for (member, listener) in (1..).zip(listeners) {
        nodes.push(world.start(member, listener, world.state()));
    }
    all_connected(&nodes).await;
    gate.freeze(true);
    let frozen = Instant::now();
    let mut index = 0;
    while index <= 100 || nodes[0].peers.client(2).is_some() {
        index += 1;
        // Far more than is queued for a peer that reads nothing.
        nodes[0].outgoing.send(vec![message(1, 2, index, 256 << 10), message(1, 3, index, 1)]);
        assert_eq!(nodes[2].message().await.index, index);
        assert!(frozen.elapsed() < TEST_TIMEOUT, "nobody noticed");
    }
    gate.freeze(false);
    all_connected(&nodes).await;
    nodes[0].outgoing.send(vec![message(1, 2, 1_000_000, 1)]);
    while nodes[1].message().await.index != 1_000_000 {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_manager_answers_inbound_peer() {
    let (mut world, mut nodes) = PeersFixture::of(2).await;
    let listener = world.listen(3);
    // It has applied nothing yet, and the second manager has not applied its join.
    nodes.push(world.start(3, listener, State::new()));
    nodes[0].publish(1, world.state());
    until("the new one to know the first", || nodes[2].peers.client(1).is_some()).await;
    nodes[2].outgoing.send(vec![message(3, 1, 1, 0)]);
    assert_eq!(nodes[0].message().await, message(3, 1, 1, 0));
    assert_eq!(nodes[2].peers.others(), [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moved_manager_reports_its_address() {
    let (mut world, mut nodes) = PeersFixture::of(2).await;
    // The next address must be another one.
    let _held = nodes.pop().unwrap().kill().await;
    until("the line to close", || nodes[0].peers.client(2).is_none()).await;
    let before = world.state();
    let listener = world.listen(2);
    nodes.push(world.start(2, listener, before));
    all_connected(&nodes).await;
    let way = || nodes[0].peers.shared.addresses.route(2).unwrap();
    until("its word, which the state does not know yet", || way().addresses.len() == 2).await;
    assert_eq!(way().id, id(2));
    all_connected(&nodes).await;
    nodes[0].outgoing.send(vec![message(1, 2, 1, 1)]);
    assert_eq!(nodes[1].message().await.index, 1);
}
