mod forwarding;

use warren_core::{Answer, Applied, Change, Command, Outcome};
use warren_types::{Id, ServiceId};

use super::*;

const LEADER: Role = Role { leader: true, leader_id: Some(1), term: 1, may_plan: true };

fn published(index: u64) -> Published {
    Published { index, role: LEADER, ..Published::first(State::new()) }
}

fn batch(index: u64, changes: usize) -> Batch {
    Batch { index, changes: vec![Change::Cluster; changes].into() }
}

fn store(history: usize) -> (Store, Publisher) {
    let (store, publisher, _) = Store::new(published(10), 1, history);
    (store, publisher)
}

fn indexes(batches: &[Batch]) -> Vec<u64> {
    batches.iter().map(|batch| batch.index).collect()
}

#[tokio::test]
async fn a_watch_gets_every_entry_once_in_order() {
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
async fn who_is_too_far_behind_is_told_and_goes_on() {
    let (store, publisher) = store(4);
    let mut watch = store.watch(10);
    for index in 11..=14 {
        publisher.publish(published(index), vec![batch(index, 2)]);
    }
    assert_eq!(watch.next().await.unwrap_err(), Missed(14));
    assert_eq!(store.watch(11).next().await.unwrap_err(), Missed(14));
    assert_eq!(indexes(&store.watch(12).next().await.unwrap()), [13, 14]);
    publisher.publish(published(15), vec![batch(15, 5)]);
    assert_eq!(watch.next().await.unwrap_err(), Missed(15), "one entry alone can be more than is kept");
    publisher.publish(published(16), vec![batch(16, 1)]);
    assert_eq!(indexes(&watch.next().await.unwrap()), [16]);
}

#[tokio::test]
async fn without_a_driver_nothing_is_proposed_and_everything_is_read() {
    let (store, publisher) = store(4);
    drop(publisher);
    let command = Command::DeleteService { term: 1, id: ServiceId(Id(1)) };
    assert!(matches!(store.propose(command).await, Err(ProposeError::Stopping)));
    assert_eq!(store.read().index, 10);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_nobody_confirms_ends_at_its_deadline() {
    let (store, _publisher, Inbox { mut proposals, .. }) = Store::new(published(1), 1, 1);
    let command = || Command::DeleteService { term: 1, id: ServiceId(Id(1)) };
    let asking = tokio::spawn({
        let store = store.clone();
        async move { store.propose(command()).await }
    });
    let held = proposals.recv().await.unwrap();
    assert!(matches!(asking.await.unwrap(), Err(ProposeError::Unconfirmed(Doubt::Late(PROPOSE_DEADLINE)))));
    assert!(held.reply.send(Err(ProposeError::Busy)).is_err(), "nobody waits any more");
    let asking = tokio::spawn(async move { store.propose(command()).await });
    drop(proposals.recv().await.unwrap());
    assert!(matches!(asking.await.unwrap(), Err(ProposeError::Unconfirmed(Doubt::Ended))));
}

#[tokio::test(start_paused = true)]
async fn while_the_log_is_held_writes_are_refused_and_the_patient_wait() {
    let (store, publisher, Inbox { mut proposals, .. }) = Store::new(published(1), 4, 1);
    let command = || Command::DeleteService { term: 1, id: ServiceId(Id(1)) };
    let early = tokio::spawn({
        let store = store.clone();
        async move { store.propose(command()).await }
    });
    let waits_for_the_disk = proposals.recv().await.unwrap();
    let held = Arc::new(Held { since: Timestamp(1), why: "the disk is full".into(), full: true });
    publisher.publish(Published { held: Some(held.clone()), ..published(1) }, Vec::new());
    let refused = store.propose(command()).await.unwrap_err();
    assert_eq!(refused.to_string(), "the disk is full; nothing was changed");
    assert!(proposals.try_recv().is_err(), "it does not even reach the driver");
    let late = early.await.unwrap().unwrap_err();
    assert!(matches!(&late, ProposeError::Unconfirmed(Doubt::Held(_, why)) if *why == held), "{late:?}");
    assert_eq!(
        late.to_string(),
        "the write was not confirmed within 10s, because the disk is full; the write may still happen, and \
         repeating it is safe"
    );
    drop(waits_for_the_disk);

    let patient = tokio::spawn(async move { store.propose_patiently(command()).await });
    tokio::time::sleep(3 * PROPOSE_DEADLINE).await;
    assert!(!patient.is_finished() && proposals.try_recv().is_err());
    publisher.publish(published(1), Vec::new());
    // Whose answer does not come in time is proposed again.
    let first = proposals.recv().await.unwrap();
    let second = proposals.recv().await.unwrap();
    drop(first);
    let answer = Answer::Done;
    let (place, outcome) = (Applied::default(), Outcome::Unchanged { answer });
    second.reply.send(Ok(Written { place, outcome })).unwrap();
    assert_eq!(patient.await.unwrap().unwrap(), Answer::Done);
}
