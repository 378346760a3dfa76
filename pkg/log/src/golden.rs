//! Golden files of each format version (`tests/golden/`): those of this version are read and written byte
//! for byte, older ones are recognised and rejected.

use std::{fs, path::PathBuf};

use bytes::Bytes;
use warren_types::raft::{AcknowledgedEntry, ConfState, EntryKind, HardState, RaftEntry, SnapshotMeta};
use warren_types::{ClusterId, Id, ManagerId};

use crate::{
    Error, LOG_FORMAT, LogOwner, SNAPSHOT_FORMAT, SnapshotDir, ack_watermark, codec, extent::LogExtent,
    head::LogHead, owner,
};

const OWNER: LogOwner =
    LogOwner { cluster: ClusterId(Id(7)), manager: ManagerId(Id(1 << 64 | 8)), member: 3 };

fn conf_state() -> ConfState {
    ConfState {
        voters: vec![1, 2, 3],
        learners: vec![7],
        voters_outgoing: vec![1, 2],
        learners_next: vec![8, 9],
        auto_leave: true,
    }
}

fn meta() -> SnapshotMeta {
    SnapshotMeta { index: 9, term: 3, conf_state: conf_state() }
}

fn entries() -> [(&'static str, RaftEntry); 3] {
    let entry = |index, kind, data| RaftEntry { index, term: 2, kind, data: Bytes::from_static(data) };
    [
        ("noop", entry(4, EntryKind::Noop, b"")),
        ("command", entry(5, EntryKind::Command, b"data")),
        ("membership", entry(6, EntryKind::Membership, b"change")),
    ]
}

fn heads() -> [(&'static str, LogHead); 2] {
    let head = LogHead {
        number: 17,
        extent: LogExtent { snapshot: 9, first: 5, last: 12 },
        sum: 0x0123_4567_89AB_CDEF,
        hard_state: HardState { term: 3, vote: 2, commit: 11 },
        conf_state: conf_state(),
        snapshot: Some(meta()),
        acknowledged: vec![
            AcknowledgedEntry { member: 1, index: 11, term: 3 },
            AcknowledgedEntry { member: 2, index: 10, term: 2 },
        ],
    };
    [("head-of-new-log", LogHead::default()), ("head", head)]
}

/// Every kind of record of the current version, with a name.
fn records() -> Vec<(&'static str, Vec<u8>)> {
    let format = codec::seal(b"format", &LOG_FORMAT.to_le_bytes());
    let entries = entries().map(|(name, entry)| (name, codec::encode_entry(&entry)));
    let heads = heads().map(|(name, head)| (name, codec::seal(b"head", &head.encode())));
    let receipt = ack_watermark::encode(17).to_vec();
    let owner = codec::seal(b"owner", &owner::encode(&OWNER));
    let beside = [("receipt", receipt), ("owner", owner)];
    [("format", format)].into_iter().chain(entries).chain(heads).chain(beside).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.trim_end().len()).step_by(2).map(byte).collect()
}

fn dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// The files of one kind with their versions, the current one among them.
fn goldens(kind: &str, current: u32, content: &str) -> Vec<(u32, String)> {
    let mut goldens = Vec::new();
    for file in fs::read_dir(dir()).unwrap() {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        let version = name.strip_prefix(kind).and_then(|rest| rest.strip_prefix("-v"));
        if let Some(version) = version.and_then(|version| version.strip_suffix(".hex")) {
            goldens.push((version.parse().unwrap(), fs::read_to_string(file.path()).unwrap()));
        }
    }
    goldens.sort();
    let latest = goldens.last().map(|(version, _)| *version);
    let advice = format!(
        "add tests/golden/{kind}-v{current}.hex with the lines below, and keep the older files:\n{content}"
    );
    assert_eq!(latest, Some(current), "the format's version has no golden file: {advice}");
    goldens
}

#[test]
fn records_match_golden_file() {
    let content: String = records().iter().map(|(name, value)| format!("{name} {}\n", hex(value))).collect();
    let goldens = goldens("log", LOG_FORMAT, &content);
    let (_, golden) = goldens.last().unwrap();
    let advice = "records changed: if logs that exist cannot be read any more, raise LOG_FORMAT";
    assert_eq!(*golden, content, "{advice}");
}

#[test]
fn every_record_version_is_read_or_rejected() {
    for (version, golden) in goldens("log", LOG_FORMAT, "") {
        let value = |name: &str| {
            let line = golden.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            unhex(line.unwrap_or_else(|| panic!("version {version} has no {name}")))
        };
        // The one record that never changes.
        let format = value("format");
        let body = codec::unseal(b"format", &format).unwrap();
        assert_eq!(codec::FieldDecoder(body).u32(), Some(version));
        if version < LOG_FORMAT {
            continue;
        }
        for (name, entry) in entries() {
            assert_eq!(codec::decode_entry(entry.index, &value(name)), Ok(entry), "{name}");
        }
        for (name, head) in heads() {
            let value = value(name);
            assert_eq!(LogHead::decode(codec::unseal(b"head", &value).unwrap()), Some(head), "{name}");
        }
        let owner = value("owner");
        assert_eq!(owner::decode(codec::unseal(b"owner", &owner).unwrap()), Some(OWNER));
        let receipt = value("receipt").try_into().unwrap();
        assert_eq!(ack_watermark::decode(&receipt), Some(17));
    }
}

#[test]
fn every_snapshot_version_is_read_or_rejected() {
    let scratch = tempfile::tempdir().unwrap();
    let snapshots = SnapshotDir::open(scratch.path(), None).unwrap();
    let path = snapshots.write(&meta(), |out| out.write_all(b"the state")).unwrap();
    let content = hex(&fs::read(&path).unwrap()) + "\n";
    for (version, golden) in goldens("snapshot", SNAPSHOT_FORMAT, &content) {
        fs::write(&path, unhex(&golden)).unwrap();
        match snapshots.load(&meta()) {
            Ok(payload) => {
                assert_eq!((version, payload.as_slice()), (SNAPSHOT_FORMAT, &b"the state"[..]));
                assert_eq!(golden, content, "snapshots are written in another way now");
            }
            Err(Error::Older { found, .. }) => assert_eq!(found, version),
            Err(error) => panic!("version {version}: {error}"),
        }
    }
}
