//! Forwarded writes, and the other calls.

use tokio::task::JoinSet;
use warren_core::{AppliedIndex, CommandResponse};
use warren_proto::v1;
use warren_store::{AppliedWrite, QueuedProposal};
use warren_types::{Id, ServiceId};

use super::super::*;
use super::fixture::{PeersFixture, TEST_TIMEOUT, TestManager};

fn command(number: u128) -> Command {
    Command::DeleteService { term: 1, id: ServiceId(Id(number)) }
}

/// Instead of a driver: applies `count` proposals one after the other, the first one at `first`.
async fn drive(mut node: TestManager, first: u64, count: u64) -> TestManager {
    for index in first..first + count {
        let proposal = tokio::time::timeout(TEST_TIMEOUT, node.inbox.proposals.recv()).await.unwrap();
        let QueuedProposal { reply, .. } = proposal.unwrap();
        let (position, result) = (AppliedIndex { term: 1, index }, Ok(CommandResponse::Done));
        reply.send(Ok(AppliedWrite { position, result })).unwrap();
    }
    node
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwarded_writes_get_their_log_position() {
    let (world, mut nodes) = PeersFixture::of(2).await;
    let follower = nodes.pop().unwrap();
    let leader = nodes.pop().unwrap();
    leader.publish(1, world.state());
    let driven = tokio::spawn(drive(leader, 101, 1500));
    let mut writes = JoinSet::new();
    for number in 0..500 {
        let forwarded = follower.peers.forward(1, vec![command(number)], TEST_TIMEOUT);
        writes.spawn(async move { forwarded.await.pop().unwrap().unwrap().index });
    }
    let many = follower.peers.forward(1, (0..1000).map(command).collect(), TEST_TIMEOUT).await;
    let mut places: Vec<_> = writes.join_all().await;
    places.extend(many.into_iter().map(|place| place.unwrap().index));
    places.sort_unstable();
    assert_eq!(places, (101..=1600).collect::<Vec<_>>());
    driven.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn not_proposed_differs_from_indeterminate() {
    let (world, mut nodes) = PeersFixture::of(2).await;
    let follower = nodes.pop().unwrap();
    let mut leader = nodes.pop().unwrap();
    leader.publish(1, world.state());
    let forward = |to, within| follower.peers.forward(to, vec![command(1)], within);
    let to_nobody = forward(7, TEST_TIMEOUT).await.pop().unwrap();
    assert!(matches!(to_nobody, Err(ProposeError::NotLeader)), "{to_nobody:?}");
    let late = async {
        loop {
            match forward(1, Duration::ZERO).await.pop().unwrap() {
                // A busy machine took longer than the leader has for its response.
                Err(ProposeError::Indeterminate(_)) => {}
                late => break late,
            }
        }
    };
    let late = tokio::time::timeout(TEST_TIMEOUT, late).await.unwrap();
    assert!(matches!(late, Err(ProposeError::Busy)), "{late:?}");
    // The leader receives it and is killed before it responds.
    let forwarded = tokio::spawn(forward(1, TEST_TIMEOUT));
    let taken = tokio::time::timeout(TEST_TIMEOUT, leader.inbox.proposals.recv()).await.unwrap();
    leader.kill().await;
    let unknown = forwarded.await.unwrap().pop().unwrap();
    assert!(matches!(unknown, Err(ProposeError::Indeterminate(_))), "{unknown:?}");
    drop(taken);
    super::fixture::until("the line to close", || follower.peers.client(1).is_none()).await;
    let away = forward(1, TEST_TIMEOUT).await.pop().unwrap();
    assert!(matches!(away, Err(ProposeError::NotLeader)), "{away:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn managers_exchange_status() {
    let (world, nodes) = PeersFixture::of(2).await;
    nodes[0].publish(1, world.state());
    let mut client = nodes[1].peers.client(1).unwrap();
    assert_eq!(client.status(v1::StatusRequest {}).await.unwrap().into_inner().member_id, 1);
    assert!(client.list_contacts(v1::ListContactsRequest { term: 1 }).await.is_ok());
    let stale = client.list_contacts(v1::ListContactsRequest { term: 0 }).await.unwrap_err();
    assert_eq!(stale.code(), tonic::Code::FailedPrecondition);
    let alone = client.transfer_leadership(v1::TransferRequest { to: 2 }).await.unwrap_err();
    assert_eq!(alone.code(), tonic::Code::FailedPrecondition, "the group has no other voter");
    assert!(client.list_node_reports(v1::ListNodeReportsRequest::default()).await.is_ok());
    assert!(nodes[1].peers.client(7).is_none());
}

/// Relayed streams share a connection with a limited number of calls: excess streams are rejected at once,
/// and other calls are not blocked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn excess_relays_are_refused() {
    let (_world, nodes) = PeersFixture::of(2).await;
    let peers = &nodes[0].peers;
    assert_eq!(peers.relay_channel(7).map(|_| ()), Err(RelayError::Unreachable));
    let mut open = Vec::new();
    while let Ok((channel, place)) = peers.relay_channel(2) {
        let mut client = PeersClient::new(channel);
        let stream = client.relay(tokio_stream::pending());
        let stream =
            tokio::time::timeout(TEST_TIMEOUT, stream).await.expect("it need not wait for others").unwrap();
        open.push((stream, place));
    }
    assert_eq!(open.len(), MAX_RELAYS);
    let refused = peers.relay_channel(2).map(|_| ()).unwrap_err();
    assert_eq!(refused, RelayError::TooManyStreams(2));
    assert!(refused.to_string().contains("try again when some have ended"), "{refused}");
    let mut client = peers.client(2).unwrap();
    let heard = client.list_node_reports(v1::ListNodeReportsRequest::default());
    tokio::time::timeout(TEST_TIMEOUT, heard).await.expect("there is room for it").unwrap();
    open.pop();
    assert!(peers.relay_channel(2).is_ok());
}
