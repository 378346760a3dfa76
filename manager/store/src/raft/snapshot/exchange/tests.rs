use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use tempfile::TempDir;
use warren_consensus::MessageKind;
use warren_core::State;
use warren_log::{ConfState, SnapshotDir};
use warren_security::seal::Keyring;

use super::*;
use crate::store::{DriverInbox, PublishedState, RaftInput, StatePublisher};

/// A state up to this index.
fn state(index: u64) -> State {
    let mut state = State::new();
    state.advance_to(AppliedIndex { term: 2, index });
    state
}

fn plain(state: &State) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::write_snapshot(state, &mut bytes).unwrap();
    bytes
}

fn meta(index: u64, learners: Vec<u64>) -> SnapshotMeta {
    SnapshotMeta { index, term: 2, conf_state: ConfState { learners, ..ConfState::of_voters([1, 2]) } }
}

fn announce(snapshot: Option<SnapshotMeta>) -> Message {
    Message {
        kind: MessageKind::Snapshot,
        to: 3,
        from: 1,
        term: 2,
        log_term: 0,
        index: 0,
        entries: Vec::new(),
        commit: 0,
        commit_term: 0,
        snapshot,
        request_snapshot: 0,
        reject: false,
        reject_hint: 0,
        context: Bytes::new(),
        priority: 0,
        acknowledged: Vec::new(),
    }
}

struct ExchangeFixture {
    _dir: TempDir,
    files: SnapshotFiles,
    exchange: SnapshotExchange,
    publisher: StatePublisher,
    inbox: DriverInbox,
}

fn world() -> ExchangeFixture {
    let dir = tempfile::tempdir().unwrap();
    let files = SnapshotDir::open(dir.path().join("snapshots"), None).unwrap();
    let keyring = Arc::new(Keyring::open(dir.path(), &BTreeSet::new()).unwrap());
    let files = SnapshotFiles::new(files, keyring);
    let (store, publisher, inbox) = Store::new(PublishedState::initial(state(5)), 1, 1);
    ExchangeFixture {
        _dir: dir,
        exchange: SnapshotExchange::new(files.clone(), store),
        files,
        publisher,
        inbox,
    }
}

#[tokio::test]
async fn sent_snapshot_is_accepted() {
    let (giver, mut taker) = (world(), world());
    giver.files.write(&state(9), &meta(9, vec![]), &AtomicBool::new(false)).unwrap();
    // Raft adds the receiver as a learner if the snapshot does not have it.
    let announced = meta(9, vec![3]);
    let bytes = giver.exchange.read(&announced).await.unwrap();
    assert_eq!(bytes, plain(&state(9)));
    let size = bytes.len() as u64;
    let receive = taker.exchange.receive(announce(Some(announced.clone())), bytes.into());
    let driver = async {
        let Some(RaftInput::SnapshotReceived { message, state: came, bytes, taken }) =
            taker.inbox.inputs.recv().await
        else {
            panic!("a snapshot");
        };
        assert_eq!((message.snapshot, *came, bytes), (Some(announced.clone()), state(9), size));
        assert!(taker.files.path(&announced).exists(), "it is durable before raft hears of it");
        taken.send(()).unwrap();
    };
    let (received, ()) = tokio::join!(receive, driver);
    received.unwrap();
    assert_eq!(taker.exchange.read(&announced).await.unwrap(), plain(&state(9)), "under its own key");
}

#[tokio::test]
async fn mismatched_snapshot_is_refused_before_storing() {
    let world = world();
    let announced = meta(9, vec![]);
    for (plain, desired) in [
        (plain(&state(8)), "expected state at AppliedIndex { term: 2, index: 9 }, found"),
        (b"no snapshot".to_vec(), "a snapshot from another manager: "),
    ] {
        let refused =
            world.exchange.receive(announce(Some(announced.clone())), plain.into()).await.unwrap_err();
        assert!(refused.to_string().contains(desired), "{refused}");
        assert!(!world.files.path(&announced).exists());
    }
    let refused = world.exchange.receive(announce(None), Default::default()).await.unwrap_err();
    assert!(matches!(refused, SnapshotError::NotAnnounced));
    assert!(matches!(world.exchange.read(&announced).await, Err(SnapshotError::File(_))));
}

/// The manager's own snapshot can have the same index and other members: the log points to that one.
#[tokio::test]
async fn stale_snapshot_is_ignored() {
    let mut world = world();
    world.publisher.publish(PublishedState::initial(state(9)), Vec::new());
    let own = meta(9, vec![]);
    world.files.write(&state(9), &own, &AtomicBool::new(false)).unwrap();
    let receive = world.exchange.receive(announce(Some(meta(9, vec![3]))), plain(&state(9)).into());
    let driver = async {
        let heard = world.inbox.inputs.recv().await;
        assert!(matches!(heard, Some(RaftInput::SnapshotReceived { .. })), "raft reports the result");
    };
    let (received, ()) = tokio::join!(receive, driver);
    received.unwrap();
    let (found, _) =
        SnapshotDir::open(world._dir.path().join("snapshots"), Some(&own)).unwrap().load_at(9, 2).unwrap();
    assert_eq!(found, own);
}
