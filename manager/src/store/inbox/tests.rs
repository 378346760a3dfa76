use warren_consensus::{Entry, EntryKind};

use super::*;

fn message(kind: MessageKind, bytes: usize) -> Message {
    let data = Bytes::from(vec![1; bytes]);
    let entries = vec![Entry { index: 1, term: 1, kind: EntryKind::Command, data }];
    Message {
        kind,
        to: 1,
        from: 2,
        term: 1,
        log_term: 0,
        index: 0,
        entries,
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

fn take(inbox: &mut Inbox) -> usize {
    let mut taken = 0;
    while let Ok(heard) = inbox.heard.try_recv() {
        let Heard::Message(message) = heard else { panic!("a message") };
        inbox.took(&message);
        taken += 1;
    }
    taken
}

#[test]
fn what_is_too_much_is_dropped_and_there_is_room_again_later() {
    let (outbox, mut inbox) = Outbox::new(1);
    for _ in 0..2 {
        (0..2 * HEARD).for_each(|_| outbox.deliver(message(MessageKind::Append, 1)));
        assert_eq!(take(&mut inbox), HEARD);
        (0..200).for_each(|_| outbox.deliver(message(MessageKind::Append, 1 << 20)));
        let taken = take(&mut inbox);
        assert_eq!(taken, HEARD_BYTES / (1 << 20) + 1, "by their size");
    }
    assert_eq!(outbox.waiting.load(Ordering::Relaxed), 0);
}

#[test]
fn a_snapshot_never_comes_without_its_state() {
    let (outbox, mut inbox) = Outbox::new(1);
    outbox.deliver(message(MessageKind::Snapshot, 1));
    assert_eq!(take(&mut inbox), 0);
}
