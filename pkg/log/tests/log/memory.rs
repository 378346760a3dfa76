//! The in-memory disk for tests and simulation: it passes the suite, and crashes as planned.

use warren_log::{CrashPoint, Error, LogStore, MemoryDisk, WriteBatch};

use crate::{entries, hard_state, suite::suite};

#[test]
fn memory_passes_the_suite() {
    suite(|| {
        let disk = MemoryDisk::new();
        Box::new(move || Box::new(disk.open()))
    });
}

#[test]
fn memory_crashes_at_planned_write() {
    for (point, survives) in [(CrashPoint::Before, false), (CrashPoint::After, true)] {
        let disk = MemoryDisk::new();
        let mut log = disk.open();
        log.append(&WriteBatch { entries: entries(1..=1, 1), ..WriteBatch::default() }).unwrap();
        disk.crash_at(2, point);
        log.append(&WriteBatch { hard_state: Some(hard_state(1, 1, 1)), ..WriteBatch::default() }).unwrap();
        let crashed = log.append(&WriteBatch { entries: entries(2..=3, 1), ..WriteBatch::default() });
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
    let disk = MemoryDisk::new();
    let mut log = disk.open();
    log.append(&WriteBatch { entries: entries(1..=2, 1), ..WriteBatch::default() }).unwrap();
    disk.power_off();
    assert!(matches!(log.append(&WriteBatch::default()), Err(Error::Crashed)));
    assert_eq!(disk.open().load().unwrap().entries, entries(1..=2, 1));
}
