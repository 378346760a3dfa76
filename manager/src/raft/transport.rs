//! The transport of the driver and the store to other managers, independent of connections.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use warren_consensus::{ConfState, Message};
use warren_core::{AppliedIndex, Command};
use warren_types::MemberId;

use crate::store::ProposeError;

/// Sends messages of the driver. Called on the driver's thread, so it must neither block nor take long. It is
/// dropped when the driver ended: until then it must work, since a stopping leader transfers its leadership
/// first.
pub trait RaftTransport: Send {
    /// Sends each message to its member, in order if possible. Messages may be lost; but for every snapshot
    /// ([`warren_consensus::MessageKind::Snapshot`]) `Store::report_snapshot` must be called eventually.
    fn send(&mut self, messages: Vec<Message>);

    /// Sets the members. Called once at the start as well.
    fn set_members(&mut self, members: &ConfState);
}

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

impl RaftTransport for NoTransport {
    fn send(&mut self, _: Vec<Message>) {}

    fn set_members(&mut self, _: &ConfState) {}
}

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
