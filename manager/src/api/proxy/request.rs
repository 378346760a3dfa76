//! The body of a request that may have to be sent to another manager after a handler has read of it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

/// So much is kept of one request; the largest message that is taken is smaller. What is longer is not relayed.
const MOST: usize = 5 << 20;

/// What was read of a body, and what was not.
#[derive(Default)]
struct Read {
    frames: VecDeque<Bytes>,
    bytes: usize,
    /// What the reader left, if it did not read to the end.
    rest: Option<Body>,
    /// Nobody reads it any more.
    is_over: bool,
    /// It is too long, or nobody wants it any more.
    forgotten: bool,
}

impl Read {
    fn forget(&mut self) {
        *self = Self { forgotten: true, ..Self::default() };
    }
}

/// Keeps what is read of `body`, until it is taken.
pub(super) fn keep(body: Body) -> (Recorder, Recording) {
    let read = Arc::new(Mutex::new(Read::default()));
    (Recorder { inner: Some(body), read: read.clone() }, Recording(read))
}

/// The end that is taken from.
pub(super) struct Recording(Arc<Mutex<Read>>);

impl Recording {
    /// What was read so far and what is left of it. From now on nothing is kept.
    pub(super) fn take(self) -> Option<Kept> {
        let mut read = lock(&self.0);
        let Read { frames, rest, is_over, forgotten, .. } = std::mem::take(&mut *read);
        read.forget();
        (is_over && !forgotten).then_some(Kept { frames, rest, is_spent: false })
    }
}

/// A request's body, to be sent elsewhere.
pub(super) struct Kept {
    frames: VecDeque<Bytes>,
    rest: Option<Body>,
    is_spent: bool,
}

impl Kept {
    /// The body once more; nothing if a part of it, which was not kept, has been sent already.
    pub(super) fn next(&mut self) -> Option<Body> {
        if self.is_spent {
            return None;
        }
        let rest = self.rest.take();
        self.is_spent = rest.is_some();
        Some(Body::new(Replayed { frames: self.frames.clone(), rest }))
    }
}

/// The end that is read.
pub(super) struct Recorder {
    /// `None` once it ended.
    inner: Option<Body>,
    read: Arc<Mutex<Read>>,
}

impl http_body::Body for Recorder {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(inner) = &mut self.inner else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(inner).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                let mut read = lock(&self.read);
                if let Some(data) = frame.data_ref().filter(|_| !read.forgotten) {
                    read.bytes += data.len();
                    read.frames.push_back(data.clone());
                    if read.bytes > MOST {
                        read.forget();
                    }
                }
            }
            // Half a request is none.
            Some(Err(_)) => lock(&self.read).forget(),
            None => self.inner = None,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(|inner| inner.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or_else(|| SizeHint::with_exact(0), |inner| inner.size_hint())
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let mut read = lock(&self.read);
        if !read.forgotten {
            read.is_over = true;
            read.rest = self.inner.take();
        }
    }
}

fn lock(read: &Mutex<Read>) -> MutexGuard<'_, Read> {
    // Nothing here panics between two changes, so a poisoned one is still whole.
    read.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was read, then the rest.
struct Replayed {
    frames: VecDeque<Bytes>,
    rest: Option<Body>,
}

impl http_body::Body for Replayed {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(frame) = self.frames.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(frame))));
        }
        match &mut self.rest {
            Some(rest) => Pin::new(rest).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty() && self.rest.as_ref().is_none_or(|rest| rest.is_end_stream())
    }
}

#[cfg(test)]
mod tests;
