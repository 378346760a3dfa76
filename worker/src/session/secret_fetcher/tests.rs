use std::sync::{Arc, Mutex};

use tokio::time::Instant;
use warren_security::delivery::DeliveryResponder;
use warren_task::DesiredState;
use warren_types::{Id, SecretObjectId, SecretObjectKind};

use super::*;
use crate::fake_manager::{FakeManager, FetchReply};
use crate::fixtures::{settings, task_id};
use crate::session::tests::TestNode;

/// A secret object as a manager seals it for the caller.
fn sealed(request: &v1::FetchSecretObjectsRequest, name: &str, plain: &[u8]) -> v1::SealedSecretObject {
    let responder = DeliveryResponder::new(&request.key, settings().node).unwrap();
    delivery(&responder, name, plain)
}

fn delivery(responder: &DeliveryResponder, name: &str, plain: &[u8]) -> v1::SealedSecretObject {
    let (id, number) = (SecretObjectId(Id(9)), 3);
    v1::SealedSecretObject {
        key: responder.public_key().to_vec().into(),
        kind: v1::SecretObjectKind::Secret.into(),
        name: name.to_owned(),
        id: id.to_string(),
        version_number: number,
        sealed: responder.seal(id, number, plain).into(),
    }
}

async fn fetch(node: &TestNode, need: FetchPurpose) -> Result<Vec<FetchedObject>, SecretFetchError> {
    node.context.stream_services.secret_fetcher.fetch(need).await
}

/// A node with a session.
async fn started() -> (TestNode, FakeManager, crate::fake_manager::FakeSession) {
    let (node, mut manager) = TestNode::start(DesiredState::default());
    let session = manager.next_welcomed_session().await;
    (node, manager, session)
}

#[tokio::test(start_paused = true)]
async fn sealed_object_is_opened() {
    let (node, manager, _session) = started().await;
    let asked = Arc::<Mutex<Vec<v1::FetchSecretObjectsRequest>>>::default();
    let asks = Arc::clone(&asked);
    manager.on_fetch(move |request| {
        let responder = DeliveryResponder::new(&request.key, settings().node).unwrap();
        asks.lock().unwrap().push(request);
        let large = vec![7; MAX_SECRET_OBJECT_SIZE];
        FetchReply::Objects(vec![delivery(&responder, "db", b"hush"), delivery(&responder, "whole", &large)])
    });
    let task = task_id(1).to_string();
    let access = |puller: ImagePuller, is_renewal: bool| FetchPurpose::RegistryAccess { puller, is_renewal };
    let stream = || ImagePuller::Stream("s1".into());
    for (need, wire, is_renewal) in [
        (FetchPurpose::TaskSecretObjects(task_id(1)), WireNeed::TaskSecretObjects(task.clone()), false),
        (access(ImagePuller::Task(task_id(1)), false), WireNeed::TaskCredential(task), false),
        (access(stream(), true), WireNeed::StreamCredential("s1".into()), true),
    ] {
        let delivered = fetch(&node, need).await.unwrap();
        assert_eq!((delivered.len(), delivered[1].bytes.len()), (2, MAX_SECRET_OBJECT_SIZE));
        let FetchedObject { kind, name, id, version, bytes } = &delivered[0];
        assert_eq!((*kind, name.as_str(), *version), (SecretObjectKind::Secret, "db", 3));
        assert_eq!(*id, SecretObjectId(Id(9)));
        assert_eq!(bytes.as_slice(), b"hush");
        assert!(!format!("{delivered:?}").contains("hush"));
        let request = asked.lock().unwrap().last().unwrap().clone();
        assert_eq!((request.purpose, request.is_renewal), (Some(wire), is_renewal));
    }
    let keys: Vec<_> = asked.lock().unwrap().iter().map(|request| request.key.clone()).collect();
    assert!(keys[0] != keys[1] && keys[1] != keys[2], "each call has a key of its own");
}

#[tokio::test(start_paused = true)]
async fn fetch_without_session_fails() {
    let (node, mut manager) = TestNode::start(DesiredState::default());
    let begun = Instant::now();
    let error = fetch(&node, FetchPurpose::TaskSecretObjects(task_id(1))).await.unwrap_err();
    assert!(matches!(&error, SecretFetchError::NoManager(_)), "{error}");
    assert_eq!(begun.elapsed(), SESSION_TIMEOUT);
    // One that comes in time is awaited, and one that ended is not asked.
    let (answer, session) = tokio::join!(
        fetch(&node, FetchPurpose::TaskSecretObjects(task_id(1))),
        manager.next_welcomed_session()
    );
    assert_eq!(answer.unwrap(), []);
    drop((session, manager));
    node.context.is_connected.subscribe().wait_for(|connected| !connected).await.unwrap();
    let error = fetch(&node, FetchPurpose::TaskSecretObjects(task_id(1))).await.unwrap_err();
    assert!(matches!(&error, SecretFetchError::NoManager(_)), "{error}");
}

fn no_access(code: Code) -> Status {
    Problem::new(code, NO_REGISTRY_ACCESS, "no tokens").into()
}

fn no_registry_access(is_transient: bool) -> SecretFetchError {
    SecretFetchError::NoRegistryAccess { reason: "no tokens".into(), is_transient }
}

#[tokio::test(start_paused = true)]
async fn refusals_are_distinguished() {
    let (node, manager, _session) = started().await;
    for (status, expected) in [
        (Status::failed_precondition("it is gone"), SecretFetchError::VersionGone("it is gone".into())),
        (Status::permission_denied("not yours"), SecretFetchError::Refused("not yours".into())),
        (
            Status::unavailable("it stops"),
            SecretFetchError::NoManager("lost connection to the manager: it stops".into()),
        ),
        (no_access(Code::FailedPrecondition), no_registry_access(false)),
        (no_access(Code::Unavailable), no_registry_access(true)),
    ] {
        manager.on_fetch(move |_| FetchReply::Refusal(status.clone()));
        assert_eq!(fetch(&node, FetchPurpose::TaskSecretObjects(task_id(1))).await, Err(expected));
    }
}

#[tokio::test(start_paused = true)]
async fn silent_manager_times_out() {
    let (node, manager, mut session) = started().await;
    manager.on_fetch(|_| FetchReply::NoReply);
    let begun = Instant::now();
    let living = tokio::spawn(async move { session.next_matching(|_| None::<()>).await });
    let error = fetch(&node, FetchPurpose::TaskSecretObjects(task_id(1))).await.unwrap_err();
    assert!(matches!(&error, SecretFetchError::NoManager(why) if why.contains("30s")), "{error}");
    assert_eq!(begun.elapsed().as_secs(), DEADLINE.as_secs());
    living.abort();
}

#[tokio::test(start_paused = true)]
async fn invalid_delivery_is_rejected_without_leaking_it() {
    type Change = fn(&mut v1::SealedSecretObject);
    let changes: [(Change, &str); 6] = [
        (|delivery| delivery.version_number = 4, "cannot be decrypted"),
        (|delivery| delivery.id = SecretObjectId(Id(8)).to_string(), "cannot be decrypted"),
        (|delivery| delivery.sealed = vec![0; 40].into(), "cannot be decrypted"),
        (|delivery| delivery.key = vec![0; 31].into(), "31 bytes"),
        (|delivery| delivery.kind = 99, "is not known to this version"),
        (|delivery| delivery.name = "a b".into(), "is not a"),
    ];
    let (node, manager, _session) = started().await;
    for (change, expected) in changes {
        manager.on_fetch(move |request| {
            let mut delivery = sealed(&request, "db", b"hush");
            change(&mut delivery);
            FetchReply::Objects(vec![delivery])
        });
        let error = fetch(&node, FetchPurpose::TaskSecretObjects(task_id(1))).await.unwrap_err();
        let output = format!("{error} {error:?}");
        assert!(output.contains(expected) && !output.contains("hush"), "{output}");
    }
}

#[tokio::test(start_paused = true)]
async fn answer_size_is_bounded() {
    let (node, manager, _session) = started().await;
    let fetches = |many: usize, bytes: usize| {
        manager.on_fetch(move |request| {
            let responder = DeliveryResponder::new(&request.key, settings().node).unwrap();
            let plain = vec![7; bytes];
            FetchReply::Objects((0..many).map(|_| delivery(&responder, "db", &plain)).collect())
        });
        fetch(&node, FetchPurpose::TaskSecretObjects(task_id(1)))
    };
    assert_eq!(fetches(MAX_DELIVERIES, 1).await.map(|delivered| delivered.len()), Ok(MAX_DELIVERIES));
    let error = fetches(MAX_DELIVERIES + 1, 1).await.unwrap_err();
    assert!(error.to_string().contains("more than 129 secret objects"), "{error}");
    let error = fetches(1, MAX_SECRET_OBJECT_SIZE + 1).await.unwrap_err();
    assert!(error.to_string().contains("more than 1048576 bytes"), "{error}");
    // A larger answer is not even read.
    assert!(fetches(1, 2 * MAX_SECRET_OBJECT_SIZE).await.is_err());
}
