//! Both engines pass the suite; what only one of them can show comes after.

use std::{cell::Cell, path::Path};

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use warren_log::{Batch, CrashPoint, Disk, Error, LOG_FORMAT, LogStore, RedbLog};

use crate::{entries, entry, hard_state, suite::suite};

const ENTRIES: TableDefinition<u64, &[u8]> = TableDefinition::new("entries");
const META: TableDefinition<&str, &[u8]> = TableDefinition::new("meta");

#[test]
fn redb_passes_the_suite() {
    let dir = tempfile::tempdir().unwrap();
    let stores = Cell::new(0);
    suite(|| {
        stores.set(stores.get() + 1);
        let path = dir.path().join(format!("{}.redb", stores.get()));
        Box::new(move || Box::new(RedbLog::open(&path).unwrap()))
    });
}

#[test]
fn memory_passes_the_suite() {
    suite(|| {
        let disk = Disk::new();
        Box::new(move || Box::new(disk.open()))
    });
}

#[test]
fn memory_crashes_where_it_is_told() {
    for (point, survives) in [(CrashPoint::Before, false), (CrashPoint::After, true)] {
        let disk = Disk::new();
        let mut log = disk.open();
        log.append(&Batch { entries: entries(1..=1, 1), ..Batch::default() }).unwrap();
        disk.crash_at(2, point);
        log.append(&Batch { hard_state: Some(hard_state(1, 1, 1)), ..Batch::default() }).unwrap();
        let crashed = log.append(&Batch { entries: entries(2..=3, 1), ..Batch::default() });
        assert!(matches!(crashed, Err(Error::Crashed)));
        assert!(matches!(log.load(), Err(Error::Crashed)), "no reading without power");
        let reopened = disk.open();
        let loaded = reopened.load().unwrap();
        assert_eq!(loaded.hard_state, hard_state(1, 1, 1));
        assert_eq!(loaded.entries.len(), if survives { 3 } else { 1 });
        assert!(matches!(log.compact(0), Err(Error::Crashed)), "the old writer is shut out");
        assert_eq!(disk.durable_writes(), 3);
    }
}

#[test]
fn memory_loses_power_between_writes() {
    let disk = Disk::new();
    let mut log = disk.open();
    log.append(&Batch { entries: entries(1..=2, 1), ..Batch::default() }).unwrap();
    disk.power_off();
    assert!(matches!(log.append(&Batch::default()), Err(Error::Crashed)));
    assert_eq!(disk.open().load().unwrap().entries, entries(1..=2, 1));
}

/// A log of three entries in a closed file.
fn three_entries(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("log.redb");
    let mut log = RedbLog::open(&path).unwrap();
    let batch =
        Batch { entries: entries(1..=3, 1), hard_state: Some(hard_state(1, 1, 3)), ..Batch::default() };
    log.append(&batch).unwrap();
    path
}

/// Changes the closed file behind the log's back.
fn tamper(path: &Path, change: impl FnOnce(&redb::WriteTransaction)) {
    let db = Database::open(path).unwrap();
    let transaction = db.begin_write().unwrap();
    change(&transaction);
    transaction.commit().unwrap();
}

#[test]
fn redb_names_the_damaged_entry() {
    let dir = tempfile::tempdir().unwrap();
    let path = three_entries(dir.path());
    tamper(&path, |transaction| {
        let mut table = transaction.open_table(ENTRIES).unwrap();
        let mut value = table.get(2).unwrap().unwrap().value().to_vec();
        *value.last_mut().unwrap() ^= 1;
        table.insert(2, value.as_slice()).unwrap();
    });
    let error = RedbLog::open(&path).unwrap().load().unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Corrupt { .. }), "{text}");
    assert!(text.contains("log.redb") && text.contains("entry 2"), "{text}");
}

#[test]
fn redb_notices_an_entry_under_another_index() {
    let dir = tempfile::tempdir().unwrap();
    let path = three_entries(dir.path());
    tamper(&path, |transaction| {
        let mut table = transaction.open_table(ENTRIES).unwrap();
        let value = table.get(1).unwrap().unwrap().value().to_vec();
        table.insert(2, value.as_slice()).unwrap();
    });
    let error = RedbLog::open(&path).unwrap().load().unwrap_err();
    assert!(error.to_string().contains("entry 2"), "{error}");
}

#[test]
fn redb_notices_missing_entries() {
    for missing in [1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let path = three_entries(dir.path());
        tamper(&path, |transaction| {
            transaction.open_table(ENTRIES).unwrap().remove(missing).unwrap();
        });
        let error = RedbLog::open(&path).unwrap().load().unwrap_err();
        assert!(error.to_string().contains(&format!("entry {missing} is missing")), "{error}");
    }
}

#[test]
fn redb_names_the_damaged_hard_state() {
    let dir = tempfile::tempdir().unwrap();
    let path = three_entries(dir.path());
    tamper(&path, |transaction| {
        transaction.open_table(META).unwrap().insert("hard_state", &[0; 28][..]).unwrap();
    });
    let error = RedbLog::open(&path).unwrap().load().unwrap_err();
    assert!(error.to_string().contains("hard_state"), "{error}");
}

#[test]
fn redb_refuses_a_later_format() {
    let dir = tempfile::tempdir().unwrap();
    let path = three_entries(dir.path());
    tamper(&path, |transaction| {
        let body = (LOG_FORMAT + 1).to_le_bytes();
        let crc = crc32c::crc32c_append(crc32c::crc32c(b"format"), &body).to_le_bytes();
        let value = [crc, body].concat();
        transaction.open_table(META).unwrap().insert("format", value.as_slice()).unwrap();
    });
    let Err(error) = RedbLog::open(&path) else { panic!("opened a later format") };
    let text = error.to_string();
    assert!(matches!(error, Error::Newer { found: 2, supported: 1, .. }), "{text}");
    assert!(text.contains("log.redb") && text.contains("version 2"), "{text}");
}

#[test]
fn redb_refuses_what_is_no_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log.redb");
    std::fs::write(&path, vec![b'x'; 1 << 20]).unwrap();
    let error = RedbLog::open(&path).err().map(|error| error.to_string());
    assert!(error.as_ref().is_some_and(|text| text.contains("is damaged")), "{error:?}");
}

#[test]
fn redb_is_opened_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = three_entries(dir.path());
    let first = RedbLog::open(&path).unwrap();
    assert!(matches!(RedbLog::open(&path), Err(Error::InUse { .. })));
    assert_eq!(first.load().unwrap().entries[2], entry(3, 1));
}

#[test]
fn opening_and_reading_write_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let new = RedbLog::open(dir.path().join("new.redb")).unwrap();
    assert_eq!(new.stats(), warren_log::Stats::default());
    let log = RedbLog::open(three_entries(dir.path())).unwrap();
    log.load().unwrap();
    assert_eq!(log.stats(), warren_log::Stats::default());
}

/// The bytes of format 1, so that a change of the encoding is noticed.
#[test]
fn format_1_is_fixed() {
    let dir = tempfile::tempdir().unwrap();
    let path = three_entries(dir.path());
    let db = Database::open(&path).unwrap();
    let read = db.begin_read().unwrap();
    let value = read.open_table(ENTRIES).unwrap().get(3).unwrap().unwrap().value().to_vec();
    let body = b"\x01\x01\0\0\0\0\0\0\x003@1";
    assert_eq!(&value[4..], body);
    let crc = crc32c::crc32c_append(crc32c::crc32c(&3u64.to_le_bytes()), body);
    assert_eq!(value[..4], crc.to_le_bytes());
}
