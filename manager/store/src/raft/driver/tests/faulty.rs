//! A log with injected faults: it works, is slow, is full, or has another content.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use warren_log::{
    Error, LogStore, MemoryDisk, MemoryLog, Result, SnapshotMeta, StoredLog, WriteBatch, WriteStats,
};

/// The result of the next writes and reopens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFault {
    None,
    /// Every write takes this long.
    Slow(Duration),
    /// Writes fail, reopening works.
    Full,
    /// Writes and reopening fail.
    Unavailable,
    /// Writes are applied but return an error; reopening fails.
    FailAfterWrite,
    /// Reopening finds damage, and writes fail.
    Damaged,
}

/// A faulty disk. Clones are handles to the same disk.
#[derive(Clone)]
pub struct FaultyDisk {
    pub disk: MemoryDisk,
    fault: Arc<Mutex<DiskFault>>,
    openings: Arc<Mutex<usize>>,
}

impl FaultyDisk {
    pub fn new(disk: MemoryDisk) -> Self {
        Self { disk, fault: Arc::new(Mutex::new(DiskFault::None)), openings: Arc::default() }
    }

    pub fn set_fault(&self, fault: DiskFault) {
        *self.fault.lock().unwrap() = fault;
    }

    /// Number of attempts to open it.
    pub fn openings(&self) -> usize {
        *self.openings.lock().unwrap()
    }

    /// What is on the disk now, for when nobody has it open any more.
    pub fn loaded(&self) -> StoredLog {
        self.disk.open().load().unwrap()
    }

    fn fault(&self) -> DiskFault {
        *self.fault.lock().unwrap()
    }

    pub fn open(&self) -> Result<Box<dyn LogStore>> {
        *self.openings.lock().unwrap() += 1;
        match self.fault() {
            DiskFault::Unavailable | DiskFault::FailAfterWrite => Err(full()),
            DiskFault::Damaged => {
                Err(Error::Corrupt { path: "/disk/raft".into(), what: "half of it".into() })
            }
            _ => Ok(Box::new(FaultyLog { log: self.disk.open(), disk: self.clone(), failed: false })),
        }
    }
}

fn full() -> Error {
    let source = std::io::ErrorKind::StorageFull.into();
    Error::Full { operation: "append to", path: "/disk/raft".into(), free: 0, source }
}

struct FaultyLog {
    log: MemoryLog,
    disk: FaultyDisk,
    failed: bool,
}

impl FaultyLog {
    fn write(&mut self, write: impl FnOnce(&mut MemoryLog) -> Result<()>) -> Result<()> {
        assert!(!self.failed, "a log that failed is not used again");
        match self.disk.fault() {
            DiskFault::None => return write(&mut self.log),
            DiskFault::Slow(time) => {
                // Not a wait: simulates a slow disk.
                std::thread::sleep(time);
                return write(&mut self.log);
            }
            DiskFault::FailAfterWrite => write(&mut self.log)?,
            DiskFault::Full | DiskFault::Unavailable | DiskFault::Damaged => {}
        }
        self.failed = true;
        Err(full())
    }
}

impl LogStore for FaultyLog {
    fn load(&self) -> Result<StoredLog> {
        self.log.load()
    }

    fn append(&mut self, batch: &WriteBatch) -> Result<()> {
        self.write(|log| log.append(batch))
    }

    fn set_snapshot(&mut self, snapshot: &SnapshotMeta) -> Result<()> {
        self.write(|log| log.set_snapshot(snapshot))
    }

    fn compact(&mut self, up_to: u64) -> Result<()> {
        self.write(|log| log.compact(up_to))
    }

    fn stats(&self) -> WriteStats {
        self.log.stats()
    }
}
