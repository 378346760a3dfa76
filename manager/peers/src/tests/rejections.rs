//! Rejected callers, and the response to a removed manager.

use tokio_stream::StreamExt;
use tonic::{Code, Status};
use warren_consensus::Message;
use warren_core::{AppliedIndex, State};
use warren_proto::Problem;
use warren_proto::status::INCARNATION_SUPERSEDED;
use warren_proto::v1;
use warren_proto::v1::peers_client::PeersClient;

use super::super::*;
use super::fixture::{PeersFixture, TEST_TIMEOUT, TestManager, apply, id, message, snapshot, until};

const AT: warren_types::Timestamp = warren_types::Timestamp(2);
/// How long a message may take until it is sent again.
const RESEND: std::time::Duration = std::time::Duration::from_millis(200);

/// The state after `member` was removed.
fn without(world: &PeersFixture, member: MemberId) -> State {
    let mut state = world.state();
    apply(&mut state, &Command::RemoveMember { member, at: AT });
    apply(&mut state, &Command::DeleteMember { term: 1, member });
    state
}

/// The state in the next incarnation of the cluster, with member 1 only.
fn forced(world: &PeersFixture) -> State {
    let mut state = world.state();
    let AppliedIndex { term, index } = state.applied();
    state.advance_to(AppliedIndex { term: term + 1, index: index + 1 });
    let alone = (**state.member(1).unwrap()).clone();
    state.begin_incarnation(alone, AT);
    state
}

/// The leader that `node` knows stays active.
async fn keep_leader(node: &TestManager) {
    let mut due = tokio::time::interval(RESEND);
    loop {
        due.tick().await;
        node.publisher.record_leader_seen();
    }
}

/// Sends to `node`, with the certificate of `shown`, a hello as `member` and then `messages`.
async fn converse(
    world: &PeersFixture,
    node: &TestManager,
    shown: MemberId,
    member: MemberId,
    messages: Vec<Message>,
) -> Problem {
    converse_in(world, node, (shown, member, 1), messages).await
}

/// The same, in the given incarnation of the cluster.
async fn converse_in(
    world: &PeersFixture,
    node: &TestManager,
    (shown, member, incarnation): (MemberId, MemberId, u64),
    messages: Vec<Message>,
) -> Problem {
    let address = world.addresses[&node.peers.own_id()].to_string().parse().unwrap();
    let channel = world.dialer(shown).channel(&address, id(node.peers.own_id())).await.unwrap();
    let hello = v1::PeerHello { member_id: member, address: "127.0.0.1:1".into(), incarnation };
    let messages = messages.into_iter().map(codec::to_wire).collect();
    let frames =
        [v1::RaftFrame { hello: Some(hello), messages: Vec::new() }, v1::RaftFrame { hello: None, messages }];
    let frames = tokio_stream::iter(frames).chain(tokio_stream::pending());
    let ended = tokio::time::timeout(TEST_TIMEOUT, PeersClient::new(channel).stream_raft(frames)).await;
    Problem::from(&ended.expect("it is refused").unwrap_err())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_id_of_other_certificate_is_rejected() {
    let (world, nodes) = PeersFixture::of(3).await;
    let hello = async |shown, member| converse(&world, &nodes[0], shown, member, Vec::new()).await;
    let problem = hello(2, 3).await;
    assert_eq!(
        (problem.code, problem.reason.as_str()),
        (Code::PermissionDenied, "MANAGER_ID_MISMATCH"),
        "{problem}"
    );
    let problem = hello(9, 2).await;
    assert_eq!(problem.reason, "MANAGER_ID_MISMATCH", "{problem}");
    let says = async |text: Message| converse(&world, &nodes[0], 4, 4, vec![text]).await;
    let problem = says(message(2, 1, 1, 0)).await;
    assert_eq!(problem.code, Code::PermissionDenied, "{problem}");
    let problem = says(message(4, 3, 1, 0)).await;
    assert_eq!(
        (problem.code, problem.reason.as_str()),
        (Code::FailedPrecondition, "WRONG_RECEIVER"),
        "{problem}"
    );
    let odd = Message { kind: MessageKind::Snapshot, ..message(4, 1, 1, 0) };
    let mut wire = codec::to_wire(odd);
    wire.kind = 99;
    assert!(codec::from_wire(wire).is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manager_of_other_cluster_is_rejected() {
    let (world, nodes) = PeersFixture::of(1).await;
    let other = PeersFixture::new();
    let address = world.addresses[&1].to_string().parse().unwrap();
    assert!(other.dialer(1).channel(&address, id(1)).await.is_err(), "its authority is another");
    assert!(world.dialer(2).channel(&address, id(2)).await.is_err(), "another manager answers there");
    assert_eq!(nodes[0].peers.others(), [] as [MemberId; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_manager_is_told_and_stops() {
    let (world, nodes) = PeersFixture::of(3).await;
    nodes[0].publish(1, without(&world, 3));
    let end = tokio::time::timeout(TEST_TIMEOUT, nodes[2].peers.wait_removed()).await.unwrap();
    assert_eq!(end, RemovalReason::Removed);
    assert_eq!(nodes[0].peers.others(), [2]);
    let problem = converse(&world, &nodes[0], 3, 3, Vec::new()).await;
    assert_eq!(problem.reason, rejection::MEMBER_REMOVED);
    // The second manager has not applied it and has no leader: it cannot tell.
    until("the second one to be as ever", || nodes[2].peers.client(2).is_some()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removal_report_is_ignored_while_leader_is_known() {
    let (world, nodes) = PeersFixture::of(2).await;
    nodes[1].publish(2, world.state());
    nodes[0].publish(1, without(&world, 2));
    until("the refusal", || nodes[1].peers.client(1).is_none()).await;
    assert!(nodes[1].peers.shared.removal.borrow().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaderless_manager_reports_no_removal() {
    let mut world = PeersFixture::new();
    let listener = world.listen(1);
    world.addresses.insert(2, "127.0.0.1:1".parse().unwrap());
    let node = world.start(1, listener, without(&world, 2));
    let problem = converse(&world, &node, 2, 2, Vec::new()).await;
    assert_eq!((problem.code, problem.reason.as_str()), (Code::Unavailable, "NO_LEADER"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removal_in_own_state_stops_manager() {
    let (world, nodes) = PeersFixture::of(2).await;
    nodes[1].publish(1, without(&world, 2));
    let end = tokio::time::timeout(TEST_TIMEOUT, nodes[1].peers.wait_removed()).await.unwrap();
    assert_eq!(end, RemovalReason::Removed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_non_member_are_rejected() {
    let (world, nodes) = PeersFixture::of(2).await;
    let address = world.addresses[&1].to_string().parse().unwrap();
    let call = async |shown: MemberId| {
        let channel = world.dialer(shown).channel(&address, id(1)).await.unwrap();
        let mut client = PeersClient::new(channel);
        let status: Result<_, Status> = client.status(v1::StatusRequest {}).await;
        status.map(|status| status.into_inner().member_id).map_err(|status| Problem::from(&status).reason)
    };
    assert_eq!(call(2).await, Ok(1));
    assert_eq!(call(5).await, Err("MEMBER_UNKNOWN".to_owned()));
    nodes[0].publish(1, without(&world, 2));
    until("the removal", || nodes[0].peers.others().is_empty()).await;
    assert_eq!(call(2).await, Err(rejection::MEMBER_REMOVED.to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_of_non_member_is_rejected() {
    let (world, nodes) = PeersFixture::of(3).await;
    let address = world.addresses[&1].to_string().parse().unwrap();
    let install = async |shown: MemberId, incarnation: u64, message: Message, size| {
        let channel = world.dialer(shown).channel(&address, id(1)).await.unwrap();
        let header =
            v1::SnapshotHeader { message: Some(codec::to_wire(message)), size, incarnation, digest: 0 };
        let first = v1::SnapshotFrame { header: Some(header), chunk: Bytes::new() };
        let frames = tokio_stream::iter([first]).chain(tokio_stream::pending());
        let mut answers = PeersClient::new(channel).install_snapshot(frames).await?.into_inner();
        answers.message().await.map(|answer| answer.map(|answer| answer.offset))
    };
    assert_eq!(install(2, 1, snapshot(2, 1, 9), 5).await.unwrap(), Some(0));
    for (shown, incarnation, message, size, expected) in [
        (2, 1, snapshot(3, 1, 9), 5, Code::PermissionDenied),
        (2, 1, snapshot(2, 3, 9), 5, Code::FailedPrecondition),
        (2, 1, message(2, 1, 9, 0), 5, Code::InvalidArgument),
        (2, 1, snapshot(2, 1, 9), u64::MAX, Code::ResourceExhausted),
        (2, 2, snapshot(2, 1, 9), 5, Code::FailedPrecondition),
    ] {
        assert_eq!(install(shown, incarnation, message, size).await.unwrap_err().code(), expected);
    }
    // Unassigned ids are only admitted without a leader.
    assert_eq!(install(9, 1, snapshot(9, 1, 9), 5).await.unwrap(), Some(0));
    nodes[0].publish(1, world.state());
    assert_eq!(install(9, 1, snapshot(9, 1, 9), 5).await.unwrap_err().code(), Code::Unavailable);
    nodes[0].publish(1, forced(&world));
    until("the next incarnation", || nodes[0].peers.others().is_empty()).await;
    let refused = install(2, 1, snapshot(2, 1, 9), 5).await.unwrap_err();
    assert_eq!(
        (Problem::from(&refused).reason.as_str(), rejection::superseding_incarnation(&refused, 1)),
        (INCARNATION_SUPERSEDED, Some(2))
    );
    assert!(nodes[0].files.received.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn incarnations_exchange_no_messages() {
    let (world, mut nodes) = PeersFixture::of(3).await;
    nodes[0].publish(1, forced(&world));
    // The second manager is in the previous incarnation, and was down when the next one started.
    let end = tokio::time::timeout(TEST_TIMEOUT, nodes[1].peers.wait_removed()).await.unwrap();
    assert_eq!(end, RemovalReason::Superseded { own: 1, newer: 2 });
    // A manager that joined after that state, and one with a false member id.
    for member in [2, 4, 9_000] {
        let heard = converse_in(&world, &nodes[0], (4, member, 1), vec![message(member, 1, 1, 0)]).await;
        assert_eq!(heard.reason, INCARNATION_SUPERSEDED, "{heard}");
    }
    let later = converse_in(&world, &nodes[0], (1, 1, 3), Vec::new()).await;
    assert_eq!(later.reason, "OTHER_INCARNATION", "{later}");
    // The manager of the new incarnation dials those it knew: they reject its messages.
    let heard = converse_in(&world, &nodes[2], (1, 1, 2), vec![message(1, 3, 1, 0)]).await;
    assert_eq!(
        (heard.code, heard.reason.as_str()),
        (Code::FailedPrecondition, "OTHER_INCARNATION"),
        "{heard}"
    );
    let end = tokio::time::timeout(TEST_TIMEOUT, nodes[2].peers.wait_removed()).await.unwrap();
    assert_eq!(end, RemovalReason::Superseded { own: 1, newer: 2 }, "whoever says so");
    // None of the messages were received.
    for (node, from) in [(0, 9_000), (2, 2)] {
        let own = nodes[node].peers.own_id();
        let marker = message(from, own, 77, 0);
        let (world, incarnation) = (&world, if node == 0 { 2 } else { 1 });
        nodes[node].publish(from, if node == 0 { forced(world) } else { world.state() });
        let node = &mut nodes[node];
        let address = world.addresses[&own].to_string().parse().unwrap();
        let channel = world.dialer(from).channel(&address, id(own)).await.unwrap();
        let hello = v1::PeerHello { member_id: from, address: "127.0.0.1:1".into(), incarnation };
        let frame = v1::RaftFrame { hello: Some(hello), messages: Vec::new() };
        let output = v1::RaftFrame { hello: None, messages: vec![codec::to_wire(marker.clone())] };
        let frames = tokio_stream::iter([frame, output]).chain(tokio_stream::pending());
        let mut client = PeersClient::new(channel);
        let talking = client.stream_raft(frames);
        tokio::select! {
            biased;
            heard = node.message() => assert_eq!(heard, marker),
            ended = talking => panic!("{ended:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_manager_reconnects_after_first_state() {
    let (mut world, mut nodes) = PeersFixture::of(2).await;
    let listener = world.listen(3);
    nodes.push(world.start(3, listener, State::new()));
    nodes[0].publish(1, world.state());
    until("the new one to be heard", || nodes[2].peers.client(1).is_some()).await;
    let before = nodes[0].peers.shared.addresses.route(3).unwrap().connection_number;
    // Its messages from now on belong to that state.
    nodes[2].publish(1, world.state());
    let visit = || nodes[0].peers.shared.addresses.route(3).unwrap().connection_number;
    until("another hello", || visit() > before && nodes[2].peers.client(1).is_some()).await;
    // A message is lost if the connection ends meanwhile, and then raft sends it again.
    let received = loop {
        nodes[2].outgoing.send(vec![message(3, 1, 1, 0)]);
        if let Ok(received) = tokio::time::timeout(RESEND, nodes[0].message()).await {
            break received;
        }
    };
    assert_eq!(received, message(3, 1, 1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unassigned_member_id_is_admitted_only_without_leader() {
    let (world, mut nodes) = PeersFixture::of(2).await;
    // The third manager leads now, and this one has not applied its join.
    let talk = converse(&world, &nodes[0], 3, 3, vec![message(3, 1, 1, 0)]);
    tokio::select! {
        ended = talk => panic!("{ended}"),
        () = until("its words to be let in", || nodes[0].peers.others() == [2, 3]) => {}
    }
    assert_eq!(nodes[0].message().await, message(3, 1, 1, 0));
    nodes[0].publish(3, world.state());
    let more = converse(&world, &nodes[0], 3, 3, vec![message(3, 1, 2, 0), message(2, 1, 2, 0)]);
    assert_eq!(more.await.code, Code::PermissionDenied, "the leader itself is admitted, under its own name");
    assert_eq!(nodes[0].message().await, message(3, 1, 2, 0));
    for leader in [1, 2] {
        nodes[0].publish(leader, world.state());
        let refused = tokio::select! {
            refused = converse(&world, &nodes[0], 3, 9, vec![message(9, 1, 1, 0)]) => refused,
            () = keep_leader(&nodes[0]) => unreachable!("it does not end"),
        };
        assert_eq!((refused.code, refused.reason.as_str()), (Code::Unavailable, "MEMBER_UNKNOWN"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hello_does_not_authorize_other_calls() {
    let (mut world, mut nodes) = PeersFixture::of(2).await;
    let listener = world.listen(3);
    let address = |world: &PeersFixture, member| world.addresses[&member].to_string().parse().unwrap();
    let status = async |world: &PeersFixture, to: MemberId, shown: MemberId| {
        let channel = world.dialer(shown).channel(&address(world, to), id(to)).await.unwrap();
        let status = PeersClient::new(channel).status(v1::StatusRequest {}).await;
        status.map(|_| ()).map_err(|status| Problem::from(&status).reason)
    };
    nodes.push(world.start(3, listener, State::new()));
    for (to, expected) in [(1, Err("MEMBER_UNKNOWN".to_owned())), (3, Ok(()))] {
        let node = &nodes[usize::try_from(to).unwrap() - 1];
        let talk = converse(&world, node, 9, 9, Vec::new());
        let asked = async {
            until("the hello", || node.peers.others().contains(&9)).await;
            status(&world, to, 9).await
        };
        tokio::select! {
            ended = talk => panic!("{ended}"),
            answer = asked => assert_eq!(answer, expected, "asked of {to}"),
        }
    }
}

/// A follower with a leader learns as well that its incarnation is superseded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn later_incarnation_supersedes_despite_leader() {
    let (world, nodes) = PeersFixture::of(3).await;
    nodes[1].publish(2, world.state());
    nodes[2].publish(2, world.state());
    nodes[0].publish(1, forced(&world));
    for node in &nodes[1..] {
        let end = || *node.peers.shared.removal.borrow();
        let heeded = || {
            // Its leader is active all the time.
            node.publisher.record_leader_seen();
            end().is_some()
        };
        until("the later incarnation to be accepted", heeded).await;
        assert_eq!(end(), Some(RemovalReason::Superseded { own: 1, newer: 2 }));
    }
}

/// A removed manager is rejected, whatever member id or incarnation it claims.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn departed_manager_is_always_rejected() {
    let mut world = PeersFixture::new();
    let listener = world.listen(1);
    for member in [2, 3] {
        world.addresses.insert(member, format!("127.0.0.1:{member}").parse().unwrap());
    }
    // As after a restart, or from a snapshot of another manager.
    let state = State::restore(without(&world, 2).export()).unwrap();
    let node = world.start(1, listener, state.clone());
    let address = world.addresses[&1].to_string().parse().unwrap();
    let refused = async |expected: &str| {
        for (member, incarnation) in [(2, 1), (4, 1), (9_000, 1), (9_000, 0), (3, 1), (9_000, 7)] {
            let heard =
                converse_in(&world, &node, (2, member, incarnation), vec![message(member, 1, 1, 0)]).await;
            assert_eq!(heard.reason, expected, "{member} in {incarnation}: {heard}");
            assert!(heard.message.contains("manager 2 was removed from the cluster"), "{heard}");
            assert!(heard.message.contains("join again with a token"), "{heard}");
        }
        let mut client = PeersClient::new(world.dialer(2).channel(&address, id(1)).await.unwrap());
        let header = v1::SnapshotHeader {
            message: Some(codec::to_wire(snapshot(9_000, 1, 9))),
            size: 5,
            incarnation: 1,
            digest: 0,
        };
        let first = v1::SnapshotFrame { header: Some(header), chunk: Bytes::new() };
        let frames = tokio_stream::iter([first]).chain(tokio_stream::pending());
        let install = client.install_snapshot(frames).await.map(|_| ()).unwrap_err();
        let status = client.status(v1::StatusRequest {}).await.map(|_| ()).unwrap_err();
        let forward =
            client.forward_proposals(v1::ForwardProposalsRequest::default()).await.map(|_| ()).unwrap_err();
        for status in [install, status, forward] {
            assert_eq!(Problem::from(&status).reason, expected, "{status}");
        }
    };
    // A manager without a leader may have been removed itself, and says so.
    refused("NO_LEADER").await;
    node.publish(1, state);
    refused(rejection::MEMBER_REMOVED).await;
    assert!(node.peers.shared.removal.borrow().is_none(), "its report of a later incarnation is ignored");
    assert_eq!(node.peers.others(), [3]);
}
