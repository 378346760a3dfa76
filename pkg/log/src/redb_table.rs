//! The default engine: one redb file. A write transaction is one durable write (one fdatasync).

use std::{
    fs::{self, File},
    io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use redb::{
    Builder, Database, DatabaseError, ReadableDatabase, StorageError, TableDefinition, TableError,
    WriteTransaction,
};

use crate::{
    Error, Recovery, Result,
    fsync::{sync_parent, with_suffix},
    table::{RecordTable, TableChange},
};

/// The log is read from memory only, so the engine needs almost no cache.
const CACHE_BYTES: usize = 4 << 20;

/// From this repair progress on, the engine has rolled back the latest transaction because it was
/// incomplete. Without a rollback, the first progress report comes later.
const ROLLBACK_PROGRESS: f64 = 0.3;

const ENTRIES: TableDefinition<u64, &[u8]> = TableDefinition::new("entries");
const META: TableDefinition<&str, &[u8]> = TableDefinition::new("meta");

/// Values in a redb file.
pub struct RedbTable {
    db: Database,
    path: PathBuf,
}

impl RedbTable {
    /// Opens the database with `open`, given the engine's settings.
    pub(crate) fn open_with(
        path: &Path,
        open: impl FnOnce(&mut Builder) -> Result<Database, DatabaseError>,
    ) -> Result<(Self, Option<Recovery>)> {
        let is_repaired = Arc::new(AtomicBool::new(false));
        let is_cut = Arc::new(AtomicBool::new(false));
        let mut builder = Database::builder();
        builder.set_cache_size(CACHE_BYTES).set_repair_callback({
            let (is_repaired, is_cut) = (Arc::clone(&is_repaired), Arc::clone(&is_cut));
            move |session| {
                is_repaired.store(true, Relaxed);
                is_cut.fetch_or((session.progress() - ROLLBACK_PROGRESS).abs() < 0.01, Relaxed);
            }
        });
        let mut db = open(&mut builder).map_err(|error| open_error(path, error))?;
        // After a clean shutdown the engine trusts its pages; a flipped bit would be noticed late, or by
        // the reuse of a page in use.
        if !db.check_integrity().map_err(|error| open_error(path, error))? {
            let what = "the checksums of its pages do not match".to_owned();
            return Err(Error::Corrupt { path: path.into(), what });
        }
        let recovered = is_repaired
            .load(Relaxed)
            .then(|| Recovery { path: path.into(), was_truncated: is_cut.load(Relaxed) });
        Ok((Self { db, path: path.into() }, recovered))
    }

    fn error(&self, operation: &'static str, source: redb::Error) -> Error {
        match source {
            redb::Error::Corrupted(what) => Error::Corrupt { path: self.path.clone(), what },
            redb::Error::Io(source) => Error::io(operation, &self.path)(source),
            source => Error::Engine { operation, path: self.path.clone(), source: Box::new(source) },
        }
    }
}

impl RecordTable for RedbTable {
    // The engine rolls back at most a transaction in progress.
    const ACK_WATERMARK_IS_DURABLE: bool = false;

    fn open(path: &Path) -> Result<(Self, Option<Recovery>)> {
        if !path.try_exists().map_err(Error::io("look for", path))? {
            create(path)?;
        }
        Self::open_with(path, |builder| builder.open(path))
    }

    fn get(&self, name: &'static str) -> Result<Option<Vec<u8>>> {
        let read = || -> Result<_, redb::Error> {
            let meta = match self.db.begin_read()?.open_table(META) {
                Err(TableError::TableDoesNotExist(_)) => return Ok(None),
                meta => meta?,
            };
            Ok(meta.get(name)?.map(|value| value.value().to_vec()))
        };
        read().map_err(|source| self.error("read", source))
    }

    fn scan(
        &self,
        indexes: RangeInclusive<u64>,
        visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let rows = || -> Result<_, redb::Error> {
            Ok(self.db.begin_read()?.open_table(ENTRIES)?.range::<u64>(indexes)?)
        };
        for row in rows().map_err(|source| self.error("read", source))? {
            let (index, value) = row.map_err(|source| self.error("read", source.into()))?;
            visit(index.value(), value.value())?;
        }
        Ok(())
    }

    fn commit(&mut self, operation: &'static str, change: &TableChange) -> Result<()> {
        let run = || -> Result<(), redb::Error> {
            // The engine's default durability waits for the disk at commit.
            let transaction: WriteTransaction = self.db.begin_write()?;
            {
                let mut entries = transaction.open_table(ENTRIES)?;
                if let Some(indexes) = &change.remove {
                    entries.retain_in(indexes.clone(), |_, _| false)?;
                }
                for (index, value) in &change.entries {
                    entries.insert(index, value.as_slice())?;
                }
                let mut meta = transaction.open_table(META)?;
                for (name, value) in &change.records {
                    meta.insert(name, value.as_slice())?;
                }
            }
            Ok(transaction.commit()?)
        };
        run().map_err(|source| self.error(operation, source))
    }
}

/// Creates an empty file. When this returns, it is durable; a crash before that leaves no file, or one
/// under a temporary name. (The engine rejects a partially created file.)
pub(crate) fn create(path: &Path) -> Result<()> {
    let temporary = with_suffix(path, ".new");
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Error::io("remove", &temporary)(error));
        }
        _ => {}
    }
    drop(Database::builder().create(&temporary).map_err(|error| open_error(&temporary, error))?);
    File::open(&temporary).and_then(|file| file.sync_all()).map_err(Error::io("sync", &temporary))?;
    fs::rename(&temporary, path).map_err(Error::io("rename", &temporary))?;
    sync_parent(path)
}

fn open_error(path: &Path, error: DatabaseError) -> Error {
    let path = path.to_owned();
    match error {
        DatabaseError::DatabaseAlreadyOpen => Error::InUse { path, pid: None },
        DatabaseError::Storage(StorageError::Corrupted(what)) => Error::Corrupt { path, what },
        // No released log was written by an earlier engine.
        DatabaseError::UpgradeRequired(_) => Error::Corrupt { path, what: error.to_string() },
        // redb reports a file with a wrong magic number, or a truncated one, this way.
        DatabaseError::Storage(StorageError::Io(source))
            if matches!(source.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
        {
            Error::Corrupt { path, what: source.to_string() }
        }
        DatabaseError::Storage(StorageError::Io(source)) => Error::io("open", path)(source),
        error => Error::Engine { operation: "open", path, source: Box::new(error) },
    }
}
