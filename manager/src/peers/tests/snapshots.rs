//! Snapshots arrive, however often their connection breaks.

use super::super::*;
use super::gate::Gate;
use super::world::{World, all_connected, message, snapshot, until};
use crate::store::Heard;

const SIZE: usize = 20 << 20;

fn bytes() -> Bytes {
    (0..SIZE).map(|at| (at % 251) as u8).collect::<Vec<_>>().into()
}

async fn sent(node: &mut super::world::Node) -> (MemberId, bool) {
    loop {
        if let Heard::SnapshotSent { to, delivered } = node.next().await {
            return (to, delivered);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_whose_connection_breaks_goes_on_where_it_was() {
    let mut world = World::new();
    let (first, second) = (world.listen(1), world.listen(2));
    let gate = Gate::before(world.addresses[&2]).await;
    world.addresses.insert(2, gate.address);
    let mut nodes = vec![world.start(1, first, world.state()), world.start(2, second, world.state())];
    all_connected(&nodes).await;
    nodes[0].files.own.lock().unwrap().insert(9, bytes());
    gate.cut_after(8 << 20);
    nodes[0].outgoing.send(vec![snapshot(1, 2, 9), message(1, 2, 1, 0)]);
    assert_eq!(nodes[1].message().await, message(1, 2, 1, 0), "other messages do not wait for it");
    assert_eq!(sent(&mut nodes[0]).await, (2, true));
    let received = nodes[1].files.received.lock().unwrap();
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].0, snapshot(1, 2, 9));
    assert!(received[0].1 == bytes(), "byte by byte");
    let twice = gate.passed() - SIZE as u64;
    assert!(twice < 4 << 20, "{twice} bytes were sent twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raft_hears_of_every_snapshot_that_cannot_be_sent() {
    let (_world, mut nodes) = World::of(2).await;
    nodes[0].outgoing.send(vec![snapshot(1, 2, 9)]);
    assert_eq!(sent(&mut nodes[0]).await, (2, false), "it is not there any more");
    nodes[0].outgoing.send(vec![snapshot(1, 7, 9)]);
    assert_eq!(sent(&mut nodes[0]).await, (7, false), "nobody knows that member");
    nodes[0].files.own.lock().unwrap().insert(9, bytes());
    nodes.pop().unwrap().kill().await;
    nodes[0].outgoing.send(vec![snapshot(1, 2, 9)]);
    assert_eq!(sent(&mut nodes[0]).await, (2, false), "it is away");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_of_nothing_arrives_as_well() {
    let (_world, mut nodes) = World::of(2).await;
    nodes[0].files.own.lock().unwrap().insert(9, Bytes::new());
    nodes[0].outgoing.send(vec![snapshot(1, 2, 9)]);
    assert_eq!(sent(&mut nodes[0]).await, (2, true));
    assert_eq!(nodes[1].files.received.lock().unwrap().len(), 1);
}

/// A disk that takes longer than the sender would wait for a word.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_is_made_durable_slowly_is_sent_once() {
    let mut world = World::new();
    let (first, second) = (world.listen(1), world.listen(2));
    let gate = Gate::before(world.addresses[&2]).await;
    world.addresses.insert(2, gate.address);
    let mut nodes = vec![world.start(1, first, world.state()), world.start(2, second, world.state())];
    all_connected(&nodes).await;
    nodes[0].files.own.lock().unwrap().insert(9, bytes());
    nodes[1].files.hold.send_replace(true);
    nodes[0].outgoing.send(vec![snapshot(1, 2, 9)]);
    let received = || nodes[1].files.received.lock().unwrap().len();
    until("all of it to be there", || received() == 1).await;
    let began = std::time::Instant::now();
    until("the sender's patience to be over", || began.elapsed() > 2 * super::super::install::PATIENCE).await;
    assert_eq!(received(), 1);
    nodes[1].files.hold.send_replace(false);
    assert_eq!(sent(&mut nodes[0]).await, (2, true));
    let more = gate.passed() - SIZE as u64;
    assert!(more < 4 << 20, "{more} bytes were sent twice");
}

/// The leader dies while its snapshot is on its way, and the next one has the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_leader_goes_on_with_the_same_snapshot() {
    let mut world = World::new();
    let (first, second, third) = (world.listen(1), world.listen(2), world.listen(3));
    let gate = Gate::before(world.addresses[&3]).await;
    world.addresses.insert(3, gate.address);
    let listeners = (1..).zip([first, second, third]);
    let mut nodes: Vec<_> =
        listeners.map(|(member, listener)| world.start(member, listener, world.state())).collect();
    all_connected(&nodes).await;
    for node in &nodes {
        node.files.own.lock().unwrap().insert(9, bytes());
    }
    let mut leader = nodes.remove(0);
    let before = gate.passed();
    gate.freeze_after(8 << 20);
    leader.outgoing.send(vec![snapshot(1, 3, 9)]);
    until("half of it to be on its way", || gate.passed() >= before + (8 << 20)).await;
    leader.kill().await;
    gate.freeze(false);
    let later = Message { term: 2, ..snapshot(2, 3, 9) };
    nodes[0].outgoing.send(vec![later.clone()]);
    assert_eq!(sent(&mut nodes[0]).await, (3, true));
    let received = nodes[1].files.received.lock().unwrap();
    assert_eq!((received.len(), &received[0].0), (1, &later), "raft hears of it from the one that leads");
    assert!(received[0].1 == bytes(), "byte by byte");
    let twice = gate.passed() - before - SIZE as u64;
    assert!(twice < 4 << 20, "{twice} bytes were sent twice");
}
