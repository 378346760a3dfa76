//! Who is not let in, and what a manager hears that was removed.

use tokio_stream::StreamExt;
use tonic::{Code, Status};
use warren_consensus::Message;
use warren_core::Applied;
use warren_proto::Problem;
use warren_proto::status::OVERTAKEN;
use warren_proto::v1;
use warren_proto::v1::peers_client::PeersClient;

use super::super::*;
use super::world::{Node, PATIENCE, World, apply, id, message, snapshot, until};

const AT: warren_types::Timestamp = warren_types::Timestamp(2);

/// The world's state once `member` was removed.
fn without(world: &World, member: MemberId) -> State {
    let mut state = world.state();
    apply(&mut state, &Command::RemoveMember { member, at: AT });
    apply(&mut state, &Command::DeleteMember { term: 1, member });
    state
}

/// The world's state in the next life of the cluster, with member 1 alone.
fn forced(world: &World) -> State {
    let mut state = world.state();
    let Applied { term, index } = state.applied();
    state.advance(Applied { term: term + 1, index: index + 1 });
    let alone = (**state.member(1).unwrap()).clone();
    state.begin_new_life(alone, AT);
    state
}

/// What `node` says to a manager, with the certificate of `shown`, that says hello as `member` and then `messages`.
async fn converse(
    world: &World,
    node: &Node,
    shown: MemberId,
    member: MemberId,
    messages: Vec<Message>,
) -> Problem {
    converse_in(world, node, (shown, member, 1), messages).await
}

/// The same, in that life of the cluster.
async fn converse_in(
    world: &World,
    node: &Node,
    (shown, member, incarnation): (MemberId, MemberId, u64),
    messages: Vec<Message>,
) -> Problem {
    let address = world.addresses[&node.peers.own()].to_string().parse().unwrap();
    let channel = world.dialer(shown).channel(&address, id(node.peers.own())).await.unwrap();
    let hello = v1::PeerHello { member, address: "127.0.0.1:1".into(), incarnation };
    let messages = messages.into_iter().map(codec::to_wire).collect();
    let frames =
        [v1::RaftFrame { hello: Some(hello), messages: Vec::new() }, v1::RaftFrame { hello: None, messages }];
    let frames = tokio_stream::iter(frames).chain(tokio_stream::pending());
    let ended = tokio::time::timeout(PATIENCE, PeersClient::new(channel).converse(frames)).await;
    Problem::from(&ended.expect("it is refused").unwrap_err())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_speaks_for_another() {
    let (world, nodes) = World::of(3).await;
    let hello = async |shown, member| converse(&world, &nodes[0], shown, member, Vec::new()).await;
    let problem = hello(2, 3).await;
    assert_eq!((problem.code, problem.reason.as_str()), (Code::PermissionDenied, "IMPOSTOR"), "{problem}");
    let problem = hello(9, 2).await;
    assert_eq!(problem.reason, "IMPOSTOR", "{problem}");
    let says = async |text: Message| converse(&world, &nodes[0], 4, 4, vec![text]).await;
    let problem = says(message(2, 1, 1, 0)).await;
    assert_eq!(problem.code, Code::PermissionDenied, "{problem}");
    let problem = says(message(4, 3, 1, 0)).await;
    assert_eq!(
        (problem.code, problem.reason.as_str()),
        (Code::FailedPrecondition, "MISDIRECTED"),
        "{problem}"
    );
    let odd = Message { kind: MessageKind::Snapshot, ..message(4, 1, 1, 0) };
    let mut wire = codec::to_wire(odd);
    wire.kind = 99;
    assert!(codec::from_wire(wire).is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manager_of_another_cluster_is_not_even_heard() {
    let (world, nodes) = World::of(1).await;
    let other = World::new();
    let address = world.addresses[&1].to_string().parse().unwrap();
    assert!(other.dialer(1).channel(&address, id(1)).await.is_err(), "its authority is another");
    assert!(world.dialer(2).channel(&address, id(2)).await.is_err(), "another manager answers there");
    assert_eq!(nodes[0].peers.others(), [] as [MemberId; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_manager_hears_it_and_stops() {
    let (world, nodes) = World::of(3).await;
    nodes[0].publish(1, without(&world, 3));
    let end = tokio::time::timeout(PATIENCE, nodes[2].peers.end()).await.unwrap();
    assert_eq!(end, End::Removed);
    assert_eq!(nodes[0].peers.others(), [2]);
    let problem = converse(&world, &nodes[0], 3, 3, Vec::new()).await;
    assert_eq!(problem.reason, roster::MEMBER_REMOVED);
    // The second one has not applied it and hears of no leader: it knows nothing.
    until("the second one to be as ever", || nodes[2].peers.client(2).is_some()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_hears_of_a_leader_believes_nobody_that_it_was_removed() {
    let (world, nodes) = World::of(2).await;
    nodes[1].publish(2, world.state());
    nodes[0].publish(1, without(&world, 2));
    until("the refusal", || nodes[1].peers.client(1).is_none()).await;
    assert!(nodes[1].peers.shared.end.borrow().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manager_that_knows_no_leader_says_of_nobody_that_it_was_removed() {
    let mut world = World::new();
    let listener = world.listen(1);
    world.addresses.insert(2, "127.0.0.1:1".parse().unwrap());
    let node = world.start(1, listener, without(&world, 2));
    let problem = converse(&world, &node, 2, 2, Vec::new()).await;
    assert_eq!((problem.code, problem.reason.as_str()), (Code::Unavailable, "NO_LEADER"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_state_itself_may_say_that_this_one_was_removed() {
    let (world, nodes) = World::of(2).await;
    nodes[1].publish(1, without(&world, 2));
    let end = tokio::time::timeout(PATIENCE, nodes[1].peers.end()).await.unwrap();
    assert_eq!(end, End::Removed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_calls_need_a_member_as_well() {
    let (world, nodes) = World::of(2).await;
    let address = world.addresses[&1].to_string().parse().unwrap();
    let call = async |shown: MemberId| {
        let channel = world.dialer(shown).channel(&address, id(1)).await.unwrap();
        let mut client = PeersClient::new(channel);
        let status: Result<_, Status> = client.status(v1::StatusRequest {}).await;
        status.map(|status| status.into_inner().member).map_err(|status| Problem::from(&status).reason)
    };
    assert_eq!(call(2).await, Ok(1));
    assert_eq!(call(5).await, Err("MEMBER_UNKNOWN".to_owned()));
    nodes[0].publish(1, without(&world, 2));
    until("the removal", || nodes[0].peers.others().is_empty()).await;
    assert_eq!(call(2).await, Err(roster::MEMBER_REMOVED.to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_is_taken_of_members_only() {
    let (world, nodes) = World::of(3).await;
    let address = world.addresses[&1].to_string().parse().unwrap();
    let install = async |shown: MemberId, incarnation: u64, message: Message, size| {
        let channel = world.dialer(shown).channel(&address, id(1)).await.unwrap();
        let header =
            v1::InstallHeader { message: Some(codec::to_wire(message)), size, incarnation, digest: 0 };
        let first = v1::InstallFrame { header: Some(header), chunk: Bytes::new() };
        let frames = tokio_stream::iter([first]).chain(tokio_stream::pending());
        let mut answers = PeersClient::new(channel).install(frames).await?.into_inner();
        answers.message().await.map(|answer| answer.map(|answer| answer.offset))
    };
    assert_eq!(install(2, 1, snapshot(2, 1, 9), 5).await.unwrap(), Some(0));
    for (shown, life, message, size, wanted) in [
        (2, 1, snapshot(3, 1, 9), 5, Code::PermissionDenied),
        (2, 1, snapshot(2, 3, 9), 5, Code::FailedPrecondition),
        (2, 1, message(2, 1, 9, 0), 5, Code::InvalidArgument),
        (2, 1, snapshot(2, 1, 9), u64::MAX, Code::ResourceExhausted),
        (2, 2, snapshot(2, 1, 9), 5, Code::FailedPrecondition),
    ] {
        assert_eq!(install(shown, life, message, size).await.unwrap_err().code(), wanted);
    }
    // A number that was not given is for those that know of no leader.
    assert_eq!(install(9, 1, snapshot(9, 1, 9), 5).await.unwrap(), Some(0));
    nodes[0].publish(1, world.state());
    assert_eq!(install(9, 1, snapshot(9, 1, 9), 5).await.unwrap_err().code(), Code::Unavailable);
    nodes[0].publish(1, forced(&world));
    until("the next life", || nodes[0].peers.others().is_empty()).await;
    let refused = install(2, 1, snapshot(2, 1, 9), 5).await.unwrap_err();
    assert_eq!(
        (Problem::from(&refused).reason.as_str(), roster::overtaken_by(&refused, 1)),
        (OVERTAKEN, Some(2))
    );
    assert!(nodes[0].files.received.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_lives_of_a_cluster_hear_nothing_of_each_other() {
    let (world, mut nodes) = World::of(3).await;
    nodes[0].publish(1, forced(&world));
    // The second one is one of the last life, and was gone when the next one began.
    let end = tokio::time::timeout(PATIENCE, nodes[1].peers.end()).await.unwrap();
    assert_eq!(end, End::Overtaken { own: 1, life: 2 });
    // One that had joined after that state, and one that lies about its number.
    for member in [2, 4, 9_000] {
        let heard = converse_in(&world, &nodes[0], (4, member, 1), vec![message(member, 1, 1, 0)]).await;
        assert_eq!(heard.reason, OVERTAKEN, "{heard}");
    }
    let later = converse_in(&world, &nodes[0], (1, 1, 3), Vec::new()).await;
    assert_eq!(later.reason, "OTHER_LIFE", "{later}");
    // The one that was forced dials those that it knew: they take nothing of it.
    let heard = converse_in(&world, &nodes[2], (1, 1, 2), vec![message(1, 3, 1, 0)]).await;
    assert_eq!((heard.code, heard.reason.as_str()), (Code::FailedPrecondition, "OTHER_LIFE"), "{heard}");
    let end = tokio::time::timeout(PATIENCE, nodes[2].peers.end()).await.unwrap();
    assert_eq!(end, End::Overtaken { own: 1, life: 2 }, "whoever says so");
    // Nothing of all that came through.
    for (node, from) in [(0, 9_000), (2, 2)] {
        let own = nodes[node].peers.own();
        let marker = message(from, own, 77, 0);
        let (world, life) = (&world, if node == 0 { 2 } else { 1 });
        nodes[node].publish(from, if node == 0 { forced(world) } else { world.state() });
        let node = &mut nodes[node];
        let address = world.addresses[&own].to_string().parse().unwrap();
        let channel = world.dialer(from).channel(&address, id(own)).await.unwrap();
        let hello = v1::PeerHello { member: from, address: "127.0.0.1:1".into(), incarnation: life };
        let frame = v1::RaftFrame { hello: Some(hello), messages: Vec::new() };
        let said = v1::RaftFrame { hello: None, messages: vec![codec::to_wire(marker.clone())] };
        let frames = tokio_stream::iter([frame, said]).chain(tokio_stream::pending());
        let mut client = PeersClient::new(channel);
        let talking = client.converse(frames);
        tokio::select! {
            heard = node.message() => assert_eq!(heard, marker),
            ended = talking => panic!("{ended:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_manager_says_again_who_it_is_when_it_has_a_state() {
    let (mut world, mut nodes) = World::of(2).await;
    let listener = world.listen(3);
    nodes.push(world.start(3, listener, State::new()));
    nodes[0].publish(1, world.state());
    until("the new one to be heard", || nodes[2].peers.client(1).is_some()).await;
    let before = nodes[0].peers.shared.directory.way(3).unwrap().visit;
    // Whatever it says from now on comes from that state.
    nodes[2].publish(1, world.state());
    let visit = || nodes[0].peers.shared.directory.way(3).unwrap().visit;
    until("another hello", || visit() > before && nodes[2].peers.client(1).is_some()).await;
    nodes[2].outgoing.send(vec![message(3, 1, 1, 0)]);
    assert_eq!(nodes[0].message().await, message(3, 1, 1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_number_that_was_not_given_is_let_in_only_while_there_is_no_leader() {
    let (world, mut nodes) = World::of(2).await;
    // The third one leads by now, and this one has not applied that it joined.
    let talk = converse(&world, &nodes[0], 3, 3, vec![message(3, 1, 1, 0)]);
    tokio::select! {
        ended = talk => panic!("{ended}"),
        () = until("its words to be let in", || nodes[0].peers.others() == [2, 3]) => {}
    }
    assert_eq!(nodes[0].message().await, message(3, 1, 1, 0));
    nodes[0].publish(3, world.state());
    let more = converse(&world, &nodes[0], 3, 3, vec![message(3, 1, 2, 0), message(2, 1, 2, 0)]);
    assert_eq!(more.await.code, Code::PermissionDenied, "the leader itself is heard, in its own name");
    assert_eq!(nodes[0].message().await, message(3, 1, 2, 0));
    for leader in [1, 2] {
        nodes[0].publish(leader, world.state());
        let refused = converse(&world, &nodes[0], 3, 9, vec![message(9, 1, 1, 0)]).await;
        assert_eq!((refused.code, refused.reason.as_str()), (Code::Unavailable, "MEMBER_UNKNOWN"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hello_is_not_enough_for_other_calls() {
    let (mut world, mut nodes) = World::of(2).await;
    let listener = world.listen(3);
    let address = |world: &World, member| world.addresses[&member].to_string().parse().unwrap();
    let status = async |world: &World, to: MemberId, shown: MemberId| {
        let channel = world.dialer(shown).channel(&address(world, to), id(to)).await.unwrap();
        let status = PeersClient::new(channel).status(v1::StatusRequest {}).await;
        status.map(|_| ()).map_err(|status| Problem::from(&status).reason)
    };
    nodes.push(world.start(3, listener, State::new()));
    for (to, wanted) in [(1, Err("MEMBER_UNKNOWN".to_owned())), (3, Ok(()))] {
        let node = &nodes[usize::try_from(to).unwrap() - 1];
        let talk = converse(&world, node, 9, 9, Vec::new());
        let asked = async {
            until("the hello", || node.peers.others().contains(&9)).await;
            status(&world, to, 9).await
        };
        tokio::select! {
            ended = talk => panic!("{ended}"),
            answer = asked => assert_eq!(answer, wanted, "asked of {to}"),
        }
    }
}

/// A follower that hears its own leader learns as well that the life of both is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_hears_a_leader_of_its_own_life_heeds_a_later_one() {
    let (world, nodes) = World::of(3).await;
    nodes[1].publish(2, world.state());
    nodes[2].publish(2, world.state());
    nodes[0].publish(1, forced(&world));
    for node in &nodes[1..] {
        let end = || *node.peers.shared.end.borrow();
        let heeded = || {
            // Its leader is there all the time.
            node.publisher.heard_leader();
            end().is_some()
        };
        until("the later life to be heeded", heeded).await;
        assert_eq!(end(), Some(End::Overtaken { own: 1, life: 2 }));
    }
}

/// Of what a certificate's owner says of itself nothing counts, once it left: neither another number nor a later life.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_left_is_let_in_nowhere_under_no_number_also_without_a_leader() {
    let mut world = World::new();
    let listener = world.listen(1);
    for member in [2, 3] {
        world.addresses.insert(member, format!("127.0.0.1:{member}").parse().unwrap());
    }
    // As after a restart, or from a snapshot of another manager.
    let state = State::restore(without(&world, 2).export()).unwrap();
    let node = world.start(1, listener, state.clone());
    let address = world.addresses[&1].to_string().parse().unwrap();
    let refused = async |wanted: &str| {
        for (member, life) in [(2, 1), (4, 1), (9_000, 1), (9_000, 0), (3, 1), (9_000, 7)] {
            let heard = converse_in(&world, &node, (2, member, life), vec![message(member, 1, 1, 0)]).await;
            assert_eq!(heard.reason, wanted, "{member} in {life}: {heard}");
            assert!(heard.message.contains("manager 2 was removed from the cluster"), "{heard}");
            assert!(heard.message.contains("it joins with a token"), "{heard}");
        }
        let mut client = PeersClient::new(world.dialer(2).channel(&address, id(1)).await.unwrap());
        let header = v1::InstallHeader {
            message: Some(codec::to_wire(snapshot(9_000, 1, 9))),
            size: 5,
            incarnation: 1,
            digest: 0,
        };
        let first = v1::InstallFrame { header: Some(header), chunk: Bytes::new() };
        let frames = tokio_stream::iter([first]).chain(tokio_stream::pending());
        let install = client.install(frames).await.map(|_| ()).unwrap_err();
        let status = client.status(v1::StatusRequest {}).await.map(|_| ()).unwrap_err();
        let forward = client.forward(v1::ForwardRequest::default()).await.map(|_| ()).unwrap_err();
        for status in [install, status, forward] {
            assert_eq!(Problem::from(&status).reason, wanted, "{status}");
        }
    };
    // Who hears of no leader may have been removed itself, and says so.
    refused("NO_LEADER").await;
    node.publish(1, state);
    refused(roster::MEMBER_REMOVED).await;
    assert!(node.peers.shared.end.borrow().is_none(), "its word of a later life counts for nothing");
    assert_eq!(node.peers.others(), [3]);
}
