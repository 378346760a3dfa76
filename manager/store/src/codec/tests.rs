mod golden;
mod sample;
mod schema;

use proptest::prelude::*;
use warren_types::Timestamp;

use super::*;

/// Appends a field of a later version to a message.
fn with_field(mut bytes: Vec<u8>, number: u32) -> Vec<u8> {
    prost::encoding::uint64::encode(number, &7, &mut bytes);
    bytes
}

#[test]
fn command_round_trips() {
    for (name, command) in sample::commands() {
        assert_eq!(decode(&encode(&command)).unwrap(), command, "{name}");
    }
}

/// A leader stores a forwarded command with its own time.
#[test]
fn command_takes_proposal_time() {
    let late = Timestamp(u64::MAX);
    for (name, command) in sample::commands() {
        let mut stamped = command.clone();
        stamped.set_at(late);
        assert_eq!(stamped.at(), command.at().map(|_| late), "{name}");
        assert_eq!(decode(&encode(&stamped)).unwrap(), stamped, "{name}");
        if let Some(at) = command.at() {
            stamped.set_at(at);
        }
        assert_eq!(stamped, command, "nothing else of {name} changes");
    }
}

#[test]
fn state_round_trips_through_snapshot() {
    for state in sample::states() {
        let restored = read_snapshot(&sample::snapshot(&state)).unwrap();
        assert_eq!(restored, state);
        assert_eq!(restored.digest(), state.digest());
    }
}

#[test]
fn malformed_command_is_refused() {
    assert!(matches!(decode(b"\xff\xff"), Err(CodecError::Malformed { .. })));
    assert!(matches!(decode(b""), Err(CodecError::UnknownRecord(_))));
    let cut = |bytes: &[u8]| decode(&bytes[..bytes.len() - 1]).is_err();
    assert!(sample::commands().iter().all(|(_, command)| cut(&encode(command))));
}

#[test]
fn unknown_command_is_refused() {
    let unknown = decode(&with_field(Vec::new(), 1000)).unwrap_err();
    assert!(matches!(unknown, CodecError::UnknownRecord(_)));
    let message = unknown.to_string();
    assert!(message.contains("has unknown fields; install that version"), "{message}");
}

/// Protobuf itself would silently skip it.
#[test]
fn unknown_command_field_is_refused() {
    for (name, command) in sample::commands() {
        let bytes = encode(&command);
        let beside = with_field(bytes.clone(), 1000);
        assert!(v1::Command::decode(&beside[..]).is_ok(), "protobuf takes it");
        assert!(matches!(decode(&beside), Err(CodecError::UnknownRecord(_))), "beside {name}");
        let within = schema::with_inner_field(&bytes, |inner| with_field(inner, 1000));
        assert!(v1::Command::decode(&within[..]).is_ok(), "protobuf takes it");
        assert!(matches!(decode(&within), Err(CodecError::UnknownRecord(_))), "within {name}");
    }
}

#[test]
fn unknown_enum_value_is_refused() {
    let scale = v1::SetDesiredTaskState { term: 1, task_ids: vec![], desired: 700, at: 1 };
    let status = v1::SetNodeStatus { status: 3, node_id: "0".repeat(25), ..Default::default() };
    let report = v1::TaskReport { task_id: format!("{}-1", "0".repeat(25)), state: 9, ..Default::default() };
    let report = v1::ReportTasks { node_id: "0".repeat(25), reports: vec![report], ..Default::default() };
    use v1::command::Command as Wire;
    for (wire, expected) in [
        (Wire::SetDesiredTaskState(scale), "value 700 is not known to this version"),
        (Wire::SetNodeStatus(status), "value 3 is not known to this version"),
        (Wire::ReportTasks(report), "state: value 9 is not known to this version"),
    ] {
        let refused = decode(&v1::Command { command: Some(wire) }.encode_to_vec()).unwrap_err();
        assert!(
            matches!(refused, CodecError::InvalidField { .. }) && refused.to_string().contains(expected),
            "{refused}"
        );
    }
}

#[test]
fn unsupported_level_is_refused() {
    let found = FEATURE_LEVEL + 1;
    let create = match sample::commands().swap_remove(0).1 {
        Command::CreateCluster { id, ranges, at, .. } => {
            Command::CreateCluster { id, ranges, feature_level: found, at }
        }
        other => panic!("{other:?}"),
    };
    for command in [create, Command::RaiseFeatureLevel { term: 1, level: found }] {
        let refused = decode(&encode(&command)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "a command in the log is of level 3 and this version of Warren supports feature levels up to 2; \
             install a newer version and start again"
        );
    }
    // Before there are managers, whose level is known.
    let mut state = sample::states().swap_remove(0);
    let index = state.applied().index + 1;
    state.apply(1, index, &Command::RaiseFeatureLevel { term: 1, level: found });
    assert_eq!(state.feature_level(), found);
    let refused = read_snapshot(&sample::snapshot(&state)).unwrap_err();
    assert!(matches!(refused, CodecError::UnsupportedLevel { what: "a snapshot", .. }), "{refused}");
}

/// A snapshot with one record replaced by what `change` makes of it.
fn damaged(number: usize, change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Vec<u8> {
    let mut records = schema::records(&sample::snapshot(&sample::state()));
    let changed = change(std::mem::take(&mut records[number]));
    records[number] = changed;
    records.iter().flat_map(|record| schema::delimited(record)).collect()
}

#[test]
fn unknown_snapshot_record_is_refused() {
    let records = schema::records(&sample::snapshot(&sample::state())).len();
    for number in 0..records {
        read_snapshot(&damaged(number, |record| record)).unwrap();
        let beside = read_snapshot(&damaged(number, |record| with_field(record, 1000)));
        assert!(matches!(beside, Err(CodecError::UnknownRecord(_))), "beside record {number}");
        let within = |record: Vec<u8>| schema::with_inner_field(&record, |inner| with_field(inner, 1000));
        let within = read_snapshot(&damaged(number, within));
        assert!(matches!(within, Err(CodecError::UnknownRecord(_))), "within record {number}");
    }
    let instead = read_snapshot(&damaged(1, |_| with_field(Vec::new(), 1000)));
    assert!(matches!(instead, Err(CodecError::UnknownRecord(_))));
}

#[test]
fn incomplete_snapshot_is_refused() {
    let whole = sample::snapshot(&sample::state());
    for cut in 0..whole.len() {
        let refused = read_snapshot(&whole[..cut]);
        assert!(refused.is_err(), "cut at {cut} of {}: the digest does not fit any more", whole.len());
    }
    let twice = read_snapshot(&[&whole[..], &whole[..]].concat()).unwrap_err().to_string();
    assert!(twice.contains("cluster: is present twice"), "{twice}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A flipped bit is rejected, or gives a consistent state with another digest.
    #[test]
    fn snapshot_bit_flip_is_detected(bit in 0..sample::snapshot(&sample::state()).len() * 8) {
        let state = sample::state();
        let mut bytes = sample::snapshot(&state);
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(read) = read_snapshot(&bytes) {
            prop_assert!(read.digest() != state.digest() || read.applied() != state.applied());
            read.check().unwrap();
        }
    }
}
