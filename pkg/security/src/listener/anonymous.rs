//! The limits of one connection without a certificate.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

use super::handshake_limiter::Permit;

/// Ends the connection after its lifetime, or when it sent too many bytes.
#[derive(Debug)]
pub(super) struct AnonymousQuota {
    _permit: Permit,
    end: Pin<Box<Sleep>>,
    bytes: usize,
}

impl AnonymousQuota {
    pub(super) fn new(permit: Permit, lifetime: Duration, bytes: usize) -> Self {
        Self { _permit: permit, end: Box::pin(sleep(lifetime)), bytes }
    }

    /// Fails once the lifetime is over, and wakes the task then.
    pub(super) fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.end.as_mut().poll(context) {
            Poll::Ready(()) => Err(closed("its time limit is exceeded")),
            Poll::Pending => Ok(()),
        }
    }

    /// Counts bytes that it sent.
    pub(super) fn count(&mut self, bytes: usize) -> io::Result<()> {
        self.bytes =
            self.bytes.checked_sub(bytes).ok_or_else(|| closed("it sent more than joining needs"))?;
        Ok(())
    }
}

fn closed(why: &str) -> io::Error {
    let message = format!("closed a connection without a certificate: {why}");
    io::Error::new(io::ErrorKind::ConnectionAborted, message)
}
