//! The ways to other managers, as the driver and the store need them. What is behind them knows connections; nothing
//! here does.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use warren_consensus::{ConfState, Message};
use warren_core::{Applied, Command};
use warren_types::MemberId;

use crate::store::ProposeError;

/// The driver's way out. It is called on the driver's thread, so it must never block, nor take long. It is dropped when
/// the driver ended: until then it must work, since a leader that stops hands over first.
pub trait Wire: Send {
    /// Sends each to its member, in order if it can. What does not go out is lost, which raft expects; but for every
    /// snapshot ([`warren_consensus::MessageKind::Snapshot`]) `Store::snapshot_sent` must follow in the end.
    fn send(&mut self, messages: Vec<Message>);

    /// These are the members from now on. Called once at the start as well.
    fn members(&mut self, members: &ConfState);
}

/// What a leader says of each command that it was given: where it applied it, or why not.
pub type Forwarded = Vec<Result<Applied, ProposeError>>;

/// The store's way to the leader.
pub trait Leader: Send + Sync {
    /// Gives `commands` to the member `leader` to propose, which it does not begin any more after `within`. One answer
    /// for each, in their order:
    /// * applied at a place of the log, with whatever outcome, which everybody finds out by applying it;
    /// * `NotLeader`, `Busy`, `Stopping`, `Held` or `NoLeader` if it is certain that it was not proposed;
    /// * `Unconfirmed` in every other case, such as a connection that broke after the command was sent.
    fn forward(
        &self,
        leader: MemberId,
        commands: Vec<Command>,
        within: Duration,
    ) -> Pin<Box<dyn Future<Output = Forwarded> + Send>>;
}

/// The ways of a manager that knows no other: they lead nowhere.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nowhere;

impl Wire for Nowhere {
    fn send(&mut self, _: Vec<Message>) {}

    fn members(&mut self, _: &ConfState) {}
}

impl Leader for Nowhere {
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
