//! Records the body of a request so that it can be sent to another manager after a handler has read it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

/// Maximum recorded bytes of a request; the largest accepted message is smaller. A longer request is not
/// forwarded.
const MAX_RECORDED_BYTES: usize = 5 << 20;

/// The read and the unread part of a body.
#[derive(Default)]
struct RecordedFrames {
    frames: VecDeque<Bytes>,
    bytes: usize,
    /// The unread part, if the reader stopped before the end.
    rest: Option<Body>,
    /// The reader was dropped.
    is_reader_gone: bool,
    /// The body is too long, or is not needed any more.
    is_discarded: bool,
}

impl RecordedFrames {
    fn discard(&mut self) {
        *self = Self { is_discarded: true, ..Self::default() };
    }
}

/// Records what is read of `body` until the recording is taken.
pub(super) fn record_body(body: Body) -> (RecordingBody, BodyRecording) {
    let read = Arc::new(Mutex::new(RecordedFrames::default()));
    (RecordingBody { inner: Some(body), recorded: read.clone() }, BodyRecording(read))
}

/// The recording's side.
pub(super) struct BodyRecording(Arc<Mutex<RecordedFrames>>);

impl BodyRecording {
    /// Takes the recorded and the unread part. Recording ends.
    pub(super) fn take(self) -> Option<ReplayableBody> {
        let mut read = lock(&self.0);
        let RecordedFrames { frames, rest, is_reader_gone, is_discarded, .. } = std::mem::take(&mut *read);
        read.discard();
        (is_reader_gone && !is_discarded).then_some(ReplayableBody { frames, rest, is_spent: false })
    }
}

/// A request body to be sent to another manager.
pub(super) struct ReplayableBody {
    frames: VecDeque<Bytes>,
    rest: Option<Body>,
    is_spent: bool,
}

impl ReplayableBody {
    /// The body again; `None` if a part that was not recorded has been sent already.
    pub(super) fn next_body(&mut self) -> Option<Body> {
        if self.is_spent {
            return None;
        }
        let rest = self.rest.take();
        self.is_spent = rest.is_some();
        Some(Body::new(ReplayBody { frames: self.frames.clone(), rest }))
    }
}

/// The reader's side.
pub(super) struct RecordingBody {
    /// `None` at the end.
    inner: Option<Body>,
    recorded: Arc<Mutex<RecordedFrames>>,
}

impl http_body::Body for RecordingBody {
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
                let mut read = lock(&self.recorded);
                if let Some(data) = frame.data_ref().filter(|_| !read.is_discarded) {
                    read.bytes += data.len();
                    read.frames.push_back(data.clone());
                    if read.bytes > MAX_RECORDED_BYTES {
                        read.discard();
                    }
                }
            }
            // A partial request cannot be forwarded.
            Some(Err(_)) => lock(&self.recorded).discard(),
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

impl Drop for RecordingBody {
    fn drop(&mut self) {
        let mut read = lock(&self.recorded);
        if !read.is_discarded {
            read.is_reader_gone = true;
            read.rest = self.inner.take();
        }
    }
}

fn lock(read: &Mutex<RecordedFrames>) -> MutexGuard<'_, RecordedFrames> {
    // No update can panic halfway, so a poisoned value is still consistent.
    read.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The recorded part, then the rest.
struct ReplayBody {
    frames: VecDeque<Bytes>,
    rest: Option<Body>,
}

impl http_body::Body for ReplayBody {
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
