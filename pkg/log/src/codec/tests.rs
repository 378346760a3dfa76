//! Written values decode to the same value, and damaged values are rejected.

use proptest::prelude::*;

use super::*;
use crate::extent::LogExtent;
use crate::head::LogHead;

fn ids() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(any::<u64>(), 0..5)
}

fn conf_state() -> impl Strategy<Value = ConfState> {
    (ids(), ids(), ids(), ids(), any::<bool>()).prop_map(
        |(voters, learners, voters_outgoing, learners_next, auto_leave)| ConfState {
            voters,
            learners,
            voters_outgoing,
            learners_next,
            auto_leave,
        },
    )
}

fn snapshot() -> impl Strategy<Value = SnapshotMeta> {
    (0..u64::MAX, any::<u64>(), conf_state()).prop_map(|(index, term, conf_state)| SnapshotMeta {
        index,
        term,
        conf_state,
    })
}

fn entry() -> impl Strategy<Value = RaftEntry> {
    let kind = prop_oneof![Just(EntryKind::Noop), Just(EntryKind::Command), Just(EntryKind::Membership)];
    let data = prop::collection::vec(any::<u8>(), 0..300);
    (any::<u64>(), any::<u64>(), kind, data).prop_map(|(index, term, kind, data)| {
        let data = if kind == EntryKind::Noop { Bytes::new() } else { data.into() };
        RaftEntry { index, term, kind, data }
    })
}

fn head() -> impl Strategy<Value = LogHead> {
    let hard_state = any::<[u64; 3]>().prop_map(|[term, vote, commit]| HardState { term, vote, commit });
    let numbers = (any::<[u64; 2]>(), any::<prop::sample::Index>(), 0..1000u64);
    let acknowledged =
        any::<[u64; 3]>().prop_map(|[member, index, term]| AcknowledgedEntry { member, index, term });
    let acknowledged = prop::collection::vec(acknowledged, 0..4);
    (numbers, hard_state, conf_state(), prop::option::of(snapshot()), acknowledged).prop_map(
        |(([number, sum], first, length), hard_state, conf_state, snapshot, acknowledged)| {
            let covered = snapshot.as_ref().map_or(0, |snapshot| snapshot.index);
            let first = 1 + first.index(usize::try_from(covered).unwrap().max(1)) as u64;
            let last = (first - 1).saturating_add(length);
            let extent = LogExtent { snapshot: covered, first, last };
            LogHead { number, extent, sum, hard_state, conf_state, snapshot, acknowledged }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn entry_round_trips(entry in entry()) {
        let value = encode_entry(&entry);
        prop_assert_eq!(value.len(), entry_len(&entry));
        prop_assert_eq!(decode_entry(entry.index, &value), Ok(entry.clone()));
        prop_assert!(decode_entry(entry.index ^ 1, &value).is_err());
        prop_assert_eq!(entry_checksum(&value), u64::from(checksum(&entry.index.to_le_bytes(), &value[4..])));
    }

    #[test]
    fn head_round_trips(head in head()) {
        let body = head.encode();
        prop_assert_eq!(LogHead::decode(&body), Some(head.clone()));
        // All or nothing at every truncation point.
        for end in 0..body.len() {
            prop_assert_eq!(LogHead::decode(&body[..end]), None);
        }
        prop_assert_eq!(LogHead::decode(&[&body[..], &[0]].concat()), None);
        prop_assert_eq!(encode_hard_state(&head.hard_state).len(), HARD_STATE_LEN);
        prop_assert_eq!(encode_conf_state(&head.conf_state).len(), conf_state_len(&head.conf_state));
    }

    #[test]
    fn snapshot_meta_round_trips(snapshot in snapshot()) {
        let body = encode_snapshot(&snapshot);
        prop_assert_eq!(body.len(), snapshot_meta_len(&snapshot));
        let mut fields = FieldDecoder(&body);
        prop_assert_eq!(fields.snapshot(), Some(snapshot));
        prop_assert!(fields.0.is_empty());
    }

    #[test]
    fn invalid_bytes_are_rejected_without_panic(
        index in any::<u64>(),
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        prop_assert!(decode_entry(index, &bytes).is_err());
        let sealed = seal(&index.to_le_bytes(), &bytes);
        if let Ok(entry) = decode_entry(index, &sealed) {
            prop_assert_eq!(encode_entry(&entry), sealed);
        }
        if let Some(head) = LogHead::decode(&bytes) {
            prop_assert_eq!(head.encode(), bytes);
        }
    }
}
