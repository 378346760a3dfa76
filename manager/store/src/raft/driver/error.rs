//! Why a manager cannot continue.

use warren_consensus::FatalError;
use warren_security::seal::SealError;

use super::log_summary::LogSummary;
use crate::codec::CodecError;

/// Why a driver ended other than by a stop.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The log is damaged or inconsistent with the next write. Writes acknowledged before are safe.
    #[error("manager stopped: log unusable: {0}")]
    Log(#[from] warren_log::Error),
    /// The log reopened after an error has another content.
    #[error(
        "manager stopped: the log changed after an error: expected {known}; \
         found {found}"
    )]
    LogReplaced {
        /// The content after the last confirmed write.
        known: Box<LogSummary>,
        /// The content found.
        found: Box<LogSummary>,
    },
    /// The log has an entry that this version cannot decode.
    #[error("entry {index} of the log: {source}")]
    UnreadableEntry {
        /// The entry.
        index: u64,
        /// The cause.
        source: CodecError,
    },
    /// The log can no longer be sealed.
    #[error("manager stopped: sealing the log failed: {0}")]
    Seal(#[from] SealError),
    /// The raft machine failed.
    #[error("manager stopped: {0}")]
    Raft(Box<FatalError>),
    /// A bug: raft installs a snapshot whose state was not received.
    #[error("manager stopped: state of snapshot at index {0} is missing")]
    SnapshotMissing(u64),
    /// A bug, or an inconsistent log.
    #[error("manager stopped: the raft thread panicked, which is a bug of Warren; the message is on stderr")]
    Panicked,
}
