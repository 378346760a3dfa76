//! A disk for redb that records its operations, and derives its possible content after a power cut.

use std::{
    cell::RefCell,
    fs::{self, File},
    io,
    ops::RangeInclusive,
    os::unix::fs::FileExt,
    path::Path,
    sync::{Arc, Mutex},
};

use rand::{RngExt, rngs::StdRng, seq::SliceRandom};
use redb::StorageBackend;

use crate::{
    Recovery, Result,
    redb_table::{RedbTable, create},
    table::{RecordTable, TableChange},
};

/// Unit of atomic disk writes.
const SECTOR: usize = 512;

#[derive(Debug, Clone)]
pub enum DiskOperation {
    Write(u64, Vec<u8>),
    Grow(u64),
    Shrink(u64),
    Sync,
}

/// Initial content of the disk, and its operations in order.
#[derive(Debug, Clone, Default)]
pub struct DiskHistory {
    pub image: Vec<u8>,
    pub operations: Vec<DiskOperation>,
}

/// A history in progress. Clones are handles to the same one.
#[derive(Debug, Clone, Default)]
pub struct DiskRecording(Arc<Mutex<DiskHistory>>);

impl DiskRecording {
    pub fn history(&self) -> DiskHistory {
        self.0.lock().unwrap().clone()
    }

    /// The number of operations so far.
    pub fn len(&self) -> usize {
        self.0.lock().unwrap().operations.len()
    }

    /// Records the tables that this thread opens next.
    pub fn start(&self) {
        CURRENT.with(|current| *current.borrow_mut() = self.clone());
    }
}

thread_local! {
    static CURRENT: RefCell<DiskRecording> = RefCell::default();
}

/// The engine over a recorded file. With `HONEST` off, the file is never synced, though syncs report
/// success.
pub struct RecordedTable<const HONEST: bool>(RedbTable);

impl<const HONEST: bool> RecordTable for RecordedTable<HONEST> {
    const ACK_WATERMARK_IS_DURABLE: bool = false;

    fn open(path: &Path) -> Result<(Self, Option<Recovery>)> {
        if !path.exists() {
            create(path)?;
        }
        let recording = CURRENT.with(|current| current.borrow().clone());
        recording.0.lock().unwrap().image = fs::read(path).unwrap();
        let file = File::options().read(true).write(true).open(path).unwrap();
        let backend = Backend { file, recording, is_honest: HONEST };
        let (table, recovered) = RedbTable::open_with(path, |builder| builder.create_with_backend(backend))?;
        Ok((Self(table), recovered))
    }

    fn get(&self, name: &'static str) -> Result<Option<Vec<u8>>> {
        self.0.get(name)
    }

    fn scan(
        &self,
        indexes: RangeInclusive<u64>,
        visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.0.scan(indexes, visit)
    }

    fn commit(&mut self, operation: &'static str, change: &TableChange) -> Result<()> {
        self.0.commit(operation, change)
    }
}

#[derive(Debug)]
struct Backend {
    file: File,
    recording: DiskRecording,
    is_honest: bool,
}

impl Backend {
    fn record(&self, operation: DiskOperation) {
        self.recording.0.lock().unwrap().operations.push(operation);
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let is_growth = len > self.len()?;
        self.record(if is_growth { DiskOperation::Grow(len) } else { DiskOperation::Shrink(len) });
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.is_honest {
            self.record(DiskOperation::Sync);
            self.file.sync_data()?;
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.record(DiskOperation::Write(offset, data.to_vec()));
        self.file.write_all_at(data, offset)
    }
}

impl DiskHistory {
    /// Possible disk content after a power cut following the first `at` operations: all up to the last
    /// sync, and of the rest any part in any order.
    pub fn survivors(&self, at: usize, rng: &mut StdRng) -> Vec<u8> {
        let mut image = self.image.clone();
        let operations = &self.operations[..at];
        let synced = operations.iter().rposition(|operation| matches!(operation, DiskOperation::Sync));
        let (durable, pending) = operations.split_at(synced.map_or(0, |at| at + 1));
        for operation in durable {
            apply(&mut image, operation, |_| true);
        }
        let mut pending: Vec<&DiskOperation> = pending.iter().collect();
        match rng.random_range(0..4) {
            // A prefix.
            0 => pending.truncate(rng.random_range(0..=pending.len())),
            // All in order; sectors may be torn below.
            1 => {}
            _ => pending.shuffle(rng),
        }
        // Keep few, about half, nearly all, or all.
        let share = [0.1, 0.5, 0.95, 1.0][rng.random_range(0..4)];
        for operation in pending {
            if matches!(operation, DiskOperation::Write(..)) || rng.random_bool(share) {
                apply(&mut image, operation, |_| rng.random_bool(share));
            }
        }
        image
    }
}

/// Sectors of a write that `keep` rejects stay unchanged. Sectors beyond the end of the file are not
/// written: growing it is a separate operation.
fn apply(image: &mut Vec<u8>, operation: &DiskOperation, mut keep: impl FnMut(usize) -> bool) {
    match operation {
        DiskOperation::Sync => {}
        DiskOperation::Grow(len) | DiskOperation::Shrink(len) => image.resize(*len as usize, 0),
        DiskOperation::Write(offset, data) => {
            let mut start = *offset as usize;
            let end = (start + data.len()).min(image.len());
            while start < end {
                let stop = ((start / SECTOR + 1) * SECTOR).min(end);
                if keep(start) {
                    let from = start - *offset as usize;
                    image[start..stop].copy_from_slice(&data[from..from + stop - start]);
                }
                start = stop;
            }
        }
    }
}
