use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use warren_proto::v1::manager_frame::Frame as FromManager;
use warren_task::Wishes;
use warren_types::NodeCondition;

use super::*;
use crate::samples::settings;
use crate::scripted::Session;
use crate::session::tests::Node;

/// What a manager's clock says that is so many seconds ahead of this machine's.
fn time(ahead: i64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    now.checked_add_signed(ahead).unwrap() * 1000
}

/// What the node says of its clock with the heartbeat after the next one, in words.
async fn clock(session: &mut Session) -> Option<String> {
    let beat = |frame: &Frame| match frame {
        Frame::Heartbeat(beat) => beat.usage.clone(),
        _ => None,
    };
    session.hear_until(beat).await;
    let usage = session.hear_until(beat).await;
    let off = v1::NodeCondition::from(NodeCondition::ClockOff) as i32;
    let words = usage.conditions.into_iter().find(|words| words.contains("clock"));
    assert_eq!(usage.kinds.contains(&off), words.is_some());
    words
}

/// Answers the next question with this time.
async fn answer(session: &mut Session, at: u64) {
    loop {
        if let Frame::Sync(_) = session.hear().await {
            return session.say(FromManager::Current(v1::SyncCurrent { at })).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_differs_from_the_managers_is_said() {
    let (_node, mut manager) = Node::start(Wishes::default());
    let (mut session, _) = manager.session().await;
    let settings = Some((&settings()).into());
    session.say(FromManager::Welcome(v1::Welcome { session: 1, settings, at: time(60) })).await;
    let words = clock(&mut session).await.unwrap();
    assert!(words.contains("behind its manager's"), "{words}");
    answer(&mut session, time(-60)).await;
    let words = clock(&mut session).await.unwrap();
    assert!(words.contains("ahead of its manager's"), "{words}");
    // One that does not say leaves it as it is.
    answer(&mut session, 0).await;
    assert!(clock(&mut session).await.is_some());
    answer(&mut session, time(0)).await;
    assert_eq!(clock(&mut session).await, None);
}

#[tokio::test(start_paused = true)]
async fn another_name_and_other_labels_reach_the_node_while_the_session_goes_on() {
    let (node, mut manager) = Node::start(Wishes::default());
    let session = manager.welcomed().await;
    let labels = BTreeMap::from([("zone".into(), "b".into())]);
    let other = NodeSettings { name: "renamed".parse().unwrap(), labels, ..settings() };
    session.say(FromManager::Settings((&other).into())).await;
    let mut wishes = node.context.wishes.subscribe();
    let known = wishes.wait_for(|wishes| wishes.settings.as_ref() == Some(&other));
    known.await.unwrap();
    assert!(*node.context.connected.borrow());
    // Those of another node are a mistake, also now.
    let wrong = NodeSettings { node: warren_types::NodeId(warren_types::Id(9)), ..other.clone() };
    session.say(FromManager::Settings((&wrong).into())).await;
    session.ended().await;
    assert_eq!(node.context.wishes.borrow().settings, Some(other));
}
