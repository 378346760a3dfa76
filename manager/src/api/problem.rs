//! Errors of a manager's parts as gRPC statuses: one place that says which code and reason each one has.

use tonic::{Code, Status};
use warren_core::{Answer, Refusal};
use warren_proto::status::{
    BEHIND, DISK_FAILS, DISK_FULL, NO_LEADER, NODE_REMOVED, NODE_UNKNOWN, Problem, STOPPING, SUPERSEDED,
};
use warren_security::ContentKeyError;
use warren_types::{ContentId, Violation, Violations};

use crate::store::{Doubt, ProposeError};

/// What can be answered to a caller.
pub trait IntoProblem {
    /// The error as callers see it.
    fn into_problem(self) -> Problem;
}

/// What a node hears that was removed from the cluster. Trying again does not help: it has to join anew, and it stops
/// everything that it runs. So this is only said by who knows for sure.
pub fn node_removed() -> Status {
    let message = "this node was removed from the cluster";
    Problem::new(Code::FailedPrecondition, NODE_REMOVED, message).into()
}

/// What a node hears that is not there, when it may be the manager that has forgotten. The node keeps what it runs.
pub fn node_unknown() -> Status {
    let message = "this manager does not know this node, and does not remember that it was removed: the manager may \
                   have been restored from before the node joined; join again, or restore a newer backup";
    Problem::new(Code::FailedPrecondition, NODE_UNKNOWN, message).into()
}

/// What workers hear from a manager that knows of no leader; another one may.
pub fn no_leader() -> Status {
    let message = "this manager hears of no leader; ask another one";
    Problem::new(Code::Unavailable, NO_LEADER, message).into()
}

/// What whoever is connected hears from a manager that stops.
pub fn stopping() -> Status {
    Problem::new(Code::Unavailable, STOPPING, "this manager stops").into()
}

/// What a node hears that has seen more of the cluster than this manager.
pub fn behind() -> Status {
    let message = "this manager has not applied yet what the node has seen; ask another one";
    Problem::new(Code::Unavailable, BEHIND, message).into()
}

/// What a session ends with when its node has opened a newer one.
pub fn superseded() -> Status {
    Problem::new(Code::Aborted, SUPERSEDED, "the node opened a newer session").into()
}

/// What callers hear of a content that this manager cannot open.
pub fn unreadable(id: ContentId, error: &ContentKeyError) -> Status {
    tracing::error!(content = %id, %error, "a content does not open");
    Problem::new(Code::DataLoss, "CONTENT_UNREADABLE", format!("content {id}: {error}")).into()
}

/// What callers hear when a write is answered with another kind of object than it makes.
pub fn unexpected(answer: &Answer) -> Status {
    let kind = std::mem::discriminant(answer);
    tracing::error!(?kind, "a write was answered with another kind of object");
    let message = "the write was applied, but its answer cannot be shown; look at what it changed";
    Problem::new(Code::Internal, "UNEXPECTED_ANSWER", message).into()
}

/// The status for an error.
pub fn status_of(error: impl IntoProblem) -> Status {
    error.into_problem().into()
}

impl IntoProblem for Violations {
    fn into_problem(self) -> Problem {
        self.into()
    }
}

impl IntoProblem for Violation {
    fn into_problem(self) -> Problem {
        Violations::from(self).into()
    }
}

impl IntoProblem for Refusal {
    fn into_problem(self) -> Problem {
        let (code, reason) = match &self {
            Refusal::Invalid(violations) => return violations.clone().into(),
            Refusal::NotFound { .. } => (Code::NotFound, "NOT_FOUND"),
            Refusal::NoRevision { .. } => (Code::NotFound, "NO_REVISION"),
            Refusal::NothingBefore { .. } => (Code::FailedPrecondition, "NOTHING_BEFORE"),
            Refusal::NodeInUse { .. } => (Code::FailedPrecondition, "NODE_IN_USE"),
            Refusal::TokenUnknown => (Code::PermissionDenied, "TOKEN_UNKNOWN"),
            Refusal::TokenExpired => (Code::PermissionDenied, "TOKEN_EXPIRED"),
            Refusal::TokenUsedUp { .. } => (Code::PermissionDenied, "TOKEN_USED_UP"),
            Refusal::TokenRole { .. } => (Code::PermissionDenied, "TOKEN_ROLE"),
            Refusal::TooManyTokens { .. } => (Code::ResourceExhausted, "TOO_MANY_TOKENS"),
            Refusal::Ambiguous { .. } => (Code::InvalidArgument, "AMBIGUOUS"),
            Refusal::AlreadyExists { .. } => (Code::AlreadyExists, "ALREADY_EXISTS"),
            Refusal::ChangedSinceCreated { .. } => (Code::AlreadyExists, "CHANGED_SINCE_CREATED"),
            Refusal::PortTaken { .. } => (Code::AlreadyExists, "PORT_TAKEN"),
            Refusal::VersionConflict { .. } => (Code::Aborted, "VERSION_CONFLICT"),
            Refusal::StaleRevision { .. } => (Code::Aborted, "STALE_REVISION"),
            Refusal::Removing { .. } => (Code::FailedPrecondition, "REMOVING"),
            Refusal::InUse { .. } => (Code::FailedPrecondition, "IN_USE"),
            Refusal::ContentInUse { .. } => (Code::FailedPrecondition, "CONTENT_IN_USE"),
            Refusal::ContentGone { .. } => (Code::FailedPrecondition, "CONTENT_GONE"),
            Refusal::TooManyContents { .. } => (Code::ResourceExhausted, "TOO_MANY_CONTENTS"),
            Refusal::ContentsTooLarge { .. } => (Code::ResourceExhausted, "CONTENTS_TOO_LARGE"),
            Refusal::VolumeInUse { .. } => (Code::FailedPrecondition, "VOLUME_IN_USE"),
            Refusal::VolumeRemoving { .. } => (Code::FailedPrecondition, "VOLUME_REMOVING"),
            Refusal::VolumeStays { .. } => (Code::FailedPrecondition, "VOLUME_STAYS"),
            Refusal::VolumeUnreachable { .. } => (Code::FailedPrecondition, "VOLUME_UNREACHABLE"),
            Refusal::VolumeLost { .. } => (Code::FailedPrecondition, "VOLUME_LOST"),
            Refusal::TooManyVolumes { .. } => (Code::ResourceExhausted, "TOO_MANY_VOLUMES"),
            Refusal::AddressTaken { .. } => (Code::AlreadyExists, "ADDRESS_TAKEN"),
            Refusal::LastManager { .. } => (Code::FailedPrecondition, "LAST_MANAGER"),
            Refusal::ManagerRemoving { .. } => (Code::FailedPrecondition, "MANAGER_REMOVING"),
            Refusal::ManagerStays { .. } => (Code::FailedPrecondition, "MANAGER_STAYS"),
            Refusal::NoManagers => (Code::Unavailable, "NO_MANAGERS"),
            Refusal::TooManyManagers { .. } => (Code::ResourceExhausted, "TOO_MANY_MANAGERS"),
            Refusal::LevelTooLow { .. } => (Code::FailedPrecondition, "LEVEL_TOO_LOW"),
            Refusal::NoCluster => (Code::FailedPrecondition, "NO_CLUSTER"),
            Refusal::OtherCluster { .. } => (Code::FailedPrecondition, "OTHER_CLUSTER"),
            Refusal::StalePlan { .. } => (Code::Aborted, "STALE_PLAN"),
            Refusal::StaleSession { .. } => (Code::Aborted, "STALE_SESSION"),
            Refusal::Exhausted { .. } => (Code::ResourceExhausted, "EXHAUSTED"),
            Refusal::AlreadyApplied { .. } => (Code::Internal, "ALREADY_APPLIED"),
        };
        Problem::new(code, reason, self)
    }
}

impl IntoProblem for ProposeError {
    fn into_problem(self) -> Problem {
        let (code, reason) = match &self {
            ProposeError::Rejected(refusal) => return refusal.clone().into_problem(),
            ProposeError::NotLeader => (Code::Unavailable, "NOT_LEADER"),
            ProposeError::NoLeader(_) => (Code::Unavailable, NO_LEADER),
            ProposeError::Unconfirmed(Doubt::Late(_) | Doubt::Held(..)) => {
                (Code::DeadlineExceeded, "UNCONFIRMED")
            }
            ProposeError::Unconfirmed(Doubt::Overtaken | Doubt::Ended | Doubt::Unanswered(_)) => {
                (Code::Unavailable, "UNCONFIRMED")
            }
            // Trying again in a moment does not make room.
            ProposeError::Held(held) | ProposeError::NotCurrent(held) if held.full => {
                (Code::ResourceExhausted, DISK_FULL)
            }
            ProposeError::Held(_) | ProposeError::NotCurrent(_) => (Code::Unavailable, DISK_FAILS),
            ProposeError::Busy => (Code::ResourceExhausted, "BUSY"),
            ProposeError::Stopping => (Code::Unavailable, STOPPING),
            ProposeError::Log(_) => (Code::Unavailable, "LOG"),
        };
        Problem::new(code, reason, self)
    }
}
