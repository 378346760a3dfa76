//! Snapshots arrive despite broken connections.

use warren_store::RaftInput;

use super::super::*;
use super::fixture::{PeersFixture, all_connected, message, snapshot, until};
use super::proxy::TestProxy;

const SIZE: usize = 20 << 20;

fn bytes() -> Bytes {
    (0..SIZE).map(|at| (at % 251) as u8).collect::<Vec<_>>().into()
}

async fn sent(node: &mut super::fixture::TestManager) -> (MemberId, bool) {
    loop {
        if let RaftInput::SnapshotSent { to, delivered } = node.next().await {
            return (to, delivered);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_snapshot_transfer_resumes() {
    let mut world = PeersFixture::new();
    let (first, second) = (world.listen(1), world.listen(2));
    let gate = TestProxy::in_front_of(world.addresses[&2]).await;
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
async fn failed_snapshot_is_reported_to_raft() {
    let (_world, mut nodes) = PeersFixture::of(2).await;
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
async fn empty_snapshot_arrives() {
    let (_world, mut nodes) = PeersFixture::of(2).await;
    nodes[0].files.own.lock().unwrap().insert(9, Bytes::new());
    nodes[0].outgoing.send(vec![snapshot(1, 2, 9)]);
    assert_eq!(sent(&mut nodes[0]).await, (2, true));
    assert_eq!(nodes[1].files.received.lock().unwrap().len(), 1);
}

/// A disk that takes longer than the sender's timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_install_sends_snapshot_once() {
    let mut world = PeersFixture::new();
    let (first, second) = (world.listen(1), world.listen(2));
    let gate = TestProxy::in_front_of(world.addresses[&2]).await;
    world.addresses.insert(2, gate.address);
    let mut nodes = vec![world.start(1, first, world.state()), world.start(2, second, world.state())];
    all_connected(&nodes).await;
    nodes[0].files.own.lock().unwrap().insert(9, bytes());
    nodes[1].files.is_held.send_replace(true);
    nodes[0].outgoing.send(vec![snapshot(1, 2, 9)]);
    let received = || nodes[1].files.received.lock().unwrap().len();
    until("all of it to be there", || received() == 1).await;
    let began = std::time::Instant::now();
    until("the sender's deadline to be exceeded", || {
        began.elapsed() > 2 * super::super::snapshot_send::PEER_TIMEOUT
    })
    .await;
    assert_eq!(received(), 1);
    nodes[1].files.is_held.send_replace(false);
    assert_eq!(sent(&mut nodes[0]).await, (2, true));
    let more = gate.passed() - SIZE as u64;
    assert!(more < 4 << 20, "{more} bytes were sent twice");
}

/// The leader ends while it sends its snapshot, and the next leader has the same one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_leader_resumes_snapshot() {
    let mut world = PeersFixture::new();
    let (first, second, third) = (world.listen(1), world.listen(2), world.listen(3));
    let gate = TestProxy::in_front_of(world.addresses[&3]).await;
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
    assert_eq!((received.len(), &received[0].0), (1, &later), "raft gets it from the leader");
    assert!(received[0].1 == bytes(), "byte by byte");
    let twice = gate.passed() - before - SIZE as u64;
    assert!(twice < 4 << 20, "{twice} bytes were sent twice");
}
