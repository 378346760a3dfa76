//! Errors of a manager's parts as gRPC statuses: one place that says which code and reason each one has.

use tonic::{Code, Status};
use warren_core::Refusal;
use warren_proto::status::{NODE_REMOVED, Problem};
use warren_types::{Violation, Violations};

use crate::store::{Doubt, ProposeError};

/// What can be answered to a caller.
pub trait IntoProblem {
    /// The error as callers see it.
    fn into_problem(self) -> Problem;
}

/// What a node hears that was removed from the cluster. Trying again does not help: it has to join anew.
pub fn node_removed() -> Status {
    let message = "this node was removed from the cluster; join again if it shall come back";
    Problem::new(Code::FailedPrecondition, NODE_REMOVED, message).into()
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
            Refusal::TooManyTokens { .. } => (Code::ResourceExhausted, "TOO_MANY_TOKENS"),
            Refusal::Ambiguous { .. } => (Code::InvalidArgument, "AMBIGUOUS"),
            Refusal::AlreadyExists { .. } => (Code::AlreadyExists, "ALREADY_EXISTS"),
            Refusal::PortTaken { .. } => (Code::AlreadyExists, "PORT_TAKEN"),
            Refusal::VersionConflict { .. } => (Code::Aborted, "VERSION_CONFLICT"),
            Refusal::StaleRevision { .. } => (Code::Aborted, "STALE_REVISION"),
            Refusal::Removing { .. } => (Code::FailedPrecondition, "REMOVING"),
            Refusal::InUse { .. } => (Code::FailedPrecondition, "IN_USE"),
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
            ProposeError::Unconfirmed(Doubt::Late(_) | Doubt::Held(..)) => {
                (Code::DeadlineExceeded, "UNCONFIRMED")
            }
            ProposeError::Unconfirmed(Doubt::Overtaken | Doubt::Ended) => (Code::Unavailable, "UNCONFIRMED"),
            // Trying again in a moment does not make room.
            ProposeError::Held(held) if held.full => (Code::ResourceExhausted, "DISK_FULL"),
            ProposeError::Held(_) => (Code::Unavailable, "DISK_FAILS"),
            ProposeError::Busy => (Code::ResourceExhausted, "BUSY"),
            ProposeError::Stopping => (Code::Unavailable, "STOPPING"),
            ProposeError::Log(_) => (Code::Unavailable, "LOG"),
        };
        Problem::new(code, reason, self)
    }
}
