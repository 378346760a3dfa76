//! The terms on which a connection without a certificate stays open.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Sleep, sleep};

use super::crowd::Place;

/// Ends when its time is over, when it said too much, or when somebody else got its place.
#[derive(Debug)]
pub(super) struct Stay {
    /// `None` once it was lost.
    place: Option<Place>,
    end: Pin<Box<Sleep>>,
    bytes: usize,
}

impl Stay {
    pub(super) fn new(place: Place, lifetime: Duration, bytes: usize) -> Self {
        Self { place: Some(place), end: Box::pin(sleep(lifetime)), bytes }
    }

    /// Fails when it is over, and wakes the task when it will be.
    pub(super) fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if self.place.as_mut().is_some_and(|place| place.poll_lost(context).is_ready()) {
            self.place = None;
        }
        if self.place.is_none() {
            return Err(over("its place was needed for another"));
        }
        match self.end.as_mut().poll(context) {
            Poll::Ready(()) => Err(over("its time was over")),
            Poll::Pending => Ok(()),
        }
    }

    /// It said so many bytes more.
    pub(super) fn heard(&mut self, bytes: usize) -> io::Result<()> {
        self.bytes = self.bytes.checked_sub(bytes).ok_or_else(|| over("it said more than joining needs"))?;
        Ok(())
    }
}

fn over(why: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::ConnectionAborted,
        format!("closed a connection without a certificate: {why}"),
    )
}
