//! The queues between the store and the driver.
//!
//! Local writes and requests wait for room, which throttles their callers. Messages from other managers are
//! dropped when too many are queued; raft tolerates message loss.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use warren_consensus::{MemberChange, Message, MessageKind};
use warren_core::State;
use warren_replica::AppliedWrite;
use warren_types::MemberId;

use super::{ChangeError, KeyRenewalError, ProposeError};

/// Maximum number of queued requests, and of queued inputs from other managers.
const MAX_QUEUED_REQUESTS: usize = 1024;
const MAX_QUEUED_INPUTS: usize = 4096;
/// Maximum bytes of entries in queued messages.
const MAX_QUEUED_BYTES: usize = 64 << 20;

/// A command queued for the driver.
pub struct QueuedProposal {
    /// The encoded command as it is stored in the log.
    pub data: Bytes,
    /// Receives the result after the command is applied here. If the receiver is dropped before the driver
    /// takes the command, it is not proposed.
    pub reply: oneshot::Sender<Result<AppliedWrite, ProposeError>>,
}

/// A local request to the driver other than a write.
pub enum DriverRequest {
    /// A read index request: answered when the state as committed now is published.
    Read(oneshot::Sender<()>),
    /// A membership change.
    ChangeMembers {
        /// The change.
        change: MemberChange,
        /// Receives the result after the change is applied here.
        reply: oneshot::Sender<Result<(), ChangeError>>,
    },
    /// A leadership transfer; `None`: to the voter with the longest log.
    TransferLeadership(Option<MemberId>),
    /// A renewal of the data key; answered when no earlier one is left.
    RenewDataKey(oneshot::Sender<Result<(), KeyRenewalError>>),
}

/// Input from other managers.
pub enum RaftInput {
    /// A raft message.
    Message(Message),
    /// A snapshot that is durable here, with its message.
    SnapshotReceived {
        /// The message.
        message: Message,
        /// The state in the snapshot.
        state: Box<State>,
        /// Size of the snapshot in bytes.
        bytes: u64,
        /// Notified when raft has applied or discarded the snapshot.
        taken: oneshot::Sender<()>,
    },
    /// A peer was unreachable.
    PeerUnreachable(MemberId),
    /// The result of sending a snapshot.
    SnapshotSent {
        /// The receiver.
        to: MemberId,
        /// Whether it has the snapshot.
        delivered: bool,
    },
}

/// The driver's end.
pub struct DriverInbox {
    /// Commands to propose.
    pub proposals: mpsc::Receiver<QueuedProposal>,
    /// Other local requests.
    pub requests: mpsc::Receiver<DriverRequest>,
    /// Input from other managers. Call [`DriverInbox::release`] for each message.
    pub inputs: mpsc::Receiver<RaftInput>,
    queued_bytes: Arc<AtomicUsize>,
}

impl DriverInbox {
    /// Frees the queue space of a message taken from `inputs`.
    pub fn release(&self, message: &Message) {
        self.queued_bytes.fetch_sub(size(message), Ordering::Relaxed);
    }
}

/// The store's end.
#[derive(Clone)]
pub(super) struct DriverSender {
    pub proposals: mpsc::Sender<QueuedProposal>,
    pub requests: mpsc::Sender<DriverRequest>,
    pub inputs: mpsc::Sender<RaftInput>,
    queued_bytes: Arc<AtomicUsize>,
}

impl DriverSender {
    /// Both ends; at most `queue` proposals are queued.
    pub fn new(queue: usize) -> (Self, DriverInbox) {
        let (proposals, proposed) = mpsc::channel(queue);
        let (requests, requested) = mpsc::channel(MAX_QUEUED_REQUESTS);
        let (inputs, queued_inputs) = mpsc::channel(MAX_QUEUED_INPUTS);
        let queued_bytes = Arc::new(AtomicUsize::new(0));
        let inbox = DriverInbox {
            proposals: proposed,
            requests: requested,
            inputs: queued_inputs,
            queued_bytes: queued_bytes.clone(),
        };
        (Self { proposals, requests, inputs, queued_bytes }, inbox)
    }

    /// Queues a message if there is room. Snapshot messages are dropped: they must come with their state.
    pub fn send_message(&self, message: Message) {
        let size = size(&message);
        if message.kind == MessageKind::Snapshot
            || self.queued_bytes.load(Ordering::Relaxed) > MAX_QUEUED_BYTES
        {
            return;
        }
        self.queued_bytes.fetch_add(size, Ordering::Relaxed);
        if self.inputs.try_send(RaftInput::Message(message)).is_err() {
            self.queued_bytes.fetch_sub(size, Ordering::Relaxed);
        }
    }
}

fn size(message: &Message) -> usize {
    message.entries.iter().map(|entry| entry.data.len()).sum()
}

#[cfg(test)]
mod tests;
