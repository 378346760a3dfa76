//! What the driver is told, and how it gets there.
//!
//! Writes, and what people ask, wait for room: whoever sends them is held back. What other managers say does not: when
//! too much of it waits it is dropped, which raft expects of any network.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use warren_consensus::{MemberChange, Message, MessageKind};
use warren_core::{Applied, Outcome, State};
use warren_types::MemberId;

use super::{ChangeError, ProposeError};

/// Requests that may wait for the driver, and things heard from others.
const REQUESTS: usize = 1024;
const HEARD: usize = 4096;
/// Bytes of entries in messages that may wait for the driver.
const HEARD_BYTES: usize = 64 << 20;

/// A command on its way to the driver.
pub struct Proposal {
    /// The command, as it will stand in the log.
    pub data: Bytes,
    /// Where the answer goes, after it was applied here. When nobody waits any more before the driver comes to it, it
    /// is not proposed.
    pub reply: oneshot::Sender<Result<Written, ProposeError>>,
}

/// A command that was applied here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Its place in the log.
    pub place: Applied,
    /// What came of it.
    pub outcome: Outcome,
}

/// What somebody here wants besides writing.
pub enum Request {
    /// To read what is committed by now: answered once it is published.
    Read(oneshot::Sender<()>),
    /// To change the members.
    Change {
        /// How.
        change: MemberChange,
        /// Where the answer goes, after it was applied here.
        reply: oneshot::Sender<Result<(), ChangeError>>,
    },
    /// That another member leads; `None`: whichever is furthest.
    Transfer(Option<MemberId>),
}

/// What comes from other managers.
pub enum Heard {
    /// A message.
    Message(Message),
    /// The message that announces a snapshot, which is durable here.
    Snapshot {
        /// The message.
        message: Message,
        /// The state in the snapshot.
        state: Box<State>,
        /// How many bytes it takes.
        bytes: u64,
        /// Told when raft has taken it, or has no use for it.
        taken: oneshot::Sender<()>,
    },
    /// A member could not be reached.
    Unreachable(MemberId),
    /// A snapshot arrived there, or did not.
    SnapshotSent {
        /// The member.
        to: MemberId,
        /// Whether it has it.
        delivered: bool,
    },
}

/// The driver's end.
pub struct Inbox {
    /// Commands to propose.
    pub proposals: mpsc::Receiver<Proposal>,
    /// What else is wanted here.
    pub requests: mpsc::Receiver<Request>,
    /// What comes from other managers. [`Inbox::took`] must be told of each message.
    pub heard: mpsc::Receiver<Heard>,
    waiting: Arc<AtomicUsize>,
}

impl Inbox {
    /// A message was taken out of `heard`: there is room for as much again.
    pub fn took(&self, message: &Message) {
        self.waiting.fetch_sub(size(message), Ordering::Relaxed);
    }
}

/// The store's end.
#[derive(Clone)]
pub(super) struct Outbox {
    pub proposals: mpsc::Sender<Proposal>,
    pub requests: mpsc::Sender<Request>,
    pub heard: mpsc::Sender<Heard>,
    waiting: Arc<AtomicUsize>,
}

impl Outbox {
    /// Both ends; at most `queue` proposals wait.
    pub fn new(queue: usize) -> (Self, Inbox) {
        let (proposals, proposed) = mpsc::channel(queue);
        let (requests, requested) = mpsc::channel(REQUESTS);
        let (heard, hearing) = mpsc::channel(HEARD);
        let waiting = Arc::new(AtomicUsize::new(0));
        let inbox =
            Inbox { proposals: proposed, requests: requested, heard: hearing, waiting: waiting.clone() };
        (Self { proposals, requests, heard, waiting }, inbox)
    }

    /// Passes a message on, if there is room. One that announces a snapshot is not passed on: it must come with its
    /// state.
    pub fn deliver(&self, message: Message) {
        let size = size(&message);
        if message.kind == MessageKind::Snapshot || self.waiting.load(Ordering::Relaxed) > HEARD_BYTES {
            return;
        }
        self.waiting.fetch_add(size, Ordering::Relaxed);
        if self.heard.try_send(Heard::Message(message)).is_err() {
            self.waiting.fetch_sub(size, Ordering::Relaxed);
        }
    }
}

fn size(message: &Message) -> usize {
    message.entries.iter().map(|entry| entry.data.len()).sum()
}

#[cfg(test)]
mod tests;
