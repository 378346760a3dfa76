use bytes::Bytes;
use tokio_stream::StreamExt;
use warren_consensus::{EntryKind, RaftEntry};

use super::*;

fn message(kind: MessageKind, index: u64, data: usize) -> Message {
    let entry = RaftEntry { index, term: 1, kind: EntryKind::Command, data: Bytes::from(vec![7; data]) };
    Message {
        kind,
        to: 2,
        from: 1,
        term: 1,
        log_term: 1,
        index,
        entries: if data == 0 { Vec::new() } else { vec![entry] },
        commit: 0,
        commit_term: 0,
        snapshot: None,
        request_snapshot: 0,
        reject: false,
        reject_hint: 0,
        context: Bytes::new(),
        priority: 0,
        acknowledged: Vec::new(),
    }
}

fn indexes(frame: &v1::RaftFrame) -> Vec<u64> {
    frame.messages.iter().map(|message| message.index).collect()
}

fn open(queue: &SendQueue) -> RaftFrameStream {
    queue.open(v1::PeerHello { member_id: 1, address: "a:1".into(), incarnation: 1 })
}

#[tokio::test]
async fn queued_messages_share_frame_and_appends_keep_order() {
    let queue = SendQueue::default();
    let mut frames = open(&queue);
    for index in 1..=3 {
        queue.push(message(MessageKind::Append, index, 10)).unwrap();
    }
    queue.push(message(MessageKind::Vote, 9, 0)).unwrap();
    assert_eq!(frames.next().await.unwrap().hello.unwrap().member_id, 1);
    assert_eq!(indexes(&frames.next().await.unwrap()), [9, 1, 2, 3]);
}

#[tokio::test]
async fn frames_are_bounded_and_votes_go_first() {
    let queue = SendQueue::default();
    let mut frames = open(&queue);
    frames.next().await.unwrap();
    for index in 1..=3 {
        queue.push(message(MessageKind::Append, index, MAX_FRAME_BYTES - 1000)).unwrap();
    }
    assert_eq!(indexes(&frames.next().await.unwrap()), [1, 2], "the second one reaches the bound");
    queue.push(message(MessageKind::Vote, 9, 0)).unwrap();
    assert_eq!(indexes(&frames.next().await.unwrap()), [9, 3]);
    for index in 0..MAX_CONTROL_MESSAGES as u64 {
        queue.push(message(MessageKind::Heartbeat, index, 0)).unwrap();
    }
    assert_eq!(queue.push(message(MessageKind::Heartbeat, 0, 0)), Err(QueueRejected));
    assert_eq!(frames.next().await.unwrap().messages.len(), MAX_FRAME_MESSAGES);
}

#[tokio::test]
async fn message_over_limit_is_dropped_unless_queue_is_empty() {
    let queue = SendQueue::default();
    let mut frames = open(&queue);
    frames.next().await.unwrap();
    queue.push(message(MessageKind::Append, 1, 2 * MAX_APPEND_BYTES)).unwrap();
    assert_eq!(queue.push(message(MessageKind::Append, 2, 1)), Err(QueueRejected));
    queue.push(message(MessageKind::Vote, 9, 0)).unwrap();
    assert_eq!(indexes(&frames.next().await.unwrap()), [9, 1]);
    queue.push(message(MessageKind::Append, 2, 1)).unwrap();
    assert_eq!(indexes(&frames.next().await.unwrap()), [2]);
}

#[tokio::test]
async fn disconnected_queue_keeps_nothing() {
    let queue = SendQueue::default();
    assert_eq!(queue.push(message(MessageKind::Vote, 1, 0)), Err(QueueRejected));
    let mut first = open(&queue);
    queue.push(message(MessageKind::Vote, 2, 0)).unwrap();
    let mut second = open(&queue);
    queue.push(message(MessageKind::Vote, 3, 0)).unwrap();
    assert!(first.next().await.unwrap().hello.is_some());
    assert_eq!(first.next().await, None, "another connection took its place");
    assert!(second.next().await.unwrap().hello.is_some());
    assert_eq!(indexes(&second.next().await.unwrap()), [3], "what waited for the first one is gone");
    let ended = tokio::spawn(async move { second.next().await });
    queue.close();
    assert_eq!(ended.await.unwrap(), None);
    assert!(!queue.is_open());
}
