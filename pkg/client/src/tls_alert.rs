//! Captures the TLS alert with which a server rejected the connection.
//!
//! With TLS 1.3 a client finishes the handshake before the server verifies its certificate: a rejection is an alert,
//! which is an error of a later read. The HTTP layers lose it or keep only a text, so it is captured here.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The last alert of the connections that share this. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastTlsAlert(Arc<Mutex<Option<String>>>);

impl LastTlsAlert {
    /// The description of the alert, if there was one.
    pub fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn record(&self, error: &io::Error) {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        if let Some(rustls::Error::AlertReceived(alert)) = inner {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("{alert:?}"));
        }
    }
}

/// A connection that records alerts.
#[derive(Debug)]
pub(crate) struct AlertRecordingStream<S> {
    inner: S,
    alert: LastTlsAlert,
}

impl<S> AlertRecordingStream<S> {
    pub fn new(inner: S, refusal: LastTlsAlert) -> Self {
        Self { inner, alert: refusal }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AlertRecordingStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(Pin::new(&mut self.inner).poll_read(context, buffer));
        Poll::Ready(read.inspect_err(|error| self.alert.record(error)))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AlertRecordingStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
