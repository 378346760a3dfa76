//! Why a write, a change of members or of the leader was not carried out, or may not have been.

use std::sync::Arc;
use std::time::Duration;

use warren_consensus::InvalidChange;
use warren_core::Refusal;
use warren_types::MemberId;

use super::Held;

/// Why a write was not carried out, or may not have been.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ProposeError {
    /// The state says no.
    #[error("{0}")]
    Rejected(Refusal),
    /// Only the leader proposes. The write did not happen.
    #[error("this manager is not the leader; ask the leader or try again in a moment")]
    NotLeader,
    /// Nobody leads who could be reached, for so long. The write or read did not happen.
    #[error(
        "no manager led within {0:?}, so nothing was read or changed; a majority of the managers that vote must run \
         and reach each other"
    )]
    NoLeader(Duration),
    /// The write may or may not have happened; repeating it is safe.
    #[error("{0}; the write may still happen, and repeating it is safe")]
    Unconfirmed(Doubt),
    /// Too much waits to be committed. The write did not happen.
    #[error("the manager has more writes waiting than it takes; try again in a moment")]
    Busy,
    /// The manager stops. The write did not happen.
    #[error("the manager is stopping")]
    Stopping,
    /// The log cannot be written for now. The write did not happen.
    #[error("{}; nothing was changed", .0.why)]
    Held(Arc<Held>),
    /// The log cannot be written for now, and others may have committed what is not applied here. Nothing was read.
    #[error(
        "{}, so it cannot say what is newest, and nothing was read; ask another manager, or read what this one has \
         with --stale", .0.why
    )]
    NotCurrent(Arc<Held>),
    /// The manager ended because of its log, or of a bug. The write did not happen.
    #[error("the manager cannot carry it out: {0}")]
    Log(Arc<str>),
}

/// Why nobody knows what becomes of a write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Doubt {
    /// It takes too long.
    #[error("the write was not confirmed within {0:?}")]
    Late(Duration),
    /// It waits for the disk.
    #[error("the write was not confirmed within {0:?}, because {why}", why = .1.why)]
    Held(Duration, Arc<Held>),
    /// A later leader's snapshot covers it.
    #[error("another manager took over before the write was confirmed")]
    Overtaken,
    /// The manager ended first.
    #[error("the manager ended before the write was confirmed")]
    Ended,
    /// It was given to the leader, which did not say what became of it; these are the words for why.
    #[error("the leader did not confirm the write: {0}")]
    Unanswered(Arc<str>),
}

/// Why the members were not changed, or may not have been.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// Only the leader changes them.
    #[error("this manager is not the leader; ask the leader")]
    NotLeader,
    /// An earlier change is not over yet, too much waits to be committed, or the leader has just been elected.
    #[error("another change of the managers is under way; try again in a moment")]
    Pending,
    /// The members cannot be changed like this.
    #[error("the managers cannot be changed like this: {0}")]
    Invalid(InvalidChange),
    /// It may still happen.
    #[error("the change of the managers is not confirmed, and may still happen")]
    Unconfirmed,
    /// The log cannot be written for now.
    #[error("{}; nothing was changed", .0.why)]
    Held(Arc<Held>),
    /// The manager stops.
    #[error("the manager is stopping")]
    Stopping,
}

/// Why this manager did not hand over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// It does not lead.
    #[error("this manager is not the leader; ask the leader")]
    NotLeader,
    /// Only a voter can lead, and only another one can take over.
    #[error("manager {0} is not another manager that votes, so it cannot lead")]
    NotVoter(MemberId),
    /// No other manager votes.
    #[error("there is no other manager that votes, so nobody can take over")]
    Alone,
    /// The other one did not take over; this one leads on.
    #[error(
        "nobody took over within {0:?}; this manager leads on. Is the other one up, and near the end of the log?"
    )]
    Late(Duration),
    /// The manager stops.
    #[error("the manager is stopping")]
    Stopping,
}
