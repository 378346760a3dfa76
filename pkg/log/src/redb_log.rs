//! The default engine: one redb file. A write transaction is one durable write (one fdatasync).

use std::path::{Path, PathBuf};

use redb::{
    Database, DatabaseError, ReadableDatabase, ReadableTable, StorageError, Table, TableDefinition,
    WriteTransaction,
};

use crate::{
    Batch, Entry, Error, Loaded, LogStore, Result, SnapshotMeta, Stats, codec, extent::Extent,
    names::sync_parent,
};

/// The format version this program writes, and the latest it reads.
pub const LOG_FORMAT: u32 = 1;

/// The log is read from memory, never from here, so the engine needs almost no cache.
const CACHE_BYTES: usize = 16 << 20;

const ENTRIES: TableDefinition<u64, &[u8]> = TableDefinition::new("entries");
const META: TableDefinition<&str, &[u8]> = TableDefinition::new("meta");

const FORMAT: &str = "format";
const HARD_STATE: &str = "hard_state";
const CONF_STATE: &str = "conf_state";
const SNAPSHOT: &str = "snapshot";

/// A raft log in a redb file.
pub struct RedbLog {
    db: Database,
    path: PathBuf,
    extent: Extent,
    snapshot: Option<SnapshotMeta>,
    stats: Stats,
}

impl RedbLog {
    /// Opens the log at `path`; creates it if there is none. Its directory must exist.
    ///
    /// # Errors
    /// [`Error::Newer`] for a file of a later version, [`Error::Corrupt`] for a damaged one,
    /// [`Error::InUse`] if another process has it open.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let db = Database::builder()
            .set_cache_size(CACHE_BYTES)
            .create(&path)
            .map_err(|error| open_error(&path, error))?;
        let mut log =
            Self { db, path, extent: Extent::new(0, None), snapshot: None, stats: Stats::default() };
        log.ensure_format()?;
        log.snapshot = log.read_meta(SNAPSHOT, codec::decode_snapshot)?;
        let snapshot = log.snapshot.as_ref().map_or(0, |snapshot| snapshot.index);
        log.extent = Extent::new(snapshot, log.read_bounds()?);
        Ok(log)
    }

    /// Creates the tables of a new file; checks the version of an existing one.
    fn ensure_format(&mut self) -> Result<()> {
        let found = match self.read_meta(FORMAT, |body| codec::Fields(body).u32()) {
            Err(Error::Engine { source, .. }) if matches!(*source, redb::Error::TableDoesNotExist(_)) => None,
            other => other?,
        };
        match found {
            Some(found) if found > LOG_FORMAT => {
                Err(Error::Newer { path: self.path.clone(), found, supported: LOG_FORMAT })
            }
            Some(_) => Ok(()),
            None => {
                self.write("create", |_, meta| put_meta(meta, FORMAT, &LOG_FORMAT.to_le_bytes()))?;
                // Making the file is no append; the figures begin at zero.
                self.stats = Stats::default();
                sync_parent(&self.path)
            }
        }
    }

    /// Indexes of the first and the last stored entry.
    fn read_bounds(&self) -> Result<Option<(u64, u64)>> {
        let read = || -> Result<_, redb::Error> {
            let entries = self.db.begin_read()?.open_table(ENTRIES)?;
            let first = entries.first()?.map(|(index, _)| index.value());
            let last = entries.last()?.map(|(index, _)| index.value());
            Ok(first.zip(last))
        };
        read().map_err(|source| self.engine_error("read", source))
    }

    fn read_meta<T>(&self, name: &'static str, decode: impl Fn(&[u8]) -> Option<T>) -> Result<Option<T>> {
        let read = || -> Result<_, redb::Error> {
            let meta = self.db.begin_read()?.open_table(META)?;
            Ok(meta.get(name)?.map(|value| value.value().to_vec()))
        };
        let value = read().map_err(|source| self.engine_error("read", source))?;
        let Some(value) = value else { return Ok(None) };
        match codec::unseal(name.as_bytes(), &value).and_then(decode) {
            Some(found) => Ok(Some(found)),
            None => Err(self.corrupt(format!("the record `{name}` does not match its checksum"))),
        }
    }

    fn read_entries(&self) -> Result<Vec<Entry>> {
        let read = || -> Result<Vec<(u64, Vec<u8>)>, redb::Error> {
            let entries = self.db.begin_read()?.open_table(ENTRIES)?;
            let owned = entries.range::<u64>(..)?.map(|row| {
                let (index, value) = row?;
                Ok((index.value(), value.value().to_vec()))
            });
            owned.collect()
        };
        let rows = read().map_err(|source| self.engine_error("read", source))?;
        let mut entries = Vec::with_capacity(rows.len());
        for (expected, (index, value)) in (self.extent.first..).zip(rows) {
            if index != expected {
                return Err(self.corrupt(format!("entry {expected} is missing")));
            }
            let entry = codec::decode_entry(index, &value);
            entries.push(entry.map_err(|what| self.corrupt(format!("entry {index}: {what}")))?);
        }
        Ok(entries)
    }

    /// Runs `change` in one transaction and makes it durable.
    fn write(
        &mut self,
        operation: &'static str,
        change: impl FnOnce(&mut Entries<'_>, &mut Meta<'_>) -> Result<(), redb::Error>,
    ) -> Result<()> {
        let run = || -> Result<(), redb::Error> {
            // The engine's default durability waits for the disk at commit.
            let transaction: WriteTransaction = self.db.begin_write()?;
            change(&mut transaction.open_table(ENTRIES)?, &mut transaction.open_table(META)?)?;
            Ok(transaction.commit()?)
        };
        run().map_err(|source| self.engine_error(operation, source))?;
        self.stats.durable_writes += 1;
        Ok(())
    }

    fn engine_error(&self, operation: &'static str, source: redb::Error) -> Error {
        match source {
            redb::Error::Corrupted(what) => self.corrupt(what),
            source => Error::Engine { operation, path: self.path.clone(), source: Box::new(source) },
        }
    }

    fn corrupt(&self, what: String) -> Error {
        Error::Corrupt { path: self.path.clone(), what }
    }
}

impl LogStore for RedbLog {
    fn load(&self) -> Result<Loaded> {
        let entries = self.read_entries()?;
        let first = entries.first().map_or(self.extent.first, |entry| entry.index);
        if first > self.extent.snapshot + 1 {
            return Err(self.corrupt(format!("entry {} is missing", self.extent.snapshot + 1)));
        }
        Ok(Loaded {
            hard_state: self.read_meta(HARD_STATE, codec::decode_hard_state)?.unwrap_or_default(),
            conf_state: self.read_meta(CONF_STATE, codec::decode_conf_state)?.unwrap_or_default(),
            snapshot: self.snapshot.clone(),
            entries,
        })
    }

    fn append(&mut self, batch: &Batch) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let after = self.extent.append(batch)?;
        let last = self.extent.last;
        self.write("append to", |entries, meta| {
            if let Some(snapshot) = &batch.snapshot {
                entries.retain(|_, _| false)?;
                put_meta(meta, SNAPSHOT, &codec::encode_snapshot(snapshot))?;
                put_meta(meta, CONF_STATE, &codec::encode_conf_state(&snapshot.conf_state))?;
            }
            if let Some(head) = batch.entries.first().filter(|head| head.index <= last) {
                entries.retain_in(head.index.., |_, _| false)?;
            }
            for entry in &batch.entries {
                entries.insert(entry.index, codec::encode_entry(entry).as_slice())?;
            }
            if let Some(hard_state) = &batch.hard_state {
                put_meta(meta, HARD_STATE, &codec::encode_hard_state(hard_state))?;
            }
            if let Some(conf_state) = &batch.conf_state {
                put_meta(meta, CONF_STATE, &codec::encode_conf_state(conf_state))?;
            }
            Ok(())
        })?;
        self.stats.bytes_appended += batch.stored_bytes();
        self.extent = after;
        if batch.snapshot.is_some() {
            self.snapshot.clone_from(&batch.snapshot);
        }
        Ok(())
    }

    fn set_snapshot(&mut self, snapshot: &SnapshotMeta) -> Result<()> {
        if self.snapshot.as_ref() == Some(snapshot) {
            return Ok(());
        }
        let after = self.extent.set_snapshot(snapshot)?;
        self.write("record a snapshot in", |_, meta| {
            put_meta(meta, SNAPSHOT, &codec::encode_snapshot(snapshot))
        })?;
        self.stats.bytes_appended += codec::snapshot_len(snapshot) as u64;
        self.extent = after;
        self.snapshot = Some(snapshot.clone());
        Ok(())
    }

    fn compact(&mut self, up_to: u64) -> Result<()> {
        let after = self.extent.compact(up_to)?;
        if after == self.extent {
            return Ok(());
        }
        self.write("compact", |entries, _| Ok(entries.retain_in(..=up_to, |_, _| false)?))?;
        self.extent = after;
        Ok(())
    }

    fn stats(&self) -> Stats {
        self.stats
    }
}

type Entries<'t> = Table<'t, u64, &'static [u8]>;
type Meta<'t> = Table<'t, &'static str, &'static [u8]>;

fn put_meta(meta: &mut Meta<'_>, name: &'static str, body: &[u8]) -> Result<(), redb::Error> {
    meta.insert(name, codec::seal(name.as_bytes(), body).as_slice())?;
    Ok(())
}

fn open_error(path: &Path, error: DatabaseError) -> Error {
    let path = path.to_owned();
    match error {
        DatabaseError::DatabaseAlreadyOpen => Error::InUse { path, pid: None },
        DatabaseError::Storage(StorageError::Corrupted(what)) => Error::Corrupt { path, what },
        // redb reports a file that does not begin with its magic number this way.
        DatabaseError::Storage(StorageError::Io(source))
            if source.kind() == std::io::ErrorKind::InvalidData =>
        {
            Error::Corrupt { path, what: source.to_string() }
        }
        error => Error::Engine { operation: "open", path, source: Box::new(error.into()) },
    }
}
