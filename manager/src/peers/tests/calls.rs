//! Writes for the leader, and the other calls.

use tokio::task::JoinSet;
use warren_core::{Answer, Applied, Outcome};
use warren_proto::v1;
use warren_types::{Id, ServiceId};

use super::super::*;
use super::world::{Node, PATIENCE, World};
use crate::store::{Proposal, Written};

fn command(number: u128) -> Command {
    Command::DeleteService { term: 1, id: ServiceId(Id(number)) }
}

/// In place of a driver: applies what is proposed, one place after the other.
async fn drive(mut node: Node, from: u64) -> Node {
    let mut index = from;
    while let Ok(Some(Proposal { reply, .. })) =
        tokio::time::timeout(Duration::from_secs(1), node.inbox.proposals.recv()).await
    {
        index += 1;
        let (place, outcome) = (Applied { term: 1, index }, Outcome::Unchanged { answer: Answer::Done });
        reply.send(Ok(Written { place, outcome })).unwrap();
    }
    node
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_reach_the_leader_and_each_hears_its_place() {
    let (world, mut nodes) = World::of(2).await;
    let follower = nodes.pop().unwrap();
    let leader = nodes.pop().unwrap();
    leader.publish(1, world.state());
    let driven = tokio::spawn(drive(leader, 100));
    let mut writes = JoinSet::new();
    for number in 0..500 {
        let forwarded = follower.peers.forward(1, vec![command(number)], PATIENCE);
        writes.spawn(async move { forwarded.await.pop().unwrap().unwrap().index });
    }
    let many = follower.peers.forward(1, (0..1000).map(command).collect(), PATIENCE).await;
    let mut places: Vec<_> = writes.join_all().await;
    places.extend(many.into_iter().map(|place| place.unwrap().index));
    places.sort_unstable();
    assert_eq!(places, (101..=1600).collect::<Vec<_>>());
    driven.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_not_proposed_is_told_apart_from_what_nobody_knows() {
    let (world, mut nodes) = World::of(2).await;
    let follower = nodes.pop().unwrap();
    let mut leader = nodes.pop().unwrap();
    leader.publish(1, world.state());
    let forward = |to, within| follower.peers.forward(to, vec![command(1)], within);
    let to_nobody = forward(7, PATIENCE).await.pop().unwrap();
    assert!(matches!(to_nobody, Err(ProposeError::NotLeader)), "{to_nobody:?}");
    let late = forward(1, Duration::ZERO).await.pop().unwrap();
    assert!(matches!(late, Err(ProposeError::Busy)), "{late:?}");
    // The leader takes it, and is killed before it says what became of it.
    let forwarded = tokio::spawn(forward(1, PATIENCE));
    let taken = tokio::time::timeout(PATIENCE, leader.inbox.proposals.recv()).await.unwrap();
    leader.kill().await;
    let unknown = forwarded.await.unwrap().pop().unwrap();
    assert!(matches!(unknown, Err(ProposeError::Unconfirmed(_))), "{unknown:?}");
    drop(taken);
    super::world::until("the line to close", || follower.peers.client(1).is_none()).await;
    let away = forward(1, PATIENCE).await.pop().unwrap();
    assert!(matches!(away, Err(ProposeError::NotLeader)), "{away:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn managers_ask_each_other_how_they_are() {
    let (world, nodes) = World::of(2).await;
    nodes[0].publish(1, world.state());
    let mut client = nodes[1].peers.client(1).unwrap();
    let status = client.status(v1::StatusRequest {}).await.unwrap().into_inner();
    let (applied, digest) = (world.state().applied().index, world.state().digest().value);
    assert_eq!((status.member, status.leader, status.applied, status.digest), (1, 1, applied, digest));
    assert!(client.contacts(v1::ContactsRequest { term: 1 }).await.is_ok());
    let stale = client.contacts(v1::ContactsRequest { term: 0 }).await.unwrap_err();
    assert_eq!(stale.code(), tonic::Code::FailedPrecondition);
    let alone = client.transfer_leadership(v1::TransferRequest { to: 2 }).await.unwrap_err();
    assert_eq!(alone.code(), tonic::Code::FailedPrecondition, "the group has no other voter");
    assert!(client.heard(v1::HeardRequest::default()).await.is_ok());
    assert!(nodes[1].peers.client(7).is_none());
}

/// Streams that another manager passes on share a connection, which takes no more calls than some: what is too much is
/// refused at once, and other calls find room beside all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_streams_than_a_manager_passes_on_are_refused_and_hold_up_nothing() {
    let (_world, nodes) = World::of(2).await;
    let peers = &nodes[0].peers;
    assert_eq!(peers.relay(7).map(|_| ()), Err(NoRelay::Away));
    let mut open = Vec::new();
    while let Ok((channel, place)) = peers.relay(2) {
        let mut client = PeersClient::new(channel);
        let stream = client.relay(tokio_stream::pending());
        let stream =
            tokio::time::timeout(PATIENCE, stream).await.expect("it need not wait for others").unwrap();
        open.push((stream, place));
    }
    assert_eq!(open.len(), MAX_RELAYS);
    let refused = peers.relay(2).map(|_| ()).unwrap_err();
    assert_eq!(refused, NoRelay::Full(2));
    assert!(refused.to_string().contains("try again when some have ended"), "{refused}");
    let mut client = peers.client(2).unwrap();
    let heard = client.heard(v1::HeardRequest::default());
    tokio::time::timeout(PATIENCE, heard).await.expect("there is room for it").unwrap();
    open.pop();
    assert!(peers.relay(2).is_ok());
}
