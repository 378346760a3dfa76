use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use warren_proto::v1::manager_frame::Frame as FromManager;
use warren_task::DesiredState;
use warren_types::NodeCondition;

use super::*;
use crate::fake_manager::FakeSession;
use crate::fixtures::settings;
use crate::session::tests::TestNode;

/// The clock of a manager that is so many seconds ahead of this machine's.
fn time(ahead: i64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    u64::try_from(now).unwrap().checked_add_signed(ahead * 1000).unwrap()
}

/// The clock condition in the heartbeat after the next one.
async fn clock(session: &mut FakeSession) -> Option<String> {
    let beat = |frame: &Frame| match frame {
        Frame::Heartbeat(beat) => beat.usage.clone(),
        _ => None,
    };
    session.next_matching(beat).await;
    let usage = session.next_matching(beat).await;
    let off = v1::NodeCondition::from(NodeCondition::ClockSkew) as i32;
    let words = usage.condition_messages.into_iter().find(|words| words.contains("clock"));
    assert_eq!(usage.conditions.contains(&off), words.is_some());
    words
}

/// Answers the next request with this time.
async fn answer(session: &mut FakeSession, at: impl Fn() -> u64) {
    loop {
        if let Frame::Sync(_) = session.next_frame().await {
            return session.send(FromManager::Current(v1::AssignmentCurrent { sent_at: at() })).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn clock_skew_is_reported() {
    let (_node, mut manager) = TestNode::start(DesiredState::default());
    let (mut session, _) = manager.next_session().await;
    let settings = Some((&settings()).into());
    session.send(FromManager::Welcome(v1::Welcome { session: 1, settings, sent_at: time(60) })).await;
    let words = clock(&mut session).await.unwrap();
    assert!(words.contains("behind its manager's"), "{words}");
    answer(&mut session, || time(-60)).await;
    let words = clock(&mut session).await.unwrap();
    assert!(words.contains("ahead of its manager's"), "{words}");
    // An answer without time changes nothing.
    answer(&mut session, || 0).await;
    assert!(clock(&mut session).await.is_some());
    // An answer that takes longer than a second, on a loaded machine, is imprecise.
    for _ in 0..20 {
        answer(&mut session, || time(0)).await;
        if clock(&mut session).await.is_none() {
            return;
        }
    }
    panic!("the condition stays");
}

#[tokio::test(start_paused = true)]
async fn new_name_and_labels_apply_within_session() {
    let (node, mut manager) = TestNode::start(DesiredState::default());
    let session = manager.next_welcomed_session().await;
    let labels = BTreeMap::from([("zone".into(), "b".into())]);
    let other = NodeSettings { name: "renamed".parse().unwrap(), labels, ..settings() };
    session.send(FromManager::Settings((&other).into())).await;
    let mut desired_state = node.context.desired_state.subscribe();
    let known = desired_state.wait_for(|desired_state| desired_state.settings.as_ref() == Some(&other));
    known.await.unwrap();
    assert!(*node.context.is_connected.borrow());
    // Settings of another node are an error, also now.
    let wrong = NodeSettings { node: warren_types::NodeId(warren_types::Id(9)), ..other.clone() };
    session.send(FromManager::Settings((&wrong).into())).await;
    session.wait_until_ended().await;
    assert_eq!(node.context.desired_state.borrow().settings, Some(other));
}
