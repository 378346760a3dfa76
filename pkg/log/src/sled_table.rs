//! sled 0.34, stored as a directory: selectable, but not the default. The adapter compensates for gaps of
//! the engine:
//!
//! * `flush` starts the write-back of its pages (`sync_file_range`) but neither makes a grown file's
//!   metadata durable nor flushes the disk's write cache. So every commit ends with an fdatasync of
//!   the engine's data file, on a separate descriptor.
//! * It does not sync the files and names it creates. A new store is created under a temporary name,
//!   synced and renamed.
//! * Pages over 128 KiB go into separate files that are never synced. So values are split into
//!   parts far below that, for any number of parts per page.
//! * After damage it may silently open with an older state. So the watermark is made durable with
//!   every commit (a second fdatasync), and a log that does not reach it is rejected.
//! * It silently rolls back a batch in progress. So its logs never report a recovery.
//! * Its threads may hold the file briefly after the store was dropped. Dropping waits for them.

use std::{
    fs::{self, File, TryLockError},
    io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use sled::{Batch, Config, Db};

use crate::{
    Error, Recovery, Result,
    fsync::{sync_dir, sync_parent, with_suffix},
    table::{RecordTable, TableChange},
};

/// The log is read from memory only, so the engine needs almost no cache.
const CACHE_BYTES: u64 = 16 << 20;

/// Length of the stored parts of a value. A page holds up to about twenty of them.
const PART_BYTES: usize = 4096;

/// How long dropping waits for the engine to release its file.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// Name of the engine's data file.
const DATA_FILE: &str = "db";

/// Suffix of the engine's unfinished files.
const UNFINISHED: &str = "generating";

/// Key prefix of entries.
const ENTRY_PREFIX: u8 = b'e';
/// Key prefix of records.
const RECORD_PREFIX: u8 = b'm';

/// Values in a sled directory.
pub struct SledTable {
    /// Present until the table is dropped.
    db: Option<Db>,
    data: File,
    path: PathBuf,
}

impl SledTable {
    fn db(&self) -> &Db {
        self.db.as_ref().expect("the engine is taken only by drop")
    }

    /// Applies all of `change` atomically; the caller makes it durable.
    pub(crate) fn apply(&self, operation: &'static str, change: &TableChange) -> Result<()> {
        // One tree and one batch: over two trees the engine's batches are not atomic.
        let mut batch = Batch::default();
        let mut remove = |keys: sled::Iter| -> Result<()> {
            for key in keys.keys() {
                batch.remove(key.map_err(|error| self.error(operation, error))?);
            }
            Ok(())
        };
        if let Some(indexes) = &change.remove {
            remove(self.db().range(entry_range(indexes)))?;
        }
        for (name, _) in &change.records {
            remove(self.db().scan_prefix(record_prefix(name)))?;
        }
        for (index, value) in &change.entries {
            put_parts(&mut batch, &entry_prefix(*index), value);
        }
        for (name, value) in &change.records {
            put_parts(&mut batch, &record_prefix(name), value);
        }
        self.db().apply_batch(batch).map_err(|error| self.error(operation, error))?;
        self.db().flush().map_err(|error| self.error(operation, error))?;
        Ok(())
    }

    fn error(&self, operation: &'static str, error: sled::Error) -> Error {
        to_error(&self.path, operation, error)
    }
}

impl RecordTable for SledTable {
    const ACK_WATERMARK_IS_DURABLE: bool = true;

    fn open(path: &Path) -> Result<(Self, Option<Recovery>)> {
        if !path.try_exists().map_err(Error::io("look for", path))? {
            create(path)?;
        }
        ensure_free(path)?;
        remove_unfinished(path)?;
        let db = open_engine(path)?;
        let data = File::open(path.join(DATA_FILE)).map_err(Error::io("open", path))?;
        sync_all(path)?;
        Ok((Self { db: Some(db), data, path: path.into() }, None))
    }

    fn get(&self, name: &'static str) -> Result<Option<Vec<u8>>> {
        let mut value = None;
        for part in self.db().scan_prefix(record_prefix(name)) {
            let (_, part) = part.map_err(|error| self.error("read", error))?;
            value.get_or_insert_with(Vec::new).extend_from_slice(&part);
        }
        Ok(value)
    }

    fn scan(
        &self,
        indexes: RangeInclusive<u64>,
        visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut latest: Option<(u64, Vec<u8>)> = None;
        for row in self.db().range(entry_range(&indexes)) {
            let (key, part) = row.map_err(|error| self.error("read", error))?;
            let index = index_of(&key).ok_or_else(|| Error::Corrupt {
                path: self.path.clone(),
                what: format!("key {key:?} is not an entry key"),
            })?;
            match &mut latest {
                Some((latest, value)) if *latest == index => value.extend_from_slice(&part),
                _ => {
                    if let Some((index, value)) = latest.replace((index, part.to_vec())) {
                        visit(index, &value)?;
                    }
                }
            }
        }
        latest.map_or(Ok(()), |(index, value)| visit(index, &value))
    }

    fn commit(&mut self, operation: &'static str, change: &TableChange) -> Result<()> {
        self.apply(operation, change)?;
        self.data.sync_data().map_err(Error::io(operation, &self.path))
    }
}

impl Drop for SledTable {
    fn drop(&mut self) {
        drop(self.db.take());
        let end = Instant::now() + RELEASE_TIMEOUT;
        while matches!(ensure_free(&self.path), Err(Error::InUse { .. })) && Instant::now() < end {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

fn open_engine(path: &Path) -> Result<Db> {
    Config::new()
        .path(path)
        .cache_capacity(CACHE_BYTES)
        // Every commit flushes; a flush thread would only wake an idle disk.
        .flush_every_ms(None)
        .open()
        .map_err(|error| to_error(path, "open", error))
}

/// Creates an empty store. When this returns, all of it is durable.
fn create(path: &Path) -> Result<()> {
    let temporary = with_suffix(path, ".new");
    match fs::remove_dir_all(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Error::io("remove", &temporary)(error));
        }
        _ => {}
    }
    drop(SledTable {
        db: Some(open_engine(&temporary)?),
        data: File::open(temporary.join(DATA_FILE)).map_err(Error::io("open", &temporary))?,
        path: temporary.clone(),
    });
    sync_all(&temporary)?;
    fs::rename(&temporary, path).map_err(Error::io("rename", &temporary))?;
    sync_parent(path)
}

/// Removes unfinished snapshot files of the engine, left by a kill or a full disk. The engine would read
/// them as finished files and report damage.
fn remove_unfinished(dir: &Path) -> Result<()> {
    for file in fs::read_dir(dir).map_err(Error::io("list", dir))? {
        let path = file.map_err(Error::io("list", dir))?.path();
        if path.extension().is_some_and(|extension| extension == UNFINISHED) {
            fs::remove_file(&path).map_err(Error::io("remove", &path))?;
        }
    }
    Ok(())
}

/// Syncs the files in a directory and their names, recursively.
fn sync_all(dir: &Path) -> Result<()> {
    for file in fs::read_dir(dir).map_err(Error::io("list", dir))? {
        let path = file.map_err(Error::io("list", dir))?.path();
        if path.is_dir() {
            sync_all(&path)?;
        } else {
            File::open(&path).and_then(|file| file.sync_all()).map_err(Error::io("sync", &path))?;
        }
    }
    sync_dir(dir)
}

/// Rejects a store that is open elsewhere. The engine's own error for it has no kind.
fn ensure_free(path: &Path) -> Result<()> {
    let data = path.join(DATA_FILE);
    let file = match File::open(&data) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file.map_err(Error::io("open", &data))?,
    };
    match file.try_lock() {
        // Closing it is not enough: a child process between fork and exec has it open as well.
        Ok(()) => file.unlock().map_err(Error::io("unlock", &data)),
        Err(TryLockError::WouldBlock) => Err(Error::InUse { path: path.into(), pid: None }),
        Err(TryLockError::Error(error)) => Err(Error::io("lock", &data)(error)),
    }
}

fn entry_prefix(index: u64) -> [u8; 9] {
    let mut key = [ENTRY_PREFIX; 9];
    key[1..].copy_from_slice(&index.to_be_bytes());
    key
}

fn record_prefix(name: &str) -> Vec<u8> {
    // The terminator prevents a name from being a prefix of another.
    [&[RECORD_PREFIX], name.as_bytes(), &[0]].concat()
}

/// The keys of all parts of all entries of a range.
fn entry_range(indexes: &RangeInclusive<u64>) -> std::ops::Range<Vec<u8>> {
    let end = indexes.end().checked_add(1).map_or(vec![ENTRY_PREFIX + 1], |end| entry_prefix(end).to_vec());
    entry_prefix(*indexes.start()).to_vec()..end
}

/// The index in the key of an entry part.
fn index_of(key: &[u8]) -> Option<u64> {
    let (index, _part) = key.strip_prefix(&[ENTRY_PREFIX])?.split_first_chunk()?;
    Some(u64::from_be_bytes(*index))
}

fn put_parts(batch: &mut Batch, prefix: &[u8], value: &[u8]) {
    for (part, bytes) in (0u32..).zip(value.chunks(PART_BYTES)) {
        batch.insert([prefix, &part.to_be_bytes()].concat(), bytes);
    }
}

fn to_error(path: &Path, operation: &'static str, error: sled::Error) -> Error {
    let path = path.to_owned();
    match error {
        sled::Error::Corruption { at, .. } => {
            let position = at.map_or(String::new(), |at| format!(" at {at}"));
            Error::Corrupt { path, what: format!("its engine found a bad checksum{position}") }
        }
        // The engine returns this for settings it did not write.
        sled::Error::Unsupported(what) => Error::Corrupt { path, what },
        sled::Error::Io(source)
            if matches!(source.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
        {
            Error::Corrupt { path, what: source.to_string() }
        }
        sled::Error::Io(source) => Error::io(operation, path)(source),
        error => Error::Engine { operation, path, source: Box::new(error) },
    }
}
