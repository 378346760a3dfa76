//! A log that does as it is told: works, is slow, is full, or is not the log it was.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use warren_log::{Batch, Disk, Error, Loaded, LogStore, MemoryLog, Result, SnapshotMeta, Stats};

/// What happens to the next writes and openings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    Works,
    /// Every write takes so long.
    Slow(Duration),
    /// Nothing can be written, and opening works.
    Full,
    /// Nothing can be written or opened.
    Shut,
    /// Writes are done and then fail; nothing can be opened.
    ShutAfterwards,
    /// Opening it finds damage, and it cannot be written.
    Damaged,
}

/// A disk with a mood. Clones are handles to the same one.
#[derive(Clone)]
pub struct Faulty {
    pub disk: Disk,
    mood: Arc<Mutex<Mood>>,
    openings: Arc<Mutex<usize>>,
}

impl Faulty {
    pub fn new(disk: Disk) -> Self {
        Self { disk, mood: Arc::new(Mutex::new(Mood::Works)), openings: Arc::default() }
    }

    pub fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    /// How often it was opened or tried to be.
    pub fn openings(&self) -> usize {
        *self.openings.lock().unwrap()
    }

    /// What is on the disk now, for when nobody has it open any more.
    pub fn loaded(&self) -> Loaded {
        self.disk.open().load().unwrap()
    }

    fn mood(&self) -> Mood {
        *self.mood.lock().unwrap()
    }

    pub fn open(&self) -> Result<Box<dyn LogStore>> {
        *self.openings.lock().unwrap() += 1;
        match self.mood() {
            Mood::Shut | Mood::ShutAfterwards => Err(full()),
            Mood::Damaged => Err(Error::Corrupt { path: "/disk/raft".into(), what: "half of it".into() }),
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
    disk: Faulty,
    failed: bool,
}

impl FaultyLog {
    fn write(&mut self, write: impl FnOnce(&mut MemoryLog) -> Result<()>) -> Result<()> {
        assert!(!self.failed, "a log that failed is not used again");
        match self.disk.mood() {
            Mood::Works => return write(&mut self.log),
            Mood::Slow(time) => {
                // Not a wait: this is what a slow disk does.
                std::thread::sleep(time);
                return write(&mut self.log);
            }
            Mood::ShutAfterwards => write(&mut self.log)?,
            Mood::Full | Mood::Shut | Mood::Damaged => {}
        }
        self.failed = true;
        Err(full())
    }
}

impl LogStore for FaultyLog {
    fn load(&self) -> Result<Loaded> {
        self.log.load()
    }

    fn append(&mut self, batch: &Batch) -> Result<()> {
        self.write(|log| log.append(batch))
    }

    fn set_snapshot(&mut self, snapshot: &SnapshotMeta) -> Result<()> {
        self.write(|log| log.set_snapshot(snapshot))
    }

    fn compact(&mut self, up_to: u64) -> Result<()> {
        self.write(|log| log.compact(up_to))
    }

    fn stats(&self) -> Stats {
        self.log.stats()
    }
}
