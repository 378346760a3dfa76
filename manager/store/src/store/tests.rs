mod forwarding;

use warren_core::{AppliedIndex, Command, CommandResponse, StateChange};
use warren_types::{Id, ServiceId, Timestamp};

use super::*;

const LEADER: ReplicaRole = ReplicaRole { is_leader: true, leader_id: Some(1), term: 1, can_plan: true };

fn published(index: u64) -> PublishedState {
    PublishedState { index, role: LEADER, ..PublishedState::initial(State::new()) }
}

fn batch(index: u64, changes: usize) -> ChangeBatch {
    ChangeBatch { index, changes: vec![StateChange::Cluster; changes].into() }
}

fn store(history: usize) -> (Store, StatePublisher) {
    let (store, publisher, _) = Store::new(published(10), 1, history);
    (store, publisher)
}

fn indexes(batches: &[ChangeBatch]) -> Vec<u64> {
    batches.iter().map(|batch| batch.index).collect()
}

#[tokio::test]
async fn watch_receives_each_entry_once() {
    let (store, publisher) = store(100);
    let mut watch = store.watch(10);
    publisher.publish(published(11), vec![batch(11, 1)]);
    publisher.publish(published(13), vec![batch(12, 1), batch(13, 1)]);
    assert_eq!(indexes(&watch.next().await.unwrap()), [11, 12, 13]);
    publisher.publish(published(14), vec![batch(14, 1)]);
    assert_eq!(indexes(&watch.next().await.unwrap()), [14]);
    assert_eq!(indexes(&store.watch(12).next().await.unwrap()), [13, 14]);
    publisher.publish(published(14), Vec::new());
    assert_eq!(indexes(&watch.next().await.unwrap()), [0; 0], "only the role changed");
}

#[tokio::test]
async fn lagging_watch_gets_gap_and_continues() {
    let (store, publisher) = store(4);
    let mut watch = store.watch(10);
    for index in 11..=14 {
        publisher.publish(published(index), vec![batch(index, 2)]);
    }
    assert_eq!(watch.next().await.unwrap_err(), HistoryGap(14));
    assert_eq!(store.watch(11).next().await.unwrap_err(), HistoryGap(14));
    assert_eq!(indexes(&store.watch(12).next().await.unwrap()), [13, 14]);
    publisher.publish(published(15), vec![batch(15, 5)]);
    assert_eq!(watch.next().await.unwrap_err(), HistoryGap(15), "one entry alone can be more than is kept");
    publisher.publish(published(16), vec![batch(16, 1)]);
    assert_eq!(indexes(&watch.next().await.unwrap()), [16]);
}

#[tokio::test]
async fn store_without_driver_is_read_only() {
    let (store, publisher) = store(4);
    drop(publisher);
    let command = Command::DeleteService { term: 1, id: ServiceId(Id(1)) };
    assert!(matches!(store.propose(command).await, Err(ProposeError::Stopping)));
    assert_eq!(store.read().index, 10);
}

#[tokio::test(start_paused = true)]
async fn unconfirmed_write_times_out() {
    let (store, _publisher, DriverInbox { mut proposals, .. }) = Store::new(published(1), 1, 1);
    let command = || Command::DeleteService { term: 1, id: ServiceId(Id(1)) };
    let asking = tokio::spawn({
        let store = store.clone();
        async move { store.propose(command()).await }
    });
    let held = proposals.recv().await.unwrap();
    assert!(matches!(
        asking.await.unwrap(),
        Err(ProposeError::Indeterminate(IndeterminateReason::Timeout(PROPOSE_TIMEOUT)))
    ));
    assert!(held.reply.send(Err(ProposeError::Busy)).is_err(), "nobody waits any more");
    let asking = tokio::spawn(async move { store.propose(command()).await });
    drop(proposals.recv().await.unwrap());
    assert!(matches!(
        asking.await.unwrap(),
        Err(ProposeError::Indeterminate(IndeterminateReason::DriverEnded))
    ));
}

#[tokio::test(start_paused = true)]
async fn write_stall_refuses_writes_and_retries_wait() {
    let (store, publisher, DriverInbox { mut proposals, .. }) = Store::new(published(1), 4, 1);
    let command = || Command::DeleteService { term: 1, id: ServiceId(Id(1)) };
    let early = tokio::spawn({
        let store = store.clone();
        async move { store.propose(command()).await }
    });
    let waits_for_the_disk = proposals.recv().await.unwrap();
    let held =
        Arc::new(WriteStall { since: Timestamp(1), reason: "the disk is full".into(), is_disk_full: true });
    publisher.publish(PublishedState { write_stall: Some(held.clone()), ..published(1) }, Vec::new());
    let refused = store.propose(command()).await.unwrap_err();
    assert_eq!(refused.to_string(), "the disk is full; nothing was changed");
    assert!(proposals.try_recv().is_err(), "it does not even reach the driver");
    let late = early.await.unwrap().unwrap_err();
    assert!(
        matches!(&late, ProposeError::Indeterminate(IndeterminateReason::WriteStalled(_, why)) if *why == held),
        "{late:?}"
    );
    assert_eq!(
        late.to_string(),
        "the write was not confirmed within 10s, because the disk is full; outcome unknown: the write \
         may still be applied; it is safe to repeat it"
    );
    drop(waits_for_the_disk);

    let patient = tokio::spawn(async move { store.propose_with_retry(command()).await });
    tokio::time::sleep(3 * PROPOSE_TIMEOUT).await;
    assert!(!patient.is_finished() && proposals.try_recv().is_err());
    publisher.publish(published(1), Vec::new());
    // A write without a response in time is proposed again.
    let first = proposals.recv().await.unwrap();
    let second = proposals.recv().await.unwrap();
    drop(first);
    let (position, result) = (AppliedIndex::default(), Ok(CommandResponse::Done));
    second.reply.send(Ok(AppliedWrite { position, result })).unwrap();
    assert_eq!(patient.await.unwrap().unwrap(), CommandResponse::Done);
}
