//! Writes that are forwarded to the leader, independent of connections.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use warren_core::{AppliedIndex, Command};
use warren_types::MemberId;

use super::ProposeError;

/// The leader's result for each forwarded command: its log position, or the error.
pub type Forwarded = Vec<Result<AppliedIndex, ProposeError>>;

/// Forwards writes of the store to the leader.
pub trait LeaderClient: Send + Sync {
    /// Forwards `commands` to the member `leader`, which does not propose them after `within`. One result per
    /// command, in order:
    /// * applied at a log position, with any outcome, which each member gets by applying the entry;
    /// * `NotLeader`, `Busy`, `Stopping`, `WriteStalled` or `NoLeader` if it was certainly not proposed;
    /// * `Indeterminate` in all other cases, such as a connection that broke after the command was sent.
    fn forward(
        &self,
        leader: MemberId,
        commands: Vec<Command>,
        within: Duration,
    ) -> Pin<Box<dyn Future<Output = Forwarded> + Send>>;
}

/// A transport without peers; drops everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoTransport;

impl LeaderClient for NoTransport {
    fn forward(
        &self,
        _: MemberId,
        commands: Vec<Command>,
        _: Duration,
    ) -> Pin<Box<dyn Future<Output = Forwarded> + Send>> {
        let refused = commands.iter().map(|_| Err(ProposeError::NotLeader)).collect();
        Box::pin(std::future::ready(refused))
    }
}
