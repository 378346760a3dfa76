//! Where a manager sends the write of a caller, and what the caller is answered.

use std::sync::Arc;
use std::time::Duration;

use warren_core::{AppliedIndex, CommandResponse};
use warren_types::MemberId;

use crate::{AppliedWrite, IndeterminateReason, ProposeError, ReplicaRole, WriteStall};

/// Delay before the next attempt after a leader could not accept a write; a new leader ends it early.
pub const RETRY_DELAY: Duration = Duration::from_millis(50);

/// Where the next attempt of a write goes.
#[derive(Debug)]
pub enum WriteRoute {
    /// This manager proposes it.
    Local,
    /// The leader proposes it.
    Forward(MemberId),
    /// Nowhere.
    None(AttemptResult),
}

/// The result of one attempt.
#[derive(Debug)]
pub enum AttemptResult {
    /// The answer to the caller.
    Done(Result<CommandResponse, ProposeError>),
    /// It was certainly not proposed and is retried until the caller's deadline.
    Retry(ProposeError),
}

/// The next attempt of a write on the manager `own`, whose log write may be stalled.
pub fn write_route(
    role: &ReplicaRole,
    own: MemberId,
    stall: Option<&Arc<WriteStall>>,
    is_stopping: bool,
) -> WriteRoute {
    let fail = |error| WriteRoute::None(AttemptResult::Done(Err(error)));
    match (stall, role.leader_id) {
        (Some(stall), _) => fail(ProposeError::WriteStalled(stall.clone())),
        _ if role.is_leader => WriteRoute::Local,
        _ if is_stopping => fail(ProposeError::Stopping),
        (None, Some(leader)) if leader != own => WriteRoute::Forward(leader),
        _ => WriteRoute::None(AttemptResult::Retry(ProposeError::NotLeader)),
    }
}

impl AttemptResult {
    /// The result of a proposal on this manager.
    pub fn of_proposal(written: Result<AppliedWrite, ProposeError>) -> Self {
        match written {
            Err(error @ (ProposeError::NotLeader | ProposeError::Busy)) => Self::Retry(error),
            Err(error) => Self::Done(Err(error)),
            Ok(written) => Self::Done(written.result.map_err(ProposeError::Rejected)),
        }
    }

    /// The position at which the leader applied a forwarded write; its outcome comes from this manager's own
    /// application of the entry.
    ///
    /// # Errors
    /// The result of the attempt.
    pub fn of_forward(
        position: Option<Result<AppliedIndex, ProposeError>>,
    ) -> Result<AppliedIndex, AttemptResult> {
        match position {
            Some(Ok(position)) => Ok(position),
            Some(Err(error @ (ProposeError::Indeterminate(_) | ProposeError::Rejected(_)))) => {
                Err(Self::Done(Err(error)))
            }
            Some(Err(error)) => Err(Self::Retry(error)),
            None => {
                let reason = IndeterminateReason::LeaderUnanswered("empty response".into());
                Err(Self::Done(Err(ProposeError::Indeterminate(reason))))
            }
        }
    }
}

/// The answer at the caller's deadline, `timeout` after the call, if the last attempt must be retried for `reason`.
pub fn deadline_error(reason: ProposeError, timeout: Duration) -> ProposeError {
    match reason {
        ProposeError::NotLeader | ProposeError::Stopping => ProposeError::NoLeader(timeout),
        reason => reason,
    }
}

/// The answer at the caller's deadline, `timeout` after the call, if an attempt is in progress.
pub fn timeout_error(stall: Option<&Arc<WriteStall>>, timeout: Duration) -> ProposeError {
    ProposeError::Indeterminate(match stall {
        Some(stall) => IndeterminateReason::WriteStalled(timeout, stall.clone()),
        None => IndeterminateReason::Timeout(timeout),
    })
}

impl ProposeError {
    /// Whether a write that must be stored however long the disk or an election takes is repeated after this error. The
    /// caller of such a write has no deadline.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::WriteStalled(_) | Self::NoLeader(_) | Self::Busy => true,
            Self::Indeterminate(reason) => *reason != IndeterminateReason::DriverEnded,
            Self::Rejected(_) | Self::NotLeader | Self::Stopping | Self::Stale(_) | Self::DriverFailed(_) => {
                false
            }
        }
    }
}
