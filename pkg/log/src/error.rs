//! Errors of this crate, each with the remedy.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{LogEngine, LogOwner};

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed storage operation.
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
        /// Its format version.
        found: u32,
        /// The latest supported version.
        supported: u32,
    },
    /// The file was written by an earlier, unsupported version of Warren.
    #[error(
        "{} has format version {found}, this program reads version {supported}: run the Warren \
         version that wrote it, or remove this manager from the cluster, empty its data directory \
         and join it again", path.display()
    )]
    Older {
        /// The file.
        path: PathBuf,
        /// Its format version.
        found: u32,
        /// The supported version.
        supported: u32,
    },
    /// The directory contains the log of another engine.
    #[error(
        "{} was written by {found}, but the log engine is set to {expected}: set it to {found} again; \
         to change it, remove this manager from the cluster, empty its data directory and join it \
         again", path.display()
    )]
    OtherEngine {
        /// The existing log.
        path: PathBuf,
        /// The engine that wrote it.
        found: LogEngine,
        /// The configured engine.
        expected: LogEngine,
    },
    /// The log belongs to another member.
    #[error(
        "{} is the log of {found}, and this is {expected}: restore this manager's own log with its .receipt \
         file, from a copy of this directory, or remove this manager from the cluster, empty its data \
         directory and join again",
        path.display()
    )]
    OtherOwner {
        /// The existing log.
        path: PathBuf,
        /// Its owner.
        found: LogOwner,
        /// The member that opened it.
        expected: LogOwner,
    },
    /// The content of the file does not match its checksums.
    #[error(
        "{} is damaged: {what}. Check the disk; then restore a backup, or remove this manager \
         from the cluster, empty its data directory and join it again", path.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The damaged part, and how.
        what: String,
    },
    /// Another process uses the directory or file.
    #[error("{} is in use by {}: stop it first, or choose another data directory",
        path.display(), pid.map_or("another process".into(), |pid| format!("process {pid}")))]
    InUse {
        /// What is in use.
        path: PathBuf,
        /// Pid of the process, if known.
        pid: Option<u32>,
    },
    /// The directory cannot be created or written.
    #[error(
        "data directory {} cannot be written: {source}. Choose another with --data-dir, \
         or give this user the right to write there", path.display()
    )]
    NotWritable {
        /// The directory.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// The disk is full. No acknowledged write is lost; repeat the write after opening the log again.
    #[error(
        "cannot {operation} {}: {source}, {free} bytes are free. Make room on that disk; \
         nothing that was acknowledged is lost", path.display()
    )]
    Full {
        /// The failed operation.
        operation: &'static str,
        /// Its file.
        path: PathBuf,
        /// Free bytes of the file system for this user.
        free: u64,
        /// The system error.
        source: io::Error,
    },
    /// A file operation failed.
    #[error("cannot {operation} {}: {source}", path.display())]
    Io {
        /// The failed operation.
        operation: &'static str,
        /// Its file.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// The storage engine failed.
    #[error("cannot {operation} {}: {source}", path.display())]
    Engine {
        /// The failed operation.
        operation: &'static str,
        /// Its file.
        path: PathBuf,
        /// The engine error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A write failed, and the log was used without opening it again.
    #[error("an earlier write to {} failed: close it and open it again", path.display())]
    AlreadyFailed {
        /// The log.
        path: PathBuf,
    },
    /// Entries would leave a gap in the log.
    #[error("entry {found} does not follow the log: entry {expected} must come next")]
    Gap {
        /// The highest valid next index.
        expected: u64,
        /// The rejected index.
        found: u64,
    },
    /// Entries covered by a snapshot would be overwritten.
    #[error("entry {found} is covered by a snapshot: the log starts at entry {first}")]
    Compacted {
        /// The lowest writable index.
        first: u64,
        /// The rejected index.
        found: u64,
    },
    /// A snapshot is ahead of the log.
    #[error("a snapshot at entry {found} is ahead of the log, which ends at entry {last}")]
    SnapshotAhead {
        /// Index of the last entry in the log.
        last: u64,
        /// Index of the snapshot.
        found: u64,
    },
    /// A snapshot is older than the recorded one.
    #[error("a snapshot at entry {found} is older than the recorded one at entry {recorded}")]
    SnapshotBehind {
        /// Index of the recorded snapshot.
        recorded: u64,
        /// Index of the rejected snapshot.
        found: u64,
    },
    /// Compaction would remove entries that no snapshot covers.
    #[error("cannot compact up to entry {up_to}: the latest snapshot covers up to {covered}")]
    NotCovered {
        /// Index of the latest snapshot, 0 for none.
        covered: u64,
        /// Last index to remove.
        up_to: u64,
    },
    /// The simulated machine lost power ([`crate::MemoryDisk::crash_at`]).
    #[error("the simulated machine lost power; open the disk again")]
    Crashed,
}

impl Error {
    /// Adds the operation and the file to an [`io::Error`]; for `map_err`.
    pub fn io(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| {
            if is_no_space(&source) {
                let free = free_bytes(&path);
                return Error::Full { operation, path, free, source };
            }
            Error::Io { operation, path, source }
        }
    }

    /// Whether freeing disk space helps.
    pub fn is_out_of_space(&self) -> bool {
        match self {
            Error::Full { .. } => true,
            Error::NotWritable { source, .. } => is_no_space(source),
            _ => false,
        }
    }
}

pub(crate) fn is_no_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Free bytes of the file system of `path` or its directory; 0 if unknown.
fn free_bytes(path: &Path) -> u64 {
    let ask = |path| nix::sys::statvfs::statvfs(path).ok();
    let stats = ask(path).or_else(|| path.parent().and_then(ask));
    stats.map_or(0, |stats| stats.blocks_available() * stats.fragment_size())
}
