//! What waits to be sent to one peer: bounded, and taken in frames.
//!
//! There are two lanes. Entries go in their order, and make up nearly all of the bytes; everything else (votes,
//! heartbeats, answers) goes before them, so that it never waits behind more than the one frame that is on its way.
//! Raft allows messages to overtake each other; appends among themselves stay in order, since a gap makes a
//! follower refuse what comes behind it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio_stream::Stream;
use warren_consensus::{Message, MessageKind};
use warren_proto::v1;

use super::codec;

/// A frame ends with the message that reaches either.
const FRAME_BYTES: usize = 1 << 20;
const FRAME_MESSAGES: usize = 512;
/// What may wait of appends. Their bytes are shared with the log, so they cost little, and nothing else waits for them.
/// What comes on top is dropped, and raft sends it again when it sees that the peer is there.
const MOST_BYTES: usize = 16 << 20;
/// Messages that are not appends are small and soon of no use.
const MOST_LIGHT: usize = 1024;

/// A message did not find room, or nobody is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropped;

/// The queue of one peer. Cheap to clone; all clones are the same.
#[derive(Clone, Default)]
pub struct Mailbox(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    /// Counts the connections; 0 before the first. What is put in while none is open is dropped.
    connection: u64,
    open: bool,
    light: VecDeque<Message>,
    appends: VecDeque<Message>,
    /// Of `appends`.
    bytes: usize,
    waker: Option<Waker>,
}

impl Inner {
    fn is_empty(&self) -> bool {
        self.light.is_empty() && self.appends.is_empty()
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// The next frame; there is something in it.
    fn frame(&mut self) -> v1::RaftFrame {
        let mut messages = Vec::with_capacity((self.light.len() + self.appends.len()).min(FRAME_MESSAGES));
        let mut bytes = 0;
        while messages.len() < FRAME_MESSAGES && bytes < FRAME_BYTES {
            let message = match self.light.pop_front() {
                Some(message) => message,
                None => {
                    let Some(message) = self.appends.pop_front() else { break };
                    let cost = codec::cost(&message);
                    self.bytes -= cost;
                    bytes += cost;
                    message
                }
            };
            messages.push(codec::to_wire(message));
        }
        v1::RaftFrame { hello: None, messages }
    }
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing here panics between two changes, so a poisoned one is still whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a message in.
    ///
    /// # Errors
    /// [`Dropped`]: it is gone.
    pub fn put(&self, message: Message) -> Result<(), Dropped> {
        let mut inner = self.lock();
        if !inner.open {
            return Err(Dropped);
        }
        if message.kind == MessageKind::Append {
            let cost = codec::cost(&message);
            // One always fits, however large.
            if !inner.appends.is_empty() && inner.bytes + cost > MOST_BYTES {
                return Err(Dropped);
            }
            inner.bytes += cost;
            inner.appends.push_back(message);
        } else {
            if inner.light.len() >= MOST_LIGHT {
                return Err(Dropped);
            }
            inner.light.push_back(message);
        }
        inner.wake();
        Ok(())
    }

    /// The frames of a new connection, `hello` first. Those of an earlier one end, and what waited is dropped.
    pub fn open(&self, hello: v1::PeerHello) -> Frames {
        let mut inner = self.lock();
        inner.wake();
        let connection = inner.connection + 1;
        *inner = Inner { connection, open: true, ..Inner::default() };
        let hello = Some(v1::RaftFrame { hello: Some(hello), messages: Vec::new() });
        Frames { mailbox: self.clone(), connection, hello }
    }

    /// Nobody is connected any more.
    pub fn close(&self) {
        let mut inner = self.lock();
        inner.wake();
        *inner = Inner { connection: inner.connection, ..Inner::default() };
    }

    /// Somebody is connected.
    pub fn is_open(&self) -> bool {
        self.lock().open
    }
}

/// What goes out on one connection. Ends when the mailbox is closed, or opened for another.
pub struct Frames {
    mailbox: Mailbox,
    connection: u64,
    hello: Option<v1::RaftFrame>,
}

impl Stream for Frames {
    type Item = v1::RaftFrame;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<v1::RaftFrame>> {
        if let Some(hello) = self.hello.take() {
            return Poll::Ready(Some(hello));
        }
        let mut inner = self.mailbox.lock();
        if !inner.open || inner.connection != self.connection {
            return Poll::Ready(None);
        }
        if inner.is_empty() {
            inner.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Some(inner.frame()))
    }
}

#[cfg(test)]
mod tests;
