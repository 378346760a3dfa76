//! Full and failing disks: a clear error, no acknowledged write is lost, and the same batch succeeds when
//! there is space again.

use std::{fs, path::Path, process::Command, time::Duration};

use warren_testkit::{tool, wait::eventually};

use super::open;
use crate::{
    EntryKind, Error, LogEngine, LogStore, RaftEntry, SnapshotDir, WriteBatch, crash::device::LoopDevice,
};

fn batch(index: u64) -> WriteBatch {
    let data = vec![index as u8; 20_000].into();
    let entries = vec![RaftEntry { index, term: 1, kind: EntryKind::Command, data }];
    WriteBatch { entries, ..WriteBatch::default() }
}

/// Appends until it fails; returns the index that failed, and the error.
fn fill(log: &mut dyn LogStore, from: u64) -> (u64, Error) {
    for index in from..10_000 {
        if let Err(error) = log.append(&batch(index)) {
            return (index, error);
        }
    }
    panic!("200 MB fit on a disk of 16");
}

fn indexes(log: &dyn LogStore) -> Vec<u64> {
    log.load().unwrap().entries.iter().map(|entry| entry.index).collect()
}

/// Frees the space of a file. It is truncated first: a child that another test has just forked may still have it open.
fn remove(file: &Path) {
    fs::write(file, "").unwrap();
    fs::remove_file(file).unwrap();
}

/// Opens a log again, as the raft driver does after an error: it may fail while the disk is full.
fn reopen(dir: &Path, engine: LogEngine, acknowledged: u64) -> Option<Box<dyn LogStore>> {
    match open(dir, engine) {
        Ok(log) => {
            let found = indexes(&*log);
            // The failed write may be present or absent.
            let all = |last: u64| (1..=last).collect::<Vec<_>>();
            assert!(
                found == all(acknowledged) || found == all(acknowledged + 1),
                "{engine}: {} entries, {acknowledged} acknowledged",
                found.len()
            );
            Some(log)
        }
        Err(error) => {
            assert!(error.is_out_of_space(), "{engine}: {error}");
            None
        }
    }
}

#[test]
fn full_disk_fails_writes_until_space_is_free() {
    for engine in LogEngine::ALL {
        let device = LoopDevice::new(16);
        let dir = device.path();
        fs::write(dir.join("filler"), vec![1; 6 << 20]).unwrap();
        let mut log = open(&dir, engine).unwrap();
        let (failed, error) = fill(&mut *log, 1);
        let text = error.to_string();
        assert!(error.is_out_of_space(), "{engine}: {text}");
        assert!(matches!(&error, Error::Full { free, .. } if *free < 2 << 20), "{engine}: {text}");
        assert!(text.contains(&format!("raft.{engine}")) && text.contains("Make room"), "{text}");
        assert!(matches!(log.append(&batch(failed)), Err(Error::AlreadyFailed { .. })), "{engine}");
        assert!(failed > 10, "{engine}: {failed}");
        // Still full, twice: nothing is lost.
        drop(log);
        let mut acknowledged = failed - 1;
        for _ in 0..2 {
            if let Some(mut log) = reopen(&dir, engine, acknowledged) {
                let again = log.append(&batch(failed));
                assert!(again.is_ok() || again.as_ref().is_err_and(Error::is_out_of_space), "{again:?}");
                acknowledged += u64::from(again.is_ok() && acknowledged < failed);
            }
        }
        remove(&dir.join("filler"));
        let mut log = reopen(&dir, engine, acknowledged).unwrap();
        for _ in 0..2 {
            log.append(&batch(failed)).unwrap();
        }
        log.append(&batch(failed + 1)).unwrap();
        drop(log);
        assert_eq!(indexes(&*open(&dir, engine).unwrap()), (1..=failed + 1).collect::<Vec<_>>());
    }
}

#[test]
fn log_creation_on_full_disk_can_be_retried() {
    for engine in LogEngine::ALL {
        let device = LoopDevice::new(16);
        let dir = device.path();
        let filler = dir.join("filler");
        let mut size = 16 << 20;
        let mut content = Vec::new();
        while size >= 4096 {
            content.extend(vec![1; size]);
            if fs::write(&filler, &content).is_err() {
                content.truncate(content.len() - size);
                size /= 2;
            }
        }
        fs::write(&filler, &content).unwrap();
        for _ in 0..2 {
            let error = open(&dir, engine).err().unwrap();
            assert!(error.is_out_of_space(), "{engine}: {error}");
        }
        let snapshots = SnapshotDir::open(dir.join("snapshots"), None);
        assert!(snapshots.is_err_and(|error| error.is_out_of_space()) || size > 0);
        remove(&filler);
        open(&dir, engine).unwrap().append(&batch(1)).unwrap();
        assert_eq!(indexes(&*open(&dir, engine).unwrap()), [1]);
    }
}

#[test]
fn read_only_disk_fails_writes_until_writable() {
    for engine in LogEngine::ALL {
        let device = LoopDevice::new(16);
        let dir = device.path();
        let mut log = open(&dir, engine).unwrap();
        log.append(&batch(1)).unwrap();
        drop(log);
        // The disk is busy while a child that another test has just forked has a file open for writing.
        let remount = |how: &str| {
            eventually(Duration::from_secs(60), how, || {
                let mut command = Command::new("mount");
                command.args(["-o", how]).arg(&dir);
                tool::stdout(command, tool::DEADLINE).map_err(|error| error.to_string())
            })
        };
        remount("remount,ro");
        for _ in 0..2 {
            let error = open(&dir, engine).err().unwrap();
            assert!(error.to_string().contains("Read-only file system"), "{engine}: {error}");
            assert!(!error.is_out_of_space());
        }
        remount("remount,rw");
        let mut log = open(&dir, engine).unwrap();
        assert_eq!(indexes(&*log), [1]);
        log.append(&batch(2)).unwrap();
    }
}
