//! Why a machine could not be made.

/// The result of making a machine.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is wrong with a configuration or with restored data.
///
/// Restored data passed the checksums of the disk, so these errors mean that a program wrote
/// something wrong: the member must not take part in the group with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting that raft cannot run with.
    #[error("the raft settings do not work: {0}")]
    Config(String),
    /// The entries have a hole, or do not continue the snapshot.
    #[error("the restored log is not continuous: entry {expected} is missing, found {found}")]
    Gap {
        /// The index that must be there.
        expected: u64,
        /// The index that is there.
        found: u64,
    },
    /// The log ends before the snapshot does.
    #[error("the restored log ends at entry {last}, before the snapshot at entry {snapshot}")]
    BehindSnapshot {
        /// The last entry.
        last: u64,
        /// The snapshot's index.
        snapshot: u64,
    },
    /// Terms go down along the log, or are higher than the member's own.
    #[error("the restored entry {index} has term {found}, where it can be {lowest} to {highest}")]
    Term {
        /// The entry.
        index: u64,
        /// Its term.
        found: u64,
        /// The term of what comes before it.
        lowest: u64,
        /// The highest term it can have.
        highest: u64,
    },
    /// More is committed than there is.
    #[error("the restored state says that entry {commit} is committed; the log ends at {last}")]
    CommitAhead {
        /// The commit index.
        commit: u64,
        /// The last entry.
        last: u64,
    },
    /// A member is listed twice, or has the id 0.
    #[error("the restored members are not valid: {voters:?} vote, {learners:?} learn")]
    Members {
        /// The voters.
        voters: Vec<u64>,
        /// The learners.
        learners: Vec<u64>,
    },
}
