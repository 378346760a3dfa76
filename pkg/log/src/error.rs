//! What can go wrong on the disk, in words a person can act on.

use std::{io, path::PathBuf};

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
        source: Box<redb::Error>,
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
    pub(crate) fn io(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { operation, path, source }
    }
}
