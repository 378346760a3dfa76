use warren_consensus::{EntryKind, RaftEntry};

use super::*;

fn message(kind: MessageKind, bytes: usize) -> Message {
    let data = Bytes::from(vec![1; bytes]);
    let entries = vec![RaftEntry { index: 1, term: 1, kind: EntryKind::Command, data }];
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

fn take(inbox: &mut DriverInbox) -> usize {
    let mut taken = 0;
    while let Ok(heard) = inbox.inputs.try_recv() {
        let RaftInput::Message(message) = heard else { panic!("a message") };
        inbox.release(&message);
        taken += 1;
    }
    taken
}

#[test]
fn input_over_limit_is_dropped_until_drained() {
    let (outbox, mut inbox) = DriverSender::new(1);
    for _ in 0..2 {
        (0..2 * MAX_QUEUED_INPUTS).for_each(|_| outbox.send_message(message(MessageKind::Append, 1)));
        assert_eq!(take(&mut inbox), MAX_QUEUED_INPUTS);
        (0..200).for_each(|_| outbox.send_message(message(MessageKind::Append, 1 << 20)));
        let taken = take(&mut inbox);
        assert_eq!(taken, MAX_QUEUED_BYTES / (1 << 20) + 1, "by their size");
    }
    assert_eq!(outbox.queued_bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn snapshot_message_without_state_is_dropped() {
    let (outbox, mut inbox) = DriverSender::new(1);
    outbox.send_message(message(MessageKind::Snapshot, 1));
    assert_eq!(take(&mut inbox), 0);
}
