//! Errors of writes, membership changes and leadership transfers.

use std::sync::Arc;
use std::time::Duration;

use warren_consensus::{DropReason, InvalidMemberChange};
use warren_core::Refusal;
use warren_types::{MemberId, Timestamp};

/// Why a manager currently cannot write its log. The write is retried automatically.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteStall {
    /// Start of the stall.
    pub since: Timestamp,
    /// The error and the file, as a message for users.
    pub reason: Arc<str>,
    /// Whether the disk is full, as opposed to failing.
    pub is_disk_full: bool,
}

/// Why a write was not applied, or its outcome is unknown.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ProposeError {
    /// The state machine rejected the command.
    #[error("{0}")]
    Rejected(Refusal),
    /// Only the leader proposes. The write was not applied.
    #[error("this manager is not the leader; ask the leader or try again shortly")]
    NotLeader,
    /// No leader was reachable for this time. The write or read did not happen.
    #[error(
        "no leader within {0:?}; nothing was read or changed; a majority of the voting managers must run \
         and reach each other"
    )]
    NoLeader(Duration),
    /// The write may or may not have been applied; repeating it is safe.
    #[error("{0}; outcome unknown: the write may still be applied; it is safe to repeat it")]
    Indeterminate(IndeterminateReason),
    /// Too many writes are pending. The write was not applied.
    #[error("too many pending writes; try again shortly")]
    Busy,
    /// The manager is stopping. The write was not applied.
    #[error("the manager is stopping")]
    Stopping,
    /// The log currently cannot be written. The write was not applied.
    #[error("{}; nothing was changed", .0.reason)]
    WriteStalled(Arc<WriteStall>),
    /// The log currently cannot be written, and others may have committed entries that are not applied here.
    /// Nothing was read.
    #[error(
        "{}; linearizable reads are not possible and nothing was read; ask another manager, or read this \
         one's state with --stale", .0.reason
    )]
    Stale(Arc<WriteStall>),
    /// The driver ended because of its log or a bug. The write was not applied.
    #[error("manager stopped: {0}")]
    DriverFailed(Arc<str>),
}

/// Why the outcome of a write is unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IndeterminateReason {
    /// It was not confirmed in time.
    #[error("the write was not confirmed within {0:?}")]
    Timeout(Duration),
    /// The log write stalled.
    #[error("the write was not confirmed within {0:?}, because {why}", why = .1.reason)]
    WriteStalled(Duration, Arc<WriteStall>),
    /// A later leader's snapshot covers it.
    #[error("leadership changed before the write was confirmed")]
    CoveredBySnapshot,
    /// The driver ended first.
    #[error("the manager stopped before the write was confirmed")]
    DriverEnded,
    /// The leader got the write and did not confirm it; the text is the reason.
    #[error("the leader did not confirm the write: {0}")]
    LeaderUnanswered(Arc<str>),
}

/// Why a membership change was not made, or its outcome is unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// Only the leader changes the membership.
    #[error("this manager is not the leader; ask the leader")]
    NotLeader,
    /// An earlier change is in progress, too many proposals are pending, or the leader has just been elected.
    #[error("another membership change is in progress; try again shortly")]
    ChangeInProgress,
    /// The change is invalid.
    #[error("invalid membership change: {0}")]
    Invalid(InvalidMemberChange),
    /// It may still be applied.
    #[error("the membership change is not confirmed and may still be applied")]
    Indeterminate,
    /// The log currently cannot be written.
    #[error("{}; nothing was changed", .0.reason)]
    WriteStalled(Arc<WriteStall>),
    /// The manager is stopping.
    #[error("the manager is stopping")]
    Stopping,
}

/// Why this manager did not transfer its leadership.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// This manager is not the leader.
    #[error("this manager is not the leader; ask the leader")]
    NotLeader,
    /// The target must be another voter.
    #[error("manager {0} is not another voter, so it cannot lead")]
    NotVoter(MemberId),
    /// There is no other voter.
    #[error("no other voter exists; leadership cannot be transferred")]
    NoOtherVoter,
    /// The target did not become leader; this manager remains leader.
    #[error(
        "leadership transfer timed out after {0:?}; this manager remains leader; check that \
         the target is running and not far behind"
    )]
    Timeout(Duration),
    /// The manager is stopping.
    #[error("the manager is stopping")]
    Stopping,
}

impl From<DropReason> for ProposeError {
    fn from(reason: DropReason) -> Self {
        match reason {
            DropReason::NotLeader { .. } | DropReason::Superseded | DropReason::Transferring { .. } => {
                Self::NotLeader
            }
            DropReason::Busy | DropReason::ChangePending => Self::Busy,
            DropReason::InvalidChange(why) => Self::DriverFailed(why.to_string().into()),
            DropReason::Indeterminate => Self::Indeterminate(IndeterminateReason::CoveredBySnapshot),
            DropReason::EmptyProposal => Self::DriverFailed(Arc::from("the command is empty")),
        }
    }
}

impl From<DropReason> for ChangeError {
    fn from(reason: DropReason) -> Self {
        match reason {
            DropReason::NotLeader { .. } | DropReason::Superseded | DropReason::Transferring { .. } => {
                Self::NotLeader
            }
            DropReason::Busy | DropReason::ChangePending => Self::ChangeInProgress,
            DropReason::InvalidChange(why) => Self::Invalid(why),
            DropReason::Indeterminate | DropReason::EmptyProposal => Self::Indeterminate,
        }
    }
}
