//! The network view in a session.

use super::*;
use crate::fixtures::{add_service, catalogue, network_view};

async fn network_ack(session: &mut FakeSession) -> AssignmentVersion {
    let ack = |frame: &FromWorker| match frame {
        FromWorker::NetworkAck(ack) => Some(ack.version.unwrap().into()),
        _ => None,
    };
    session.next_matching(ack).await
}

/// The version of the network view in the next sync.
async fn synced_view(session: &mut FakeSession) -> AssignmentVersion {
    let sync = |frame: &FromWorker| match frame {
        FromWorker::Sync(sync) => Some(sync.network_version.unwrap().into()),
        _ => None,
    };
    let version = session.next_matching(sync).await;
    session.send(Frame::Current(v1::AssignmentCurrent::default())).await;
    version
}

impl TestNode {
    async fn wait_for_view(&self, index: u64) {
        let mut view = self.context.network_view.subscribe();
        view.wait_for(|view| view.version == at(index)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn network_view_is_applied_acknowledged_and_known_to_next_manager() {
    let (node, mut manager) = TestNode::start(DesiredState::default());
    let (mut session, hello) = manager.next_session().await;
    assert_eq!(hello.network_version, Some(AssignmentVersion::default().into()));
    assert!(hello.networks.is_empty());
    let description = hello.description.unwrap();
    assert_eq!(description.data_address, DATA_ADDRESS.to_string());
    assert_eq!(description.wireguard_key, "07".repeat(32));
    session.welcome(&settings()).await;
    session.send_view(&network_view(5)).await;
    node.wait_for_view(5).await;
    assert_eq!(*node.context.network_view.borrow(), network_view(5));
    let mut added = catalogue("default", 1);
    add_service(&mut added, "db", 2, &[]);
    session.update_network(5, 6, &added).await;
    node.wait_for_view(6).await;
    let view = node.context.network_view.borrow().clone();
    assert_eq!(view.catalogues.values().map(|catalogue| catalogue.services.len()).sum::<usize>(), 2);
    // Syncs of before may be waiting.
    while synced_view(&mut session).await != at(6) {}
    // The kernel follows later.
    node.applied_network.send_replace(at(6));
    assert_eq!(network_ack(&mut session).await, at(6));
    drop(session);
    let (mut session, hello) = manager.next_session().await;
    assert_eq!(hello.network_version, Some(at(6).into()));
    assert_eq!(hello.networks, view.catalogues.keys().map(ToString::to_string).collect::<Vec<_>>());
    session.welcome(&settings()).await;
    assert_eq!(network_ack(&mut session).await, at(6), "each manager is told");
}

#[tokio::test(start_paused = true)]
async fn update_that_cannot_be_applied_is_answered_with_a_request_for_everything() {
    let (node, mut manager) = TestNode::start(DesiredState::default());
    let mut session = manager.next_welcomed_session().await;
    session.send_view(&network_view(5)).await;
    node.wait_for_view(5).await;
    while synced_view(&mut session).await != at(5) {}
    let since = Instant::now();
    for base in [4, 7] {
        // The second is on its way before the manager reads the request.
        session.update_network(base, base + 1, &catalogue("default", 1)).await;
    }
    assert_eq!(synced_view(&mut session).await, AssignmentVersion::default());
    assert_eq!(since.elapsed(), Duration::ZERO, "at once");
    assert_eq!(node.context.network_view.borrow().catalogues.len(), 1, "what is known stays in use");
    // A full update that is invalid as well is not asked for without a pause.
    let mut invalid = network_view(8);
    let (id, _) = invalid.catalogues.pop_first().unwrap();
    invalid.catalogues.insert(id, Arc::new(catalogue("default", 0)));
    session.send_view(&invalid).await;
    assert_eq!(synced_view(&mut session).await, AssignmentVersion::default());
    assert!(since.elapsed() >= Duration::from_secs(1), "{:?}", since.elapsed());
    session.send_view(&network_view(9)).await;
    node.wait_for_view(9).await;
    while synced_view(&mut session).await != at(9) {}
}

#[tokio::test(start_paused = true)]
async fn changed_data_address_is_reported_with_a_new_session() {
    let (node, mut manager) = TestNode::start(DesiredState::default());
    let session = manager.next_welcomed_session().await;
    let other = Ipv4Addr::new(198, 51, 100, 9);
    node.context.data_address.set(other);
    session.wait_until_ended().await;
    // This machine is unchanged, so the next session says what it said before.
    let (_, hello) = manager.next_session().await;
    assert_eq!(hello.description.unwrap().data_address, DATA_ADDRESS.to_string());
}
