use bytes::Bytes;
use tokio_stream::StreamExt;
use warren_consensus::{Entry, EntryKind};

use super::*;

fn message(kind: MessageKind, index: u64, data: usize) -> Message {
    let entry = Entry { index, term: 1, kind: EntryKind::Command, data: Bytes::from(vec![7; data]) };
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

fn open(mailbox: &Mailbox) -> Frames {
    mailbox.open(v1::PeerHello { member: 1, address: "a:1".into(), incarnation: 1 })
}

#[tokio::test]
async fn what_waits_together_goes_together_and_appends_keep_their_order() {
    let mailbox = Mailbox::default();
    let mut frames = open(&mailbox);
    for index in 1..=3 {
        mailbox.put(message(MessageKind::Append, index, 10)).unwrap();
    }
    mailbox.put(message(MessageKind::Vote, 9, 0)).unwrap();
    assert_eq!(frames.next().await.unwrap().hello.unwrap().member, 1);
    assert_eq!(indexes(&frames.next().await.unwrap()), [9, 1, 2, 3]);
}

#[tokio::test]
async fn frames_are_bounded_and_a_vote_waits_for_one_at_most() {
    let mailbox = Mailbox::default();
    let mut frames = open(&mailbox);
    frames.next().await.unwrap();
    for index in 1..=3 {
        mailbox.put(message(MessageKind::Append, index, FRAME_BYTES - 1000)).unwrap();
    }
    assert_eq!(indexes(&frames.next().await.unwrap()), [1, 2], "the second one reaches the bound");
    mailbox.put(message(MessageKind::Vote, 9, 0)).unwrap();
    assert_eq!(indexes(&frames.next().await.unwrap()), [9, 3]);
    for index in 0..MOST_LIGHT as u64 {
        mailbox.put(message(MessageKind::Heartbeat, index, 0)).unwrap();
    }
    assert_eq!(mailbox.put(message(MessageKind::Heartbeat, 0, 0)), Err(Dropped));
    assert_eq!(frames.next().await.unwrap().messages.len(), FRAME_MESSAGES);
}

#[tokio::test]
async fn what_finds_no_room_is_dropped_but_one_message_always_fits() {
    let mailbox = Mailbox::default();
    let mut frames = open(&mailbox);
    frames.next().await.unwrap();
    mailbox.put(message(MessageKind::Append, 1, 2 * MOST_BYTES)).unwrap();
    assert_eq!(mailbox.put(message(MessageKind::Append, 2, 1)), Err(Dropped));
    mailbox.put(message(MessageKind::Vote, 9, 0)).unwrap();
    assert_eq!(indexes(&frames.next().await.unwrap()), [9, 1]);
    mailbox.put(message(MessageKind::Append, 2, 1)).unwrap();
    assert_eq!(indexes(&frames.next().await.unwrap()), [2]);
}

#[tokio::test]
async fn nothing_waits_for_somebody_who_is_not_there() {
    let mailbox = Mailbox::default();
    assert_eq!(mailbox.put(message(MessageKind::Vote, 1, 0)), Err(Dropped));
    let mut first = open(&mailbox);
    mailbox.put(message(MessageKind::Vote, 2, 0)).unwrap();
    let mut second = open(&mailbox);
    mailbox.put(message(MessageKind::Vote, 3, 0)).unwrap();
    assert!(first.next().await.unwrap().hello.is_some());
    assert_eq!(first.next().await, None, "another connection took its place");
    assert!(second.next().await.unwrap().hello.is_some());
    assert_eq!(indexes(&second.next().await.unwrap()), [3], "what waited for the first one is gone");
    let ended = tokio::spawn(async move { second.next().await });
    mailbox.close();
    assert_eq!(ended.await.unwrap(), None);
    assert!(!mailbox.is_open());
}
