//! The transport of the driver to other managers, independent of connections.

use warren_consensus::{ConfState, Message};

use crate::store::NoTransport;

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

impl RaftTransport for NoTransport {
    fn send(&mut self, _: Vec<Message>) {}

    fn set_members(&mut self, _: &ConfState) {}
}
