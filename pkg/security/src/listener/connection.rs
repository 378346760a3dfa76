//! One accepted connection: bytes in, bytes out, and who is at the other end.

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::anonymous::AnonymousQuota;
use super::revocation::RevocationCheck;
use crate::Peer;

/// A connection whose peer is known. Requests on it carry the [`Peer`] in their extensions.
pub struct PeerConnection {
    io: ConnectionIo,
    peer: Peer,
    limit: ConnectionLimit,
}

/// What ends a connection before its peer does.
pub(super) enum ConnectionLimit {
    /// Nothing: it is local.
    None,
    /// Its peer has no certificate.
    Anonymous(AnonymousQuota),
    /// The certificate of its peer may be revoked.
    Certificate(RevocationCheck),
}

enum ConnectionIo {
    Tls(Box<TlsStream<TcpStream>>),
    Local(UnixStream),
}

impl PeerConnection {
    pub(super) fn tls(stream: TlsStream<TcpStream>, peer: Peer, limit: ConnectionLimit) -> Self {
        Self { io: ConnectionIo::Tls(Box::new(stream)), peer, limit }
    }

    pub(super) fn local(stream: UnixStream, peer: Peer) -> Self {
        Self { io: ConnectionIo::Local(stream), peer, limit: ConnectionLimit::None }
    }

    /// A connection within this process for the requests of `peer`: the server's end, and the client's.
    ///
    /// # Errors
    /// An error of the system call.
    pub fn pair(peer: Peer) -> io::Result<(Self, UnixStream)> {
        let (server, client) = UnixStream::pair()?;
        Ok((Self::local(server, peer), client))
    }

    fn check_limit(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match &mut self.limit {
            ConnectionLimit::None => Ok(()),
            ConnectionLimit::Anonymous(quota) => quota.check(context),
            ConnectionLimit::Certificate(revocation) => revocation.check(),
        }
    }

    /// Who is at the other end.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }
}

impl AsFd for PeerConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.io {
            ConnectionIo::Tls(stream) => stream.get_ref().0.as_fd(),
            ConnectionIo::Local(stream) => stream.as_fd(),
        }
    }
}

impl fmt::Debug for PeerConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({})", self.peer)
    }
}

impl Connected for PeerConnection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for PeerConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_limit(context)?;
        let before = buffer.filled().len();
        let read = match &mut self.io {
            ConnectionIo::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
            ConnectionIo::Local(stream) => Pin::new(stream).poll_read(context, buffer),
        };
        if let ConnectionLimit::Anonymous(quota) = &mut self.limit {
            quota.count(buffer.filled().len() - before)?;
        }
        read
    }
}

impl AsyncWrite for PeerConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_limit(context)?;
        match &mut self.io {
            ConnectionIo::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
            ConnectionIo::Local(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_limit(context)?;
        match &mut self.io {
            ConnectionIo::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            ConnectionIo::Local(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            ConnectionIo::Tls(stream) => stream.is_write_vectored(),
            ConnectionIo::Local(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            ConnectionIo::Tls(stream) => Pin::new(stream).poll_flush(context),
            ConnectionIo::Local(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            ConnectionIo::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            ConnectionIo::Local(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
