use std::sync::{Arc, Mutex};

use tokio::time::Instant;
use warren_security::delivery::Responder;
use warren_task::Wishes;
use warren_types::{ContentId, ContentKind, Id};

use super::*;
use crate::samples::{settings, task_id};
use crate::scripted::{Deliveries, Manager};
use crate::session::tests::Node;

/// A content as a manager seals it for the one who asks.
fn sealed(request: &v1::FetchRequest, name: &str, plain: &[u8]) -> v1::SealedDelivery {
    let responder = Responder::new(&request.key, settings().node).unwrap();
    delivery(&responder, name, plain)
}

fn delivery(responder: &Responder, name: &str, plain: &[u8]) -> v1::SealedDelivery {
    let (id, number) = (ContentId(Id(9)), 3);
    v1::SealedDelivery {
        key: responder.public_key().to_vec().into(),
        kind: v1::ContentKind::Secret.into(),
        name: name.to_owned(),
        id: id.to_string(),
        number,
        sealed: responder.seal(id, number, plain).into(),
    }
}

async fn fetch(node: &Node, need: Need) -> Result<Vec<Delivered>, FetchError> {
    node.context.services.courier.fetch(need).await
}

/// A node that has a session.
async fn started() -> (Node, Manager, crate::scripted::Session) {
    let (node, mut manager) = Node::start(Wishes::default());
    let session = manager.welcomed().await;
    (node, manager, session)
}

#[tokio::test(start_paused = true)]
async fn what_a_manager_seals_is_opened() {
    let (node, manager, _session) = started().await;
    let asked = Arc::<Mutex<Vec<v1::FetchRequest>>>::default();
    let asks = Arc::clone(&asked);
    manager.delivers(move |request| {
        let responder = Responder::new(&request.key, settings().node).unwrap();
        asks.lock().unwrap().push(request);
        let large = vec![7; MAX_CONTENT];
        Deliveries::Gives(vec![delivery(&responder, "db", b"hush"), delivery(&responder, "whole", &large)])
    });
    let task = task_id(1).to_string();
    for (need, wire) in [
        (Need::Contents(task_id(1)), WireNeed::TaskContents(task.clone())),
        (Need::Credential(task_id(1)), WireNeed::TaskCredential(task)),
        (Need::StreamCredential("s1".into()), WireNeed::StreamCredential("s1".into())),
    ] {
        let delivered = fetch(&node, need).await.unwrap();
        assert_eq!((delivered.len(), delivered[1].bytes.len()), (2, MAX_CONTENT));
        let Delivered { kind, name, number, bytes } = &delivered[0];
        assert_eq!((*kind, name.as_str(), *number), (ContentKind::Secret, "db", 3));
        assert_eq!(bytes.as_slice(), b"hush");
        assert!(!format!("{delivered:?}").contains("hush"));
        assert_eq!(asked.lock().unwrap().last().unwrap().need, Some(wire));
    }
    let keys: Vec<_> = asked.lock().unwrap().iter().map(|request| request.key.clone()).collect();
    assert!(keys[0] != keys[1] && keys[1] != keys[2], "each call has a key of its own");
}

#[tokio::test(start_paused = true)]
async fn without_a_session_nobody_is_asked() {
    let (node, mut manager) = Node::start(Wishes::default());
    let begun = Instant::now();
    let error = fetch(&node, Need::Contents(task_id(1))).await.unwrap_err();
    assert!(matches!(&error, FetchError::Away(_)), "{error}");
    assert_eq!(begun.elapsed(), SESSION_WITHIN);
    // One that comes in time is waited for, and one that ended is not asked.
    let (answer, session) = tokio::join!(fetch(&node, Need::Contents(task_id(1))), manager.welcomed());
    assert_eq!(answer.unwrap(), []);
    drop((session, manager));
    node.context.connected.subscribe().wait_for(|connected| !connected).await.unwrap();
    let error = fetch(&node, Need::Contents(task_id(1))).await.unwrap_err();
    assert!(matches!(&error, FetchError::Away(_)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_a_manager_says_instead_is_told_apart() {
    let (node, manager, _session) = started().await;
    for (status, wanted) in [
        (Status::failed_precondition("it is gone"), FetchError::Gone("it is gone".into())),
        (Status::permission_denied("not yours"), FetchError::Refused("not yours".into())),
        (Status::unavailable("it stops"), FetchError::Away("the manager left: it stops".into())),
    ] {
        manager.delivers(move |_| Deliveries::Refuses(status.clone()));
        assert_eq!(fetch(&node, Need::Contents(task_id(1))).await, Err(wanted));
    }
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_says_nothing_is_not_waited_for_forever() {
    let (node, manager, mut session) = started().await;
    manager.delivers(|_| Deliveries::Silence);
    let begun = Instant::now();
    let living = tokio::spawn(async move { session.hear_until(|_| None::<()>).await });
    let error = fetch(&node, Need::Contents(task_id(1))).await.unwrap_err();
    assert!(matches!(&error, FetchError::Away(why) if why.contains("30s")), "{error}");
    assert_eq!(begun.elapsed().as_secs(), DEADLINE.as_secs());
    living.abort();
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_opened_or_read_is_refused_without_a_word_of_it() {
    type Change = fn(&mut v1::SealedDelivery);
    let changes: [(Change, &str); 6] = [
        (|delivery| delivery.number = 4, "does not open"),
        (|delivery| delivery.id = ContentId(Id(8)).to_string(), "does not open"),
        (|delivery| delivery.sealed = vec![0; 40].into(), "does not open"),
        (|delivery| delivery.key = vec![0; 31].into(), "31 bytes"),
        (|delivery| delivery.kind = 99, "cannot be read"),
        (|delivery| delivery.name = "a b".into(), "cannot be read"),
    ];
    let (node, manager, _session) = started().await;
    for (change, wanted) in changes {
        manager.delivers(move |request| {
            let mut delivery = sealed(&request, "db", b"hush");
            change(&mut delivery);
            Deliveries::Gives(vec![delivery])
        });
        let error = fetch(&node, Need::Contents(task_id(1))).await.unwrap_err();
        let said = format!("{error} {error:?}");
        assert!(said.contains(wanted) && !said.contains("hush"), "{said}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_has_bounds() {
    let (node, manager, _session) = started().await;
    let fetches = |many: usize, bytes: usize| {
        manager.delivers(move |request| {
            let responder = Responder::new(&request.key, settings().node).unwrap();
            let plain = vec![7; bytes];
            Deliveries::Gives((0..many).map(|_| delivery(&responder, "db", &plain)).collect())
        });
        fetch(&node, Need::Contents(task_id(1)))
    };
    assert_eq!(fetches(MAX_DELIVERIES, 1).await.map(|delivered| delivered.len()), Ok(MAX_DELIVERIES));
    let error = fetches(MAX_DELIVERIES + 1, 1).await.unwrap_err();
    assert!(error.to_string().contains("more than 128 contents"), "{error}");
    let error = fetches(1, MAX_CONTENT + 1).await.unwrap_err();
    assert!(error.to_string().contains("more than 1048576 bytes"), "{error}");
    // What is larger still is not even read.
    assert!(fetches(1, 2 * MAX_CONTENT).await.is_err());
}
