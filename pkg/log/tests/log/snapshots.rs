//! Snapshot files: complete or absent, never wrong.

use std::{fs, io, path::Path};

use warren_log::{Error, SNAPSHOT_FORMAT, SnapshotDir};

use crate::snapshot;

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn write(snapshots: &SnapshotDir, index: u64, payload: &[u8]) {
    snapshots.write(&snapshot(index, 1), |out| out.write_all(payload)).unwrap();
}

#[test]
fn snapshot_round_trips() {
    let dir = tempfile::tempdir().unwrap();
    let snapshots = SnapshotDir::open(dir.path().join("new/dir"), None).unwrap();
    for payload in [&b""[..], b"state", &vec![7; 300_000]] {
        for _ in 0..2 {
            let path = snapshots
                .write(&snapshot(5, 1), |out| payload.chunks(1000).try_for_each(|c| out.write_all(c)))
                .unwrap();
            assert_eq!(path, snapshots.path(&snapshot(5, 1)));
            assert_eq!(snapshots.load(&snapshot(5, 1)).unwrap(), payload);
        }
    }
    let reopened = SnapshotDir::open(dir.path().join("new/dir"), Some(&snapshot(5, 1))).unwrap();
    assert_eq!(reopened.load(&snapshot(5, 1)).unwrap().len(), 300_000);
}

#[test]
fn every_damaged_byte_and_truncation_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let snapshots = SnapshotDir::open(dir.path(), None).unwrap();
    write(&snapshots, 9, b"the state of the cluster");
    let path = snapshots.path(&snapshot(9, 1));
    let whole = fs::read(&path).unwrap();
    let load = |content: &[u8]| {
        fs::write(&path, content).unwrap();
        snapshots.load(&snapshot(9, 1))
    };
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        let error = load(&damaged).unwrap_err();
        let expected = matches!(error, Error::Corrupt { .. } | Error::Newer { .. } | Error::Older { .. });
        assert!(expected && error.to_string().contains("snapshot-"), "byte {at}: {error}");
        assert!(load(&whole[..at]).is_err(), "cut at {at}");
    }
    assert!(load(&[&whole[..], b"x"].concat()).is_err(), "longer");
    assert_eq!(load(&whole).unwrap(), b"the state of the cluster");
}

#[test]
fn another_format_is_refused_by_version() {
    let dir = tempfile::tempdir().unwrap();
    let snapshots = SnapshotDir::open(dir.path(), None).unwrap();
    write(&snapshots, 9, b"state");
    let path = snapshots.path(&snapshot(9, 1));
    let load_as = |version: u32| {
        let mut content = fs::read(&path).unwrap();
        content[8..12].copy_from_slice(&version.to_le_bytes());
        fs::write(&path, content).unwrap();
        snapshots.load(&snapshot(9, 1)).unwrap_err()
    };
    let error = load_as(SNAPSHOT_FORMAT + 1);
    assert!(matches!(error, Error::Newer { found: 3, supported: 2, .. }), "{error}");
    let error = load_as(SNAPSHOT_FORMAT - 1);
    assert!(matches!(error, Error::Older { found: 1, supported: 2, .. }), "{error}");
    assert!(error.to_string().contains("join it again"), "{error}");
}

#[test]
fn snapshot_of_other_index_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let snapshots = SnapshotDir::open(dir.path(), None).unwrap();
    write(&snapshots, 8, b"state");
    fs::rename(snapshots.path(&snapshot(8, 1)), snapshots.path(&snapshot(9, 1))).unwrap();
    let error = snapshots.load(&snapshot(9, 1)).unwrap_err();
    assert!(error.to_string().contains("it is for entry 8 of term 1"), "{error}");
    assert!(snapshots.load_at(9, 1).unwrap_err().to_string().contains("it is for entry 8"));
}

#[test]
fn load_by_index_and_term_returns_metadata() {
    let dir = tempfile::tempdir().unwrap();
    let snapshots = SnapshotDir::open(dir.path(), None).unwrap();
    write(&snapshots, 9, b"state");
    assert_eq!(snapshots.load_at(9, 1).unwrap(), (snapshot(9, 1), b"state".to_vec()));
    let mut other = snapshot(9, 1);
    other.conf_state.learners.push(77);
    assert!(snapshots.load(&other).unwrap_err().to_string().contains("it has different members"));
    assert!(matches!(snapshots.load_at(9, 2), Err(Error::Corrupt { .. })));
}

#[test]
fn failed_write_keeps_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let snapshots = SnapshotDir::open(dir.path(), None).unwrap();
    write(&snapshots, 9, b"good");
    let failed = snapshots.write(&snapshot(9, 1), |out| {
        out.write_all(b"bad")?;
        Err(io::Error::other("the disk is full"))
    });
    assert!(failed.unwrap_err().to_string().contains("the disk is full"));
    assert_eq!(snapshots.load(&snapshot(9, 1)).unwrap(), b"good");
}

#[test]
fn older_files_and_leftovers_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let snapshots = SnapshotDir::open(dir.path(), None).unwrap();
    for index in [3, 7, 9] {
        write(&snapshots, index, b"state");
    }
    fs::write(dir.path().join("snapshot-0000000000000001-0000000000000001.tmp"), "half").unwrap();
    fs::write(dir.path().join("log.redb"), "not ours").unwrap();
    for _ in 0..2 {
        snapshots.remove_older(&snapshot(7, 1)).unwrap();
        assert_eq!(names(dir.path()).len(), 4, "7, 9, the half one and the log");
        assert_eq!(snapshots.load(&snapshot(7, 1)).unwrap(), b"state");
    }
    for _ in 0..2 {
        SnapshotDir::open(dir.path(), Some(&snapshot(7, 1))).unwrap();
        assert_eq!(names(dir.path()), ["log.redb", "snapshot-0000000000000001-0000000000000007"]);
    }
}

#[test]
fn missing_file_error_names_recovery() {
    let dir = tempfile::tempdir().unwrap();
    let error = SnapshotDir::open(dir.path(), None).unwrap().load(&snapshot(1, 1)).unwrap_err();
    assert!(error.to_string().contains("it is missing. Check the disk; then restore a backup"), "{error}");
}
