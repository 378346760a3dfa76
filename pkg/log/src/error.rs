//! What can go wrong on the disk, in words a person can act on.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{Engine, Owner};

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the disk could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file was written by a later version of Warren.
    #[error(
        "{} has format version {found}, this program reads up to {supported}: \
         run the Warren version that wrote it, or a later one", path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The version it says it has.
        found: u32,
        /// The latest version this program reads.
        supported: u32,
    },
    /// The file was written by an earlier version of Warren, whose files this one does not read.
    #[error(
        "{} has format version {found}, this program reads version {supported}: run the Warren \
         version that wrote it, or remove this manager from the cluster, empty its data directory \
         and join it again", path.display()
    )]
    Older {
        /// The file.
        path: PathBuf,
        /// The version it says it has.
        found: u32,
        /// The version this program reads.
        supported: u32,
    },
    /// The directory holds the log of another engine.
    #[error(
        "{} was written by {found}, but the log engine is set to {wanted}: set it to {found} again; \
         to change it, remove this manager from the cluster, empty its data directory and join it \
         again", path.display()
    )]
    OtherEngine {
        /// The log that is there.
        path: PathBuf,
        /// The engine that wrote it.
        found: Engine,
        /// The engine that was to open it.
        wanted: Engine,
    },
    /// The log is another member's.
    #[error(
        "{} is the log of {found}, and this is {wanted}: put this manager's own log back with its receipt, from a copy \
         of this directory, or remove this manager from the cluster, empty its data directory and join again",
        path.display()
    )]
    OtherOwner {
        /// The log that is there.
        path: PathBuf,
        /// Whose it is.
        found: Owner,
        /// Who opened it.
        wanted: Owner,
    },
    /// The file's content is not what was written.
    #[error(
        "{} is damaged: {what}. Check the disk; then restore a backup, or remove this manager \
         from the cluster, empty its data directory and join it again", path.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Which part of it, and what is wrong with it.
        what: String,
    },
    /// Another process uses the directory or file.
    #[error("{} is in use by {}: stop it first, or choose another data directory",
        path.display(), pid.map_or("another process".into(), |pid| format!("process {pid}")))]
    InUse {
        /// What is in use.
        path: PathBuf,
        /// The process that holds it, if it said so.
        pid: Option<u32>,
    },
    /// The directory cannot be created or written to.
    #[error(
        "data directory {} cannot be written: {source}. Choose another with --data-dir, \
         or give this user the right to write there", path.display()
    )]
    NotWritable {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no room on the disk. Nothing that was acknowledged is lost; the write can be
    /// repeated on the log when it was opened again.
    #[error(
        "cannot {operation} {}: {source}, {free} bytes are free. Make room on that disk; \
         nothing that was acknowledged is lost", path.display()
    )]
    Full {
        /// What was attempted.
        operation: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the file system has left for this user.
        free: u64,
        /// What the system said.
        source: io::Error,
    },
    /// A file operation failed.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// What was attempted.
        operation: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The storage engine failed.
    #[error("cannot {operation} {}: {source}", path.display())]
    Engine {
        /// What was attempted.
        operation: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the engine said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A write failed, and the log was used again without opening it anew.
    #[error("an earlier write to {} failed: close it and open it again", path.display())]
    Failed {
        /// The log.
        path: PathBuf,
    },
    /// Entries would leave a hole in the log.
    #[error("entry {found} does not follow the log: entry {expected} must come next")]
    Gap {
        /// The index that may come next at most.
        expected: u64,
        /// The index that was to be written.
        found: u64,
    },
    /// Entries that a snapshot replaced would be overwritten.
    #[error("entry {found} is covered by a snapshot: the log starts at entry {first}")]
    Compacted {
        /// The lowest index that may be written.
        first: u64,
        /// The index that was to be written.
        found: u64,
    },
    /// A snapshot claims entries that are not in the log.
    #[error("a snapshot at entry {found} is ahead of the log, which ends at entry {last}")]
    SnapshotAhead {
        /// The last entry in the log.
        last: u64,
        /// The snapshot's index.
        found: u64,
    },
    /// A snapshot is older than the one that is recorded.
    #[error("a snapshot at entry {found} is older than the recorded one at entry {recorded}")]
    SnapshotBehind {
        /// The recorded snapshot's index.
        recorded: u64,
        /// The index of the one that was to be recorded.
        found: u64,
    },
    /// Entries would be removed that no snapshot covers.
    #[error("cannot compact up to entry {up_to}: the latest snapshot covers up to {covered}")]
    NotCovered {
        /// The latest snapshot's index, 0 for none.
        covered: u64,
        /// The index up to which entries were to be removed.
        up_to: u64,
    },
    /// The simulated machine lost its power ([`crate::Disk::crash_at`]).
    #[error("the simulated machine lost its power; open the disk again")]
    Crashed,
}

impl Error {
    /// Wraps an [`io::Error`] with what was attempted on which file; for `map_err`.
    pub fn io(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| {
            if is_full(&source) {
                let free = free_bytes(&path);
                return Error::Full { operation, path, free, source };
            }
            Error::Io { operation, path, source }
        }
    }

    /// Whether making room on the disk is what helps.
    pub fn is_out_of_space(&self) -> bool {
        match self {
            Error::Full { .. } => true,
            Error::NotWritable { source, .. } => is_full(source),
            _ => false,
        }
    }
}

pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// What the file system of `path`, or of the directory it is to lie in, has left. 0 if it does not say.
fn free_bytes(path: &Path) -> u64 {
    let ask = |path| nix::sys::statvfs::statvfs(path).ok();
    let found = ask(path).or_else(|| path.parent().and_then(ask));
    found.map_or(0, |found| found.blocks_available() * found.fragment_size())
}
