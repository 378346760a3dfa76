use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message as _;

use super::*;

fn entry() -> impl Strategy<Value = RaftEntry> {
    let kind = prop_oneof![Just(EntryKind::Noop), Just(EntryKind::Command), Just(EntryKind::Membership)];
    (any::<u64>(), any::<u64>(), kind, vec(any::<u8>(), 0..64))
        .prop_map(|(index, term, kind, data)| RaftEntry { index, term, kind, data: Bytes::from(data) })
}

fn snapshot() -> impl Strategy<Value = SnapshotMeta> {
    let ids = || vec(any::<u64>(), 0..4);
    (any::<[u64; 2]>(), ids(), ids(), ids(), ids(), any::<bool>()).prop_map(
        |([index, term], voters, learners, voters_outgoing, learners_next, auto_leave)| {
            let conf_state = ConfState { voters, learners, voters_outgoing, learners_next, auto_leave };
            SnapshotMeta { index, term, conf_state }
        },
    )
}

fn message() -> impl Strategy<Value = Message> {
    let numbers = any::<[u64; 9]>();
    let acknowledged =
        any::<[u64; 3]>().prop_map(|[member, index, term]| AcknowledgedEntry { member, index, term });
    let rest = (any::<bool>(), vec(any::<u8>(), 0..16), any::<i64>(), vec(acknowledged, 0..4));
    (0..KINDS.len(), numbers, vec(entry(), 0..4), proptest::option::of(snapshot()), rest).prop_map(
        |(kind, numbers, entries, snapshot, (reject, context, priority, acknowledged))| {
            let [to, from, term, log_term, index, commit, commit_term, request_snapshot, reject_hint] =
                numbers;
            Message {
                kind: KINDS[kind].0,
                to,
                from,
                term,
                log_term,
                index,
                entries,
                commit,
                commit_term,
                snapshot,
                request_snapshot,
                reject,
                reject_hint,
                context: Bytes::from(context),
                priority,
                acknowledged,
            }
        },
    )
}

proptest! {
    #[test]
    fn message_round_trips(message in message()) {
        let bytes = to_wire(message.clone()).encode_to_vec();
        prop_assert!(bytes.len() <= wire_size(&message), "{} > {}", bytes.len(), wire_size(&message));
        let wire = v1::RaftMessage::decode(bytes.as_slice()).unwrap();
        prop_assert_eq!(from_wire(wire), Ok(message));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..200)) {
        if let Ok(wire) = v1::RaftMessage::decode(bytes.as_slice()) {
            // Either is fine, as long as it is one of the two.
            let _ = from_wire(wire);
        }
    }
}

#[test]
fn invalid_message_is_refused_with_reason() {
    let good = v1::RaftMessage { kind: v1::RaftMessageKind::Append as i32, ..Default::default() };
    assert!(from_wire(good.clone()).is_ok());
    for kind in [0, 14, -1] {
        assert_eq!(
            from_wire(v1::RaftMessage { kind, ..good.clone() }),
            Err(WireError::UnknownMessageKind(kind))
        );
    }
    let entries = vec![v1::RaftEntry { kind: 3, ..Default::default() }];
    assert_eq!(from_wire(v1::RaftMessage { entries, ..good.clone() }), Err(WireError::UnknownEntryKind(3)));
    let snapshot = Some(v1::RaftSnapshot { index: 1, term: 1, members: None });
    assert_eq!(from_wire(v1::RaftMessage { snapshot, ..good }), Err(WireError::SnapshotWithoutMembers));
}
