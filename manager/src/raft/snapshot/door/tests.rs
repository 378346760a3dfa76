use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use tempfile::TempDir;
use warren_consensus::MessageKind;
use warren_core::State;
use warren_log::{ConfState, Snapshots};
use warren_security::seal::Keyring;

use super::*;
use crate::store::{Heard, Inbox, Published, Publisher};

/// A state up to there.
fn state(index: u64) -> State {
    let mut state = State::new();
    state.advance(Applied { term: 2, index });
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

struct World {
    _dir: TempDir,
    files: SnapshotFiles,
    door: SnapshotDoor,
    publisher: Publisher,
    inbox: Inbox,
}

fn world() -> World {
    let dir = tempfile::tempdir().unwrap();
    let files = Snapshots::open(dir.path().join("snapshots"), None).unwrap();
    let keyring = Arc::new(Keyring::open(dir.path(), &BTreeSet::new()).unwrap());
    let files = SnapshotFiles::new(files, keyring);
    let (store, publisher, inbox) = Store::new(Published::first(state(5)), 1, 1);
    World { _dir: dir, door: SnapshotDoor::new(files.clone(), store), files, publisher, inbox }
}

#[tokio::test]
async fn what_one_gives_out_another_takes() {
    let (giver, mut taker) = (world(), world());
    giver.files.write(&state(9), &meta(9, vec![]), &AtomicBool::new(false)).unwrap();
    // Raft names the receiver as a learner if the snapshot does not know it.
    let announced = meta(9, vec![3]);
    let bytes = giver.door.read(&announced).await.unwrap();
    assert_eq!(bytes, plain(&state(9)));
    let size = bytes.len() as u64;
    let receive = taker.door.receive(announce(Some(announced.clone())), bytes.into());
    let driver = async {
        let Some(Heard::Snapshot { message, state: came, bytes, taken }) = taker.inbox.heard.recv().await
        else {
            panic!("a snapshot");
        };
        assert_eq!((message.snapshot, *came, bytes), (Some(announced.clone()), state(9), size));
        assert!(taker.files.path(&announced).exists(), "it is durable before raft hears of it");
        taken.send(()).unwrap();
    };
    let (received, ()) = tokio::join!(receive, driver);
    received.unwrap();
    assert_eq!(taker.door.read(&announced).await.unwrap(), plain(&state(9)), "under its own key");
}

#[tokio::test]
async fn what_is_not_what_was_announced_is_refused_before_it_is_kept() {
    let world = world();
    let announced = meta(9, vec![]);
    for (plain, wanted) in [
        (plain(&state(8)), "was announced up to Applied { term: 2, index: 9 } has the state up to"),
        (b"no snapshot".to_vec(), "a snapshot from another manager: "),
    ] {
        let refused = world.door.receive(announce(Some(announced.clone())), plain.into()).await.unwrap_err();
        assert!(refused.to_string().contains(wanted), "{refused}");
        assert!(!world.files.path(&announced).exists());
    }
    let refused = world.door.receive(announce(None), Default::default()).await.unwrap_err();
    assert!(matches!(refused, SnapshotError::NotAnnounced));
    assert!(matches!(world.door.read(&announced).await, Err(SnapshotError::File(_))));
}

/// Its own snapshot can end at the same entry and have other members: the log points to that one.
#[tokio::test]
async fn a_snapshot_that_comes_too_late_replaces_nothing() {
    let mut world = world();
    world.publisher.publish(Published::first(state(9)), Vec::new());
    let own = meta(9, vec![]);
    world.files.write(&state(9), &own, &AtomicBool::new(false)).unwrap();
    let receive = world.door.receive(announce(Some(meta(9, vec![3]))), plain(&state(9)).into());
    let driver = async {
        let heard = world.inbox.heard.recv().await;
        assert!(matches!(heard, Some(Heard::Snapshot { .. })), "raft says what it thinks of it");
    };
    let (received, ()) = tokio::join!(receive, driver);
    received.unwrap();
    let (found, _) =
        Snapshots::open(world._dir.path().join("snapshots"), Some(&own)).unwrap().load_at(9, 2).unwrap();
    assert_eq!(found, own);
}
