//! The data directory: single process, supported version, writable path.

use std::{fs, os::unix::fs::PermissionsExt};

use warren_log::{DATA_DIR_VERSION, DataDir, Error};

#[test]
fn directory_is_locked_once_until_release() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("warren/data");
    for _ in 0..2 {
        let held = DataDir::open(&path).unwrap();
        assert_eq!(held.path(), path);
        let error = DataDir::open(&path).unwrap_err();
        let pid = std::process::id();
        assert!(matches!(error, Error::InUse { pid: Some(found), .. } if found == pid), "{error}");
        assert!(error.to_string().contains(&format!("process {pid}")), "{error}");
    }
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    let version = fs::read_to_string(path.join("version")).unwrap();
    assert_eq!(version, format!("{DATA_DIR_VERSION}\n"));
}

#[test]
fn a_later_version_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("version"), format!("{}\n", DATA_DIR_VERSION + 1)).unwrap();
    let error = DataDir::open(dir.path()).unwrap_err();
    assert!(matches!(error, Error::Newer { found: 2, supported: 1, .. }), "{error}");
    assert!(error.to_string().contains("version 2"), "{error}");
}

#[test]
fn a_damaged_version_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("version"), "one").unwrap();
    let error = DataDir::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("`one` is not a version"), "{error}");
}

#[test]
fn read_only_directory_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    // Not even root can create a directory under a file or in sysfs.
    for path in [file.join("data"), "/sys/kernel/warren-test".into()] {
        let error = DataDir::open(&path).unwrap_err();
        assert!(matches!(error, Error::NotWritable { .. }), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
}
