//! On-disk engines: the suite, one engine per directory, damage, versions, locks.

use std::{fs, path::Path};

use redb::{Database, TableDefinition, WriteTransaction};
use warren_log::{
    Error, LOG_FORMAT, LogEngine, LogOwner, LogStore, RedbLog, SledLog, WriteBatch, WriteStats,
};
use warren_types::{ClusterId, Id, ManagerId};

use crate::{OWNER, entries, entry, hard_state, open, suite::suite};

const ENTRIES: TableDefinition<u64, &[u8]> = TableDefinition::new("entries");
const META: TableDefinition<&str, &[u8]> = TableDefinition::new("meta");

fn engine_passes_the_suite(engine: LogEngine) {
    let dir = tempfile::tempdir().unwrap();
    let mut stores = 0;
    suite(|| {
        stores += 1;
        let dir = dir.path().join(stores.to_string());
        fs::create_dir(&dir).unwrap();
        Box::new(move || open(&dir, engine).unwrap())
    });
}

#[test]
fn redb_passes_the_suite() {
    engine_passes_the_suite(LogEngine::Redb);
}

#[test]
fn sled_passes_the_suite() {
    engine_passes_the_suite(LogEngine::Sled);
}

#[test]
fn engine_name_round_trips() {
    for engine in LogEngine::ALL {
        assert_eq!(engine.to_string().parse(), Ok(engine));
    }
    let unknown = "rocksdb".parse::<LogEngine>().unwrap_err();
    assert_eq!(unknown.to_string(), "unknown log engine `rocksdb`: use redb or sled");
}

#[test]
fn directory_with_log_of_other_engine_is_rejected() {
    for (wrote, other) in [(LogEngine::Redb, LogEngine::Sled), (LogEngine::Sled, LogEngine::Redb)] {
        let dir = tempfile::tempdir().unwrap();
        three_entries(dir.path(), wrote);
        for _ in 0..2 {
            let Err(error) = open(dir.path(), other) else { panic!("{other} opened a log of {wrote}") };
            assert!(matches!(error, Error::OtherEngine { .. }), "{error}");
            let text = format!("was written by {wrote}, but the log engine is set to {other}");
            assert!(error.to_string().contains(&text), "{error}");
            assert_eq!(open(dir.path(), wrote).unwrap().load().unwrap().entries, entries(1..=3, 1));
        }
    }
}

/// A log of three entries, closed.
fn three_entries(dir: &Path, engine: LogEngine) {
    let mut log = open(dir, engine).unwrap();
    let batch = WriteBatch {
        entries: entries(1..=3, 1),
        hard_state: Some(hard_state(1, 1, 3)),
        ..WriteBatch::default()
    };
    log.append(&batch).unwrap();
}

/// Changes a closed redb file directly, with valid redb checksums.
fn tamper(dir: &Path, change: impl FnOnce(&WriteTransaction)) {
    let db = Database::open(dir.join("raft.redb")).unwrap();
    let transaction = db.begin_write().unwrap();
    change(&transaction);
    transaction.commit().unwrap();
}

fn refused(dir: &Path, engine: LogEngine) -> Error {
    match open(dir, engine).and_then(|log| log.load()) {
        Ok(loaded) => panic!("opened: {loaded:?}"),
        Err(error) => error,
    }
}

/// The error text after `change`; it has the file and the remedy.
fn refused_after(change: impl FnOnce(&WriteTransaction)) -> String {
    let dir = tempfile::tempdir().unwrap();
    three_entries(dir.path(), LogEngine::Redb);
    tamper(dir.path(), change);
    let error = refused(dir.path(), LogEngine::Redb);
    let text = error.to_string();
    assert!(matches!(error, Error::Corrupt { .. }), "{text}");
    assert!(text.contains("raft.redb") && text.contains("restore a backup"), "{text}");
    text
}

fn value(transaction: &WriteTransaction, index: u64) -> Vec<u8> {
    let table = transaction.open_table(ENTRIES).unwrap();
    let value = redb::ReadableTable::get(&table, index).unwrap().unwrap();
    value.value().to_vec()
}

#[test]
fn damaged_entry_is_named() {
    let text = refused_after(|transaction| {
        let mut value = value(transaction, 2);
        *value.last_mut().unwrap() ^= 1;
        transaction.open_table(ENTRIES).unwrap().insert(2, value.as_slice()).unwrap();
    });
    assert!(text.contains("entry 2: its checksum"), "{text}");
}

#[test]
fn entry_under_wrong_index_is_detected() {
    let text = refused_after(|transaction| {
        let value = value(transaction, 1);
        transaction.open_table(ENTRIES).unwrap().insert(2, value.as_slice()).unwrap();
    });
    assert!(text.contains("entry 2"), "{text}");
}

#[test]
fn missing_entries_are_detected() {
    for missing in 1..=3 {
        let text = refused_after(|transaction| {
            transaction.open_table(ENTRIES).unwrap().remove(missing).unwrap();
        });
        assert!(text.contains(&format!("entry {missing} is missing")), "{text}");
    }
}

#[test]
fn stale_entry_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    three_entries(dir.path(), LogEngine::Redb);
    let mut old = Vec::new();
    tamper(dir.path(), |transaction| old = value(transaction, 3));
    let newer = WriteBatch { entries: entries(3..=3, 2), ..WriteBatch::default() };
    open(dir.path(), LogEngine::Redb).unwrap().append(&newer).unwrap();
    tamper(dir.path(), |transaction| {
        transaction.open_table(ENTRIES).unwrap().insert(3, old.as_slice()).unwrap();
    });
    let error = refused(dir.path(), LogEngine::Redb);
    assert!(error.to_string().contains("is not the last written version"), "{error}");
}

#[test]
fn a_damaged_or_missing_head_is_named() {
    let text = refused_after(|transaction| {
        transaction.open_table(META).unwrap().insert("head", &[0; 100][..]).unwrap();
    });
    assert!(text.contains("`head` does not match"), "{text}");
    let text = refused_after(|transaction| {
        transaction.open_table(META).unwrap().remove("head").unwrap();
    });
    assert!(text.contains("`head` is missing"), "{text}");
}

#[test]
fn another_format_is_refused() {
    let as_version = |version: u32| {
        let dir = tempfile::tempdir().unwrap();
        three_entries(dir.path(), LogEngine::Redb);
        // The first format had no watermark.
        fs::remove_file(dir.path().join("raft.redb.receipt")).unwrap();
        tamper(dir.path(), |transaction| {
            let body = version.to_le_bytes();
            let crc = crc32c::crc32c_append(crc32c::crc32c(b"format"), &body).to_le_bytes();
            let value = [crc, body].concat();
            transaction.open_table(META).unwrap().insert("format", value.as_slice()).unwrap();
        });
        refused(dir.path(), LogEngine::Redb)
    };
    let error = as_version(LOG_FORMAT + 1);
    assert!(matches!(error, Error::Newer { found: 4, supported: 3, .. }), "{error}");
    assert!(error.to_string().contains("raft.redb has format version 4"), "{error}");
    let error = as_version(LOG_FORMAT - 1);
    assert!(matches!(error, Error::Older { found: 2, supported: 3, .. }), "{error}");
    assert!(error.to_string().contains("join it again"), "{error}");
}

#[test]
fn log_of_another_member_is_refused() {
    for engine in LogEngine::ALL {
        let dir = tempfile::tempdir().unwrap();
        three_entries(dir.path(), engine);
        let LogOwner { cluster, manager, member } = OWNER;
        let (other_cluster, other_manager) = (ClusterId(Id(8)), ManagerId(Id(9)));
        for owner in [
            LogOwner { cluster: other_cluster, ..OWNER },
            LogOwner { manager: other_manager, ..OWNER },
            LogOwner { member: member + 1, ..OWNER },
        ] {
            let error = warren_log::open(dir.path(), engine, owner).err().unwrap();
            assert!(matches!(error, Error::OtherOwner { found, .. } if found == OWNER), "{error}");
            let text = format!(
                "raft.{engine} is the log of member {member} of cluster {cluster} (manager {manager})"
            );
            assert!(error.to_string().contains(&text), "{error}");
        }
        // Another member's log is rejected even without its watermark.
        fs::remove_file(dir.path().join(format!("raft.{engine}.receipt"))).unwrap();
        let owner = LogOwner { member: member + 1, ..OWNER };
        let error = warren_log::open(dir.path(), engine, owner).err().unwrap();
        assert!(matches!(error, Error::OtherOwner { .. }), "{error}");
    }
}

#[test]
fn log_without_an_owner_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    three_entries(dir.path(), LogEngine::Redb);
    tamper(dir.path(), |transaction| {
        transaction.open_table(META).unwrap().remove("owner").unwrap();
    });
    let error = refused(dir.path(), LogEngine::Redb);
    assert!(error.to_string().contains("its record `owner` is missing"), "{error}");
}

#[test]
fn state_older_than_acknowledged_is_rejected() {
    for engine in LogEngine::ALL {
        let dir = tempfile::tempdir().unwrap();
        three_entries(dir.path(), engine);
        let old = tempfile::tempdir().unwrap();
        copy(dir.path(), old.path());
        let mut log = open(dir.path(), engine).unwrap();
        for index in 4..=7 {
            log.append(&one_entry(index)).unwrap();
        }
        drop(log);
        // An older log with the current watermark.
        let receipt = format!("raft.{engine}.receipt");
        fs::copy(dir.path().join(&receipt), old.path().join(&receipt)).unwrap();
        // Every attempt fails.
        for _ in 0..6 {
            let error = refused(old.path(), engine);
            let text = "it ends with write 1, but write 5 was acknowledged";
            assert!(error.to_string().contains(text), "{error}");
            assert!(error.to_string().contains(&format!("raft.{engine}")), "{error}");
        }
    }
}

/// A log without its format record is not treated as new.
#[test]
fn log_without_format_record_is_not_recreated() {
    let dir = tempfile::tempdir().unwrap();
    three_entries(dir.path(), LogEngine::Redb);
    let mut format = Vec::new();
    tamper(dir.path(), |transaction| {
        let mut table = transaction.open_table(META).unwrap();
        format = table.remove("format").unwrap().unwrap().value().to_vec();
    });
    for _ in 0..2 {
        let error = refused(dir.path(), LogEngine::Redb);
        assert!(error.to_string().contains("but write 1 was acknowledged"), "{error}");
    }
    tamper(dir.path(), |transaction| {
        transaction.open_table(META).unwrap().insert("format", format.as_slice()).unwrap();
    });
    assert_eq!(open(dir.path(), LogEngine::Redb).unwrap().load().unwrap().entries, entries(1..=3, 1));
}

#[test]
fn lost_log_or_watermark_is_detected() {
    for engine in LogEngine::ALL {
        for lost in ["", ".receipt"] {
            let dir = tempfile::tempdir().unwrap();
            three_entries(dir.path(), engine);
            let lost = dir.path().join(format!("raft.{engine}{lost}"));
            fs::remove_file(&lost).or_else(|_| fs::remove_dir_all(&lost)).unwrap();
            for _ in 0..2 {
                assert!(matches!(refused(dir.path(), engine), Error::Corrupt { .. }));
            }
        }
    }
}

fn one_entry(index: u64) -> WriteBatch {
    WriteBatch { entries: vec![entry(index, 1)], ..WriteBatch::default() }
}

fn copy(from: &Path, to: &Path) {
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        let to = to.join(file.file_name());
        if file.file_type().unwrap().is_dir() {
            fs::create_dir(&to).unwrap();
            copy(&file.path(), &to);
        } else {
            fs::copy(file.path(), to).unwrap();
        }
    }
}

#[test]
fn foreign_file_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("raft.redb"), vec![b'x'; 1 << 20]).unwrap();
    let error = refused(dir.path(), LogEngine::Redb);
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("raft.sled")).unwrap();
    fs::write(dir.path().join("raft.sled/conf"), vec![b'x'; 1 << 10]).unwrap();
    let error = refused(dir.path(), LogEngine::Sled);
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}

#[test]
fn log_is_locked_until_dropped() {
    for engine in LogEngine::ALL {
        let dir = tempfile::tempdir().unwrap();
        three_entries(dir.path(), engine);
        for _ in 0..5 {
            let mut first = open(dir.path(), engine).unwrap();
            assert!(matches!(open(dir.path(), engine).err(), Some(Error::InUse { .. })), "{engine}");
            first.append(&one_entry(4)).unwrap();
            assert_eq!(first.load().unwrap().entries, entries(1..=4, 1));
        }
    }
}

#[test]
fn opening_and_reading_write_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let new = RedbLog::open(dir.path().join("new.redb")).unwrap();
    assert_eq!(new.stats(), WriteStats::default());
    let new = SledLog::open(dir.path().join("new.sled")).unwrap();
    assert_eq!(new.stats(), WriteStats::default());
    for engine in LogEngine::ALL {
        let dir = tempfile::tempdir().unwrap();
        three_entries(dir.path(), engine);
        let log = open(dir.path(), engine).unwrap();
        log.load().unwrap();
        assert_eq!(log.stats(), WriteStats::default());
    }
}
