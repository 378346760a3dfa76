//! Writes the log, and holds a write that fails until it can be done.
//!
//! After an error nobody knows what has reached the disk. So the store is dropped and opened again, and what it holds
//! must be what it held before the write or what it holds after it: then the write is repeated, which is harmless if
//! it was done already. Anything else is a log that lost something, and nothing can be trusted any more.
//! It never gives up a write, never skips one, and never goes on to the next before the last one is durable.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use tokio::time::Instant;
use warren_control::{Backoff, Chance, system_chance};
use warren_log::{Batch, Error, Loaded, LogStore, SnapshotMeta, Stats};
use warren_types::{Bytes, Timestamp};

use super::DriverError;
use super::known::Known;
use crate::store::{Held, LogCost};

/// The wait before the log is opened again for the first time, and the longest one.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(2);

/// Opens the log that a [`Keeper`] was made with once more.
pub type Opener = Box<dyn FnMut() -> Result<Box<dyn LogStore>, Error> + Send>;

/// What is written to the log as one step. Each can be repeated.
#[derive(Debug, Clone)]
pub enum Write {
    /// What the machine asked for.
    Append {
        /// The machine's number for it.
        number: u64,
        /// What becomes durable.
        batch: Batch,
    },
    /// A snapshot of this member's own state is on disk, and entries before it can go.
    Compact {
        /// The snapshot.
        snapshot: SnapshotMeta,
        /// The last entry to remove; 0 for none.
        up_to: u64,
    },
}

/// The log, its latest known content, and the write that waits for the disk, if one does.
pub struct Keeper {
    /// `None` while a write is held.
    store: Option<Box<dyn LogStore>>,
    open: Opener,
    /// The directory that the log is in.
    dir: PathBuf,
    chance: Chance,
    known: Known,
    /// What stores cost that were given up.
    spent: Stats,
    hold: Option<Hold>,
}

struct Hold {
    write: Write,
    shown: Arc<Held>,
    began: Instant,
    due: Instant,
    backoff: Backoff,
}

impl Keeper {
    /// Writes to `store`, which is in `dir` and holds `loaded`; `open` opens it again after an error.
    pub fn new(store: Box<dyn LogStore>, loaded: &Loaded, dir: PathBuf, open: Opener) -> Self {
        let (known, chance) = (Known::of(loaded), system_chance());
        Self { store: Some(store), open, dir, chance, known, spent: Stats::default(), hold: None }
    }

    /// Makes `write` durable and gives it back, or holds it and gives nothing. Must not be called while one is held.
    ///
    /// # Errors
    /// The log contradicts itself or what is to be written; trying again cannot heal that.
    pub fn write(&mut self, write: Write) -> Result<Option<Write>, DriverError> {
        let store = self.store.as_mut().expect("nothing is written while a write is held");
        match execute(store.as_mut(), &write) {
            Ok(()) => {
                self.known = self.known.after(&write);
                Ok(Some(write))
            }
            Err(error) => {
                let began = Instant::now();
                let backoff = Backoff::new(FIRST_RETRY, LONGEST_RETRY);
                let shown = Arc::new(Held { since: now(), why: Arc::default(), full: false });
                let hold = Hold { write, shown, began, due: began, backoff };
                self.hold(hold, error)?;
                Ok(None)
            }
        }
    }

    /// When the held write is to be tried again; `None` if none is held.
    pub fn due(&self) -> Option<Instant> {
        self.hold.as_ref().map(|hold| hold.due)
    }

    /// Why nothing can be written, for those who ask.
    pub fn held(&self) -> Option<&Arc<Held>> {
        self.hold.as_ref().map(|hold| &hold.shown)
    }

    /// Opens the log again and repeats the write that is held. Gives it back when it is durable.
    ///
    /// # Errors
    /// The log does not continue what was there before the write.
    pub fn retry(&mut self) -> Result<Option<Write>, DriverError> {
        let Some(hold) = self.hold.take() else { return Ok(None) };
        match self.reopen(&hold.write)? {
            Ok(()) => {
                let held = hold.began.elapsed();
                tracing::info!(?held, tries = hold.backoff.failures(), "the log can be written again");
                self.known = self.known.after(&hold.write);
                Ok(Some(hold.write))
            }
            Err(error) => {
                self.hold(hold, error)?;
                Ok(None)
            }
        }
    }

    /// Forgets the held write: the driver ends.
    pub fn abandon(&mut self) {
        self.hold = None;
    }

    /// Index of the log's first entry, or of the one that must come next.
    pub fn first(&self) -> u64 {
        self.known.first()
    }

    /// What the log has cost since the manager started.
    pub fn cost(&self) -> LogCost {
        let now = self.store.as_ref().map_or_else(Stats::default, |store| store.stats());
        LogCost {
            writes: self.spent.durable_writes + now.durable_writes,
            bytes: self.spent.bytes_appended + now.bytes_appended,
        }
    }

    /// Holds a write that failed with `error`, if waiting can help.
    fn hold(&mut self, mut hold: Hold, error: Error) -> Result<(), DriverError> {
        // Dropped before it is opened again: only one may have the files.
        if let Some(store) = self.store.take() {
            let cost = store.stats();
            self.spent.durable_writes += cost.durable_writes;
            self.spent.bytes_appended += cost.bytes_appended;
        }
        if !heals(&error) {
            return Err(error.into());
        }
        let shown = describe(&error, hold.shown.since);
        // One line per reason: it is tried again every other second, maybe for hours.
        let known = if shown.full { hold.shown.full } else { shown.why == hold.shown.why };
        if !known {
            tracing::error!(%error, "{}; writes are refused until it can be written", shown.why);
        }
        hold.shown = Arc::new(shown);
        hold.due = Instant::now() + hold.backoff.next_delay((self.chance)());
        self.hold = Some(hold);
        Ok(())
    }

    /// The inner error is one that may heal, in so far as it is known.
    fn reopen(&mut self, write: &Write) -> Result<Result<(), Error>, DriverError> {
        forget_cached(&self.dir);
        let opened = (self.open)().and_then(|store| Ok((store.load()?, store)));
        let (loaded, mut store) = match opened {
            Ok(opened) => opened,
            Err(error) => return Ok(Err(error)),
        };
        let found = Known::of(&loaded);
        if !self.known.stages(write).contains(&found) {
            let known = Box::new(self.known.clone());
            return Err(DriverError::Discontinued { known, found: Box::new(found) });
        }
        let written = execute(store.as_mut(), write);
        self.store = Some(store);
        Ok(written)
    }
}

fn execute(store: &mut dyn LogStore, write: &Write) -> Result<(), Error> {
    match write {
        Write::Append { batch, .. } => store.append(batch),
        Write::Compact { snapshot, up_to } => {
            store.set_snapshot(snapshot)?;
            if *up_to > 0 { store.compact(*up_to) } else { Ok(()) }
        }
    }
}

/// Whether time, or somebody who makes room, can make it go away.
fn heals(error: &Error) -> bool {
    match error {
        Error::Corrupt { .. } | Error::Newer { .. } | Error::Older { .. } | Error::OtherEngine { .. } => {
            false
        }
        // The machine asked for what the log cannot do.
        Error::Gap { .. }
        | Error::Compacted { .. }
        | Error::SnapshotAhead { .. }
        | Error::SnapshotBehind { .. }
        | Error::NotCovered { .. } => false,
        _ => true,
    }
}

fn describe(error: &Error, since: Timestamp) -> Held {
    let why = match error {
        Error::Full { path, free, .. } => {
            format!("the disk of this manager is full: {} has {} free", path.display(), Bytes(*free))
        }
        error => format!("this manager cannot write its log: {error}"),
    };
    Held { since, why: why.into(), full: error.is_out_of_space() }
}

/// Lets go of what the system keeps in memory of the log's files. After a failed fsync Linux takes pages for written
/// that the disk never got, and what is read next must be what the disk has.
fn forget_cached(path: &Path) {
    if let Ok(entries) = std::fs::read_dir(path) {
        entries.flatten().for_each(|entry| forget_cached(&entry.path()));
    } else if let Ok(file) = std::fs::File::open(path) {
        // A file system that keeps nothing has nothing to forget.
        let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
