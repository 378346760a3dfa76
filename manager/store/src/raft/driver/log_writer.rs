//! Writes the log, and retries a failed write until it succeeds.
//!
//! After an error it is unknown what has reached the disk. So the store is dropped and reopened, and its
//! content must equal the content before or after the write: then the write is repeated, which is idempotent.
//! Any other content is a log that lost data, which is fatal. A write is never dropped or skipped, and the
//! next one never starts before the last one is durable.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use tokio::time::Instant;
use warren_control::{Backoff, RandomSource, system_random};
use warren_log::{Error, LogStore, StoredLog, WriteStats};
use warren_types::{Bytes, Timestamp};

use super::DriverError;
use super::log_summary::LogSummary;
use super::log_write::LogWrite;
use crate::raft::sealed_log::LogOpener;
use crate::store::{LogCost, WriteStall};

/// The first and the longest delay before the log is reopened.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);

/// The log, the summary of its content, and the stalled write, if any.
pub struct LogWriter {
    /// `None` while a write is stalled.
    store: Option<Box<dyn LogStore>>,
    open: LogOpener,
    /// The directory of the log.
    dir: PathBuf,
    chance: RandomSource,
    summary: LogSummary,
    /// Statistics of dropped stores.
    closed_stats: WriteStats,
    stalled: Option<StalledWrite>,
}

struct StalledWrite {
    write: LogWrite,
    stall: Arc<WriteStall>,
    started: Instant,
    due: Instant,
    backoff: Backoff,
}

impl LogWriter {
    /// Writes to `store`, which is in `dir` and contains `loaded`; `open` reopens it after an error.
    pub fn new(store: Box<dyn LogStore>, loaded: &StoredLog, dir: PathBuf, open: LogOpener) -> Self {
        let (known, chance) = (LogSummary::new(loaded), system_random());
        Self {
            store: Some(store),
            open,
            dir,
            chance,
            summary: known,
            closed_stats: WriteStats::default(),
            stalled: None,
        }
    }

    /// Makes `write` durable and returns it, or stalls it and returns `None`. Must not be called while a
    /// write is stalled.
    ///
    /// # Errors
    /// The log is inconsistent with itself or the write; retrying does not help.
    pub fn write(&mut self, write: LogWrite) -> Result<Option<LogWrite>, DriverError> {
        let store = self.store.as_mut().expect("no write is made while one is stalled");
        match write.execute(store.as_mut()) {
            Ok(()) => {
                self.summary = self.summary.after(&write);
                Ok(Some(write))
            }
            Err(error) => {
                let began = Instant::now();
                let backoff = Backoff::new(MIN_RETRY_DELAY, MAX_RETRY_DELAY);
                let stall =
                    Arc::new(WriteStall { since: now(), reason: Arc::default(), is_disk_full: false });
                let stalled = StalledWrite { write, stall, started: began, due: began, backoff };
                self.stall_write(stalled, error)?;
                Ok(None)
            }
        }
    }

    /// When to retry the stalled write; `None` without one.
    pub fn retry_at(&self) -> Option<Instant> {
        self.stalled.as_ref().map(|stalled| stalled.due)
    }

    /// The reason of the stall.
    pub fn stall(&self) -> Option<&Arc<WriteStall>> {
        self.stalled.as_ref().map(|stalled| &stalled.stall)
    }

    /// Reopens the log and repeats the stalled write. Returns it when it is durable.
    ///
    /// # Errors
    /// The log's content is neither that before nor that after the write.
    pub fn retry(&mut self) -> Result<Option<LogWrite>, DriverError> {
        let Some(stalled) = self.stalled.take() else { return Ok(None) };
        match self.reopen(&stalled.write)? {
            Ok(()) => {
                let stalled_for = stalled.started.elapsed();
                tracing::info!(?stalled_for, tries = stalled.backoff.failures(), "log writes recovered");
                self.summary = self.summary.after(&stalled.write);
                Ok(Some(stalled.write))
            }
            Err(error) => {
                self.stall_write(stalled, error)?;
                Ok(None)
            }
        }
    }

    /// Drops the stalled write: the driver ends.
    pub fn abandon(&mut self) {
        self.stalled = None;
    }

    /// Index of the log's first entry, or of the next one in an empty log.
    pub fn first_index(&self) -> u64 {
        self.summary.first_index()
    }

    /// Index of the log's last entry, or of the snapshot in an empty log.
    pub fn last_index(&self) -> u64 {
        self.summary.last_index()
    }

    /// Log writes since the manager started.
    pub fn cost(&self) -> LogCost {
        let now = self.store.as_ref().map_or_else(WriteStats::default, |store| store.stats());
        LogCost {
            writes: self.closed_stats.durable_writes + now.durable_writes,
            bytes: self.closed_stats.bytes_appended + now.bytes_appended,
        }
    }

    /// Stalls a write that failed with `error` if it is retryable.
    fn stall_write(&mut self, mut stalled: StalledWrite, error: Error) -> Result<(), DriverError> {
        // Dropped before it is reopened: only one store may own the files.
        if let Some(store) = self.store.take() {
            let cost = store.stats();
            self.closed_stats.durable_writes += cost.durable_writes;
            self.closed_stats.bytes_appended += cost.bytes_appended;
        }
        if !is_retryable(&error) {
            return Err(error.into());
        }
        let stall = describe_stall(&error, stalled.stall.since);
        // Logged once per reason: the write is retried every two seconds, possibly for hours.
        let is_logged = if stall.is_disk_full {
            stalled.stall.is_disk_full
        } else {
            stall.reason == stalled.stall.reason
        };
        if !is_logged {
            tracing::error!(%error, "{}; rejecting writes until the log can be written", stall.reason);
        }
        stalled.stall = Arc::new(stall);
        stalled.due = Instant::now() + stalled.backoff.next_delay((self.chance)());
        self.stalled = Some(stalled);
        Ok(())
    }

    /// The inner error may be retryable.
    fn reopen(&mut self, write: &LogWrite) -> Result<Result<(), Error>, DriverError> {
        drop_page_cache(&self.dir);
        let opened = (self.open)().and_then(|store| Ok((store.load()?, store)));
        let (loaded, mut store) = match opened {
            Ok(opened) => opened,
            Err(error) => return Ok(Err(error)),
        };
        let found = LogSummary::new(&loaded);
        if !self.summary.intermediate(write).contains(&found) {
            let known = Box::new(self.summary.clone());
            return Err(DriverError::LogReplaced { known, found: Box::new(found) });
        }
        let written = write.execute(store.as_mut());
        self.store = Some(store);
        Ok(written)
    }
}

/// Whether the error may disappear, for example when disk space is freed.
fn is_retryable(error: &Error) -> bool {
    match error {
        Error::Corrupt { .. } | Error::Newer { .. } | Error::Older { .. } | Error::OtherEngine { .. } => {
            false
        }
        // The machine requested an invalid write.
        Error::Gap { .. }
        | Error::Compacted { .. }
        | Error::SnapshotAhead { .. }
        | Error::SnapshotBehind { .. }
        | Error::NotCovered { .. } => false,
        _ => true,
    }
}

fn describe_stall(error: &Error, since: Timestamp) -> WriteStall {
    let why = match error {
        Error::Full { path, free, .. } => {
            format!("the disk of this manager is full: {} has {} free", path.display(), Bytes(*free))
        }
        error => format!("this manager cannot write its log: {error}"),
    };
    WriteStall { since, reason: why.into(), is_disk_full: error.is_out_of_space() }
}

/// Drops the log's files from the page cache. After a failed fsync Linux marks pages as clean that were not
/// written, and the next read must return what is on the disk.
fn drop_page_cache(path: &Path) {
    if let Ok(entries) = std::fs::read_dir(path) {
        entries.flatten().for_each(|entry| drop_page_cache(&entry.path()));
    } else if let Ok(file) = std::fs::File::open(path) {
        // A file system without page cache has nothing to drop.
        let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
