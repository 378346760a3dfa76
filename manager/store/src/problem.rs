//! Maps the errors of the manager's parts to gRPC statuses: the only place that assigns codes and reasons.

use tonic::{Code, Status};
use warren_core::{CommandResponse, Refusal};
use warren_proto::status::{
    DISK_FAILED, DISK_FULL, MANAGER_BEHIND, MANAGER_STOPPING, NO_LEADER, NODE_REMOVED, NODE_UNKNOWN, Problem,
    SESSION_SUPERSEDED,
};
use warren_security::SecretObjectKeyError;
use warren_types::{SecretObjectId, Violation, Violations};

use crate::store::{IndeterminateReason, ProposeError, TransferError};

/// An error that can be returned to a caller.
pub trait IntoProblem {
    /// Converts the error into its gRPC form.
    fn into_problem(self) -> Problem;
}

/// The error for a removed node. Retrying does not help: the node must join again, and it stops all its
/// tasks. So it is returned only when the removal is certain.
pub fn node_removed() -> Status {
    let message = "this node was removed from the cluster";
    Problem::new(Code::FailedPrecondition, NODE_REMOVED, message).into()
}

/// The error for a node that is not in the state, when the state may be an older one. The node keeps its
/// tasks.
pub fn node_unknown() -> Status {
    let message = "this manager does not know this node and has no record of its removal: the manager may \
                   have been restored from a backup older than the node; join again, or restore a newer backup";
    Problem::new(Code::FailedPrecondition, NODE_UNKNOWN, message).into()
}

/// The error for workers when no leader is known; another manager may know one.
pub fn leader_unknown() -> Status {
    let message = "no known leader on this manager; ask another manager";
    Problem::new(Code::Unavailable, NO_LEADER, message).into()
}

/// The error for open connections when the manager stops.
pub fn manager_stopping() -> Status {
    Problem::new(Code::Unavailable, MANAGER_STOPPING, "this manager is stopping").into()
}

/// The error for a node that has seen a newer state than this manager's.
pub fn manager_behind() -> Status {
    let message = "this manager has not applied the newest state that the node has seen; ask another manager";
    Problem::new(Code::Unavailable, MANAGER_BEHIND, message).into()
}

/// Ends a session whose node has opened a newer one.
pub fn session_superseded() -> Status {
    Problem::new(Code::Aborted, SESSION_SUPERSEDED, "the node opened a newer session").into()
}

/// The error for a secret object that cannot be decrypted.
pub fn secret_object_unreadable(id: SecretObjectId, error: &SecretObjectKeyError) -> Status {
    tracing::error!(object = %id, %error, "decrypting secret object failed");
    Problem::new(Code::DataLoss, "SECRET_OBJECT_UNREADABLE", format!("secret object {id}: {error}")).into()
}

/// The error for a write whose response has another object kind than expected.
pub fn unexpected_answer(answer: &CommandResponse) -> Status {
    let kind = std::mem::discriminant(answer);
    tracing::error!(?kind, "write returned an unexpected kind of object");
    let message = "the write was applied, but its response cannot be shown; inspect the object";
    Problem::new(Code::Internal, "UNEXPECTED_RESPONSE", message).into()
}

/// Converts an error into a status.
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
            Refusal::RevisionNotFound { .. } => (Code::NotFound, "REVISION_NOT_FOUND"),
            Refusal::NoEarlierRevision { .. } => (Code::FailedPrecondition, "NO_PREVIOUS_REVISION"),
            Refusal::NodeInUse { .. } => (Code::FailedPrecondition, "NODE_IN_USE"),
            Refusal::TokenNotFound => (Code::PermissionDenied, "TOKEN_NOT_FOUND"),
            Refusal::TokenExpired => (Code::PermissionDenied, "TOKEN_EXPIRED"),
            Refusal::TokenExhausted { .. } => (Code::PermissionDenied, "TOKEN_EXHAUSTED"),
            Refusal::TokenRoleMismatch { .. } => (Code::PermissionDenied, "TOKEN_ROLE_MISMATCH"),
            Refusal::TooManyReplicas { .. } => (Code::FailedPrecondition, "TOO_MANY_REPLICAS"),
            Refusal::TooManyTokens { .. } => (Code::ResourceExhausted, "TOO_MANY_TOKENS"),
            Refusal::TooManyUsers { .. } => (Code::ResourceExhausted, "TOO_MANY_USERS"),
            Refusal::LoginTokenNotFound => (Code::PermissionDenied, "LOGIN_TOKEN_NOT_FOUND"),
            Refusal::LoginTokenExpired => (Code::PermissionDenied, "LOGIN_TOKEN_EXPIRED"),
            Refusal::UserExpired { .. } => (Code::PermissionDenied, "USER_EXPIRED"),
            Refusal::TooManyUserKeys { .. } => (Code::ResourceExhausted, "TOO_MANY_USER_KEYS"),
            Refusal::Ambiguous { .. } | Refusal::AmbiguousName { .. } => (Code::InvalidArgument, "AMBIGUOUS"),
            Refusal::NothingNamed { .. } | Refusal::NoCertificate { .. } => (Code::NotFound, "NOT_FOUND"),
            Refusal::NoAnswerFor { .. } => (Code::InvalidArgument, "INVALID_ARGUMENT"),
            Refusal::AlreadyExists { .. } => (Code::AlreadyExists, "ALREADY_EXISTS"),
            Refusal::ChangedSinceCreated { .. } => (Code::AlreadyExists, "CHANGED_SINCE_CREATED"),
            Refusal::PortTaken { .. } => (Code::AlreadyExists, "PORT_TAKEN"),
            Refusal::AutomaticPortsExhausted { .. } => (Code::ResourceExhausted, "PORTS_EXHAUSTED"),
            Refusal::VersionConflict { .. } => (Code::Aborted, "VERSION_CONFLICT"),
            Refusal::StaleRevision { .. } => (Code::Aborted, "STALE_REVISION"),
            Refusal::ServiceRemoving { .. } => (Code::FailedPrecondition, "SERVICE_REMOVING"),
            Refusal::BootstrapService { .. } => (Code::FailedPrecondition, "BOOTSTRAP_SERVICE"),
            Refusal::ServiceInUse { .. } => (Code::FailedPrecondition, "SERVICE_IN_USE"),
            Refusal::SecretObjectInUse { .. } => (Code::FailedPrecondition, "SECRET_OBJECT_IN_USE"),
            Refusal::SecretObjectVersionGone { .. } => {
                (Code::FailedPrecondition, "SECRET_OBJECT_VERSION_GONE")
            }
            Refusal::TooManySecretObjects { .. } => (Code::ResourceExhausted, "TOO_MANY_SECRET_OBJECTS"),
            Refusal::SecretObjectsTooLarge { .. } => (Code::ResourceExhausted, "SECRET_OBJECTS_TOO_LARGE"),
            Refusal::SecretObjectKeyReplaced => (Code::Unavailable, "SECRET_OBJECT_KEY_REPLACED"),
            Refusal::VolumeInUse { .. } => (Code::FailedPrecondition, "VOLUME_IN_USE"),
            Refusal::VolumeRemoving { .. } => (Code::FailedPrecondition, "VOLUME_REMOVING"),
            Refusal::VolumeReleased { .. } => (Code::FailedPrecondition, "VOLUME_RELEASED"),
            Refusal::VolumeNotRemoving { .. } => (Code::FailedPrecondition, "VOLUME_NOT_REMOVING"),
            Refusal::VolumeUnreachable { .. } => (Code::FailedPrecondition, "VOLUME_UNREACHABLE"),
            Refusal::VolumeLost { .. } => (Code::FailedPrecondition, "VOLUME_LOST"),
            Refusal::TooManyVolumes { .. } => (Code::ResourceExhausted, "TOO_MANY_VOLUMES"),
            Refusal::NetworkInUse { .. } => (Code::FailedPrecondition, "NETWORK_IN_USE"),
            Refusal::NetworkGone { .. } => (Code::FailedPrecondition, "NETWORK_GONE"),
            Refusal::DefaultNetwork => (Code::FailedPrecondition, "DEFAULT_NETWORK"),
            Refusal::TooManyNetworks => (Code::ResourceExhausted, "TOO_MANY_NETWORKS"),
            Refusal::VirtualAddressesExhausted { .. } => {
                (Code::ResourceExhausted, "VIRTUAL_ADDRESSES_EXHAUSTED")
            }
            Refusal::NodeNumbersExhausted => (Code::ResourceExhausted, "NODE_NUMBERS_EXHAUSTED"),
            Refusal::ManagerAddressTaken { .. } => (Code::AlreadyExists, "ADDRESS_TAKEN"),
            Refusal::LastManager { .. } => (Code::FailedPrecondition, "LAST_MANAGER"),
            Refusal::ManagerRemoving { .. } => (Code::FailedPrecondition, "MANAGER_REMOVING"),
            Refusal::ManagerNotRemoving { .. } => (Code::FailedPrecondition, "MANAGER_NOT_REMOVING"),
            Refusal::NoRegisteredManager => (Code::Unavailable, "NO_REGISTERED_MANAGER"),
            Refusal::TooManyManagers { .. } => (Code::ResourceExhausted, "TOO_MANY_MANAGERS"),
            Refusal::FeatureLevelTooLow { .. } => (Code::FailedPrecondition, "FEATURE_LEVEL_TOO_LOW"),
            Refusal::NoCluster => (Code::FailedPrecondition, "NO_CLUSTER"),
            Refusal::ClusterMismatch { .. } => (Code::FailedPrecondition, "CLUSTER_MISMATCH"),
            Refusal::StalePlan { .. } => (Code::Aborted, "STALE_PLAN"),
            Refusal::StaleSession { .. } => (Code::Aborted, "STALE_SESSION"),
            Refusal::SubnetsExhausted { .. } => (Code::ResourceExhausted, "SUBNETS_EXHAUSTED"),
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
            ProposeError::Indeterminate(
                IndeterminateReason::Timeout(_) | IndeterminateReason::WriteStalled(..),
            ) => (Code::DeadlineExceeded, "UNCONFIRMED"),
            ProposeError::Indeterminate(
                IndeterminateReason::CoveredBySnapshot
                | IndeterminateReason::DriverEnded
                | IndeterminateReason::LeaderUnanswered(_),
            ) => (Code::Unavailable, "UNCONFIRMED"),
            // Retrying soon does not make room.
            ProposeError::WriteStalled(stall) | ProposeError::Stale(stall) if stall.is_disk_full => {
                (Code::ResourceExhausted, DISK_FULL)
            }
            ProposeError::WriteStalled(_) | ProposeError::Stale(_) => (Code::Unavailable, DISK_FAILED),
            ProposeError::Busy => (Code::ResourceExhausted, "BUSY"),
            ProposeError::Stopping => (Code::Unavailable, MANAGER_STOPPING),
            ProposeError::DriverFailed(_) => (Code::Unavailable, "LOG"),
        };
        Problem::new(code, reason, self)
    }
}

impl IntoProblem for TransferError {
    fn into_problem(self) -> Problem {
        let (code, reason) = match &self {
            TransferError::NotLeader => (Code::Unavailable, "NOT_LEADER"),
            TransferError::NotVoter(_) => (Code::FailedPrecondition, "NOT_A_VOTER"),
            TransferError::NoOtherVoter => (Code::FailedPrecondition, "ALONE"),
            TransferError::Timeout(_) => (Code::DeadlineExceeded, "LEADERSHIP_NOT_TRANSFERRED"),
            TransferError::Stopping => (Code::Unavailable, MANAGER_STOPPING),
        };
        Problem::new(code, reason, self)
    }
}
