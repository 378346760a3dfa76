//! Why a manager cannot go on.

use warren_consensus::Fatal;
use warren_security::seal::SealError;

use super::known::Known;
use crate::raft::codec::CodecError;

/// Why a driver ended other than by being told to.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The log is damaged, or does not take what must come next. What was acknowledged before is safe.
    #[error("the log cannot be used any more, so this manager stops: {0}")]
    Log(#[from] warren_log::Error),
    /// The log was opened again after an error, and is another one.
    #[error(
        "after an error the log does not continue what was there, so this manager stops: it held {known}; \
         now it holds {found}"
    )]
    Discontinued {
        /// What the last write that was confirmed had left.
        known: Box<Known>,
        /// What was read.
        found: Box<Known>,
    },
    /// The log holds what this version cannot read.
    #[error("entry {index} of the log: {source}")]
    Entry {
        /// The entry.
        index: u64,
        /// What is wrong with it.
        source: CodecError,
    },
    /// What is written can no longer be sealed.
    #[error("the log cannot be sealed any more, so this manager stops: {0}")]
    Seal(#[from] SealError),
    /// The machine stopped for good.
    #[error("this manager stops: {0}")]
    Raft(Box<Fatal>),
    /// A bug: raft takes over a snapshot whose state did not come with it.
    #[error("raft takes over a snapshot at entry {0} whose state is not there, so this manager stops")]
    NoSnapshot(u64),
    /// A bug, or a log that contradicts itself.
    #[error(
        "the raft thread ended by a panic, a bug of Warren, so this manager stops; standard error has its message"
    )]
    Panicked,
}
