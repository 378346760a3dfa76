//! A disk for redb that remembers what was asked of it, and what may be on it when the power goes.

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
    Recovered, Result,
    redb_table::{RedbTable, create},
    table::{Change, Table},
};

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

#[derive(Debug, Clone)]
pub enum Operation {
    Write(u64, Vec<u8>),
    Grow(u64),
    Shrink(u64),
    Sync,
}

/// What was on the disk, and what was asked of it, in order.
#[derive(Debug, Clone, Default)]
pub struct History {
    pub image: Vec<u8>,
    pub operations: Vec<Operation>,
}

/// A history that is being made. Clones are handles to the same one.
#[derive(Debug, Clone, Default)]
pub struct Recording(Arc<Mutex<History>>);

impl Recording {
    pub fn history(&self) -> History {
        self.0.lock().unwrap().clone()
    }

    /// The number of operations so far.
    pub fn len(&self) -> usize {
        self.0.lock().unwrap().operations.len()
    }

    /// Makes the tables that this thread opens next record here.
    pub fn start(&self) {
        CURRENT.with(|current| *current.borrow_mut() = self.clone());
    }
}

thread_local! {
    static CURRENT: RefCell<Recording> = RefCell::default();
}

/// The engine over a file, recording. With `HONEST` off, the file is never synced, though the engine
/// is told so.
pub struct Recorded<const HONEST: bool>(RedbTable);

impl<const HONEST: bool> Table for Recorded<HONEST> {
    const RECEIPT_IS_DURABLE: bool = false;

    fn open(path: &Path) -> Result<(Self, Option<Recovered>)> {
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

    fn commit(&mut self, operation: &'static str, change: &Change) -> Result<()> {
        self.0.commit(operation, change)
    }
}

#[derive(Debug)]
struct Backend {
    file: File,
    recording: Recording,
    is_honest: bool,
}

impl Backend {
    fn record(&self, operation: Operation) {
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
        self.record(if is_growth { Operation::Grow(len) } else { Operation::Shrink(len) });
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.is_honest {
            self.record(Operation::Sync);
            self.file.sync_data()?;
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.record(Operation::Write(offset, data.to_vec()));
        self.file.write_all_at(data, offset)
    }
}

impl History {
    /// What may be on the disk if the power goes after the first `at` operations: all up to the last
    /// sync, and of the rest any part in any order.
    pub fn survivors(&self, at: usize, chance: &mut StdRng) -> Vec<u8> {
        let mut image = self.image.clone();
        let operations = &self.operations[..at];
        let synced = operations.iter().rposition(|operation| matches!(operation, Operation::Sync));
        let (durable, pending) = operations.split_at(synced.map_or(0, |at| at + 1));
        for operation in durable {
            apply(&mut image, operation, |_| true);
        }
        let mut pending: Vec<&Operation> = pending.iter().collect();
        match chance.random_range(0..4) {
            // A prefix.
            0 => pending.truncate(chance.random_range(0..=pending.len())),
            // All in order; what is torn below is torn.
            1 => {}
            _ => pending.shuffle(chance),
        }
        // Of everything little, about half, nearly all, or all.
        let share = [0.1, 0.5, 0.95, 1.0][chance.random_range(0..4)];
        for operation in pending {
            if matches!(operation, Operation::Write(..)) || chance.random_bool(share) {
                apply(&mut image, operation, |_| chance.random_bool(share));
            }
        }
        image
    }
}

/// Sectors of a write for which `keep` says no stay as they were. What lies beyond the end of the
/// file is not reached: growing it is an operation of its own.
fn apply(image: &mut Vec<u8>, operation: &Operation, mut keep: impl FnMut(usize) -> bool) {
    match operation {
        Operation::Sync => {}
        Operation::Grow(len) | Operation::Shrink(len) => image.resize(*len as usize, 0),
        Operation::Write(offset, data) => {
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
