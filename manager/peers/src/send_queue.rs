//! The bounded send queue of one peer, which is sent in frames.
//!
//! There are two lanes. Appends are sent in order and make up nearly all of the bytes; all other messages
//! (votes, heartbeats, responses) precede them, so that they never wait for more than the frame in transit.
//! Raft tolerates reordered messages; appends stay in order, since a follower rejects what follows a gap.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio_stream::Stream;
use warren_consensus::{Message, MessageKind};
use warren_proto::v1;

use super::codec;

/// A frame ends with the message that reaches either limit.
const MAX_FRAME_BYTES: usize = 1 << 20;
const MAX_FRAME_MESSAGES: usize = 512;
/// Maximum bytes of queued appends. Their data is shared with the log, so they cost little, and nothing else
/// waits for them. Excess messages are dropped, and raft resends them when the peer is active.
const MAX_APPEND_BYTES: usize = 16 << 20;
/// Messages other than appends are small and soon outdated.
const MAX_CONTROL_MESSAGES: usize = 1024;

/// The queue was full or closed; the message was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueRejected;

/// The queue of one peer. Cheap to clone; all clones share one queue.
#[derive(Clone, Default)]
pub struct SendQueue(Arc<Mutex<QueueState>>);

#[derive(Default)]
struct QueueState {
    /// Number of connections; 0 before the first. Messages are dropped while none is open.
    connection: u64,
    is_open: bool,
    control: VecDeque<Message>,
    appends: VecDeque<Message>,
    /// Size of `appends`.
    append_bytes: usize,
    waker: Option<Waker>,
}

impl QueueState {
    fn is_empty(&self) -> bool {
        self.control.is_empty() && self.appends.is_empty()
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// The next frame; never empty.
    fn next_frame(&mut self) -> v1::RaftFrame {
        let mut messages =
            Vec::with_capacity((self.control.len() + self.appends.len()).min(MAX_FRAME_MESSAGES));
        let mut bytes = 0;
        while messages.len() < MAX_FRAME_MESSAGES && bytes < MAX_FRAME_BYTES {
            let message = match self.control.pop_front() {
                Some(message) => message,
                None => {
                    let Some(message) = self.appends.pop_front() else { break };
                    let cost = codec::wire_size(&message);
                    self.append_bytes -= cost;
                    bytes += cost;
                    message
                }
            };
            messages.push(codec::to_wire(message));
        }
        v1::RaftFrame { hello: None, messages }
    }
}

impl SendQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // No update can panic halfway, so a poisoned queue is still consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message.
    ///
    /// # Errors
    /// [`QueueRejected`]: the message was dropped.
    pub fn push(&self, message: Message) -> Result<(), QueueRejected> {
        let mut inner = self.lock();
        if !inner.is_open {
            return Err(QueueRejected);
        }
        if message.kind == MessageKind::Append {
            let cost = codec::wire_size(&message);
            // A single message always fits.
            if !inner.appends.is_empty() && inner.append_bytes + cost > MAX_APPEND_BYTES {
                return Err(QueueRejected);
            }
            inner.append_bytes += cost;
            inner.appends.push_back(message);
        } else {
            if inner.control.len() >= MAX_CONTROL_MESSAGES {
                return Err(QueueRejected);
            }
            inner.control.push_back(message);
        }
        inner.wake();
        Ok(())
    }

    /// Opens a new connection and returns its frames, `hello` first. Frame streams of earlier connections
    /// end; queued messages are dropped.
    pub fn open(&self, hello: v1::PeerHello) -> RaftFrameStream {
        let mut inner = self.lock();
        inner.wake();
        let connection = inner.connection + 1;
        *inner = QueueState { connection, is_open: true, ..QueueState::default() };
        let hello = Some(v1::RaftFrame { hello: Some(hello), messages: Vec::new() });
        RaftFrameStream { queue: self.clone(), connection, hello }
    }

    /// Marks the queue as disconnected.
    pub fn close(&self) {
        let mut inner = self.lock();
        inner.wake();
        *inner = QueueState { connection: inner.connection, ..QueueState::default() };
    }

    /// Whether a connection is open.
    pub fn is_open(&self) -> bool {
        self.lock().is_open
    }
}

/// The frames of one connection. Ends when the queue is closed or opened for another connection.
pub struct RaftFrameStream {
    queue: SendQueue,
    connection: u64,
    hello: Option<v1::RaftFrame>,
}

impl Stream for RaftFrameStream {
    type Item = v1::RaftFrame;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<v1::RaftFrame>> {
        if let Some(hello) = self.hello.take() {
            return Poll::Ready(Some(hello));
        }
        let mut inner = self.queue.lock();
        if !inner.is_open || inner.connection != self.connection {
            return Poll::Ready(None);
        }
        if inner.is_empty() {
            inner.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Some(inner.next_frame()))
    }
}

#[cfg(test)]
mod tests;
