//! Sessions of workers: whether one opens, and how long it may be silent.

use std::time::Duration;

use warren_core::session::was_removed;
use warren_core::{CommandResponse, Refusal, State};
use warren_types::{AssignmentVersion, NodeId};

use crate::ProposeError;

/// Time without a frame after which a session ends; three syncs plus slack.
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(12);
/// How long a new session waits until this manager has applied what its node has seen.
pub const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(5);

/// The result of opening a session.
#[derive(Debug)]
pub enum SessionAnswer {
    /// It has this number.
    Opened(u64),
    /// The node was certainly removed: it must join again.
    NodeRemoved,
    /// The node is not in the state and has no record of its removal: it keeps its tasks.
    NodeUnknown,
    /// It was not opened, or that is unknown.
    Failed(ProposeError),
    /// A bug: not the response to a new session.
    Unexpected(CommandResponse),
}

impl SessionAnswer {
    /// The answer to `node`, which has seen the version `has`, from the answer to its
    /// [`warren_core::Command::OpenSession`] and the newest state.
    pub fn new(
        answer: Result<CommandResponse, ProposeError>,
        state: &State,
        node: &NodeId,
        has: AssignmentVersion,
    ) -> Self {
        match answer {
            Ok(CommandResponse::Session { number }) => Self::Opened(number),
            Ok(other) => Self::Unexpected(other),
            Err(ProposeError::Rejected(Refusal::NotFound { .. })) if was_removed(state, node, has) => {
                Self::NodeRemoved
            }
            Err(ProposeError::Rejected(Refusal::NotFound { .. })) => Self::NodeUnknown,
            Err(error) => Self::Failed(error),
        }
    }
}
