//! Accepts connections and authenticates each before the server gets it.

mod anonymous;
mod connection;
mod handshake_limiter;
mod local;
mod revocation;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::future::{poll_fn, ready};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use rustls::server::Acceptor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::StartHandshake;
use tokio_stream::Stream;

use self::anonymous::AnonymousQuota;
use self::connection::ConnectionLimit;
pub use self::connection::PeerConnection;
use self::handshake_limiter::{HandshakeLimiter, Permit};
pub use self::local::{LocalListener, LocalSocketError};
use self::revocation::RevocationCheck;
use crate::{Identity, Peer, ServerTls};

/// Connections that are proved and wait for the server to take them.
const MAX_READY: usize = 64;

/// How many accepted local connections may wait for the server; the kernel's backlog holds the others.
const MAX_LOCAL_PENDING: usize = 16;

/// How long to leave the listener alone after it failed, which is mostly for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections of other software that wait for accept.
const WEB_BACKLOG: u32 = 1024;
/// A client that vanished is noticed within a minute.
const KEEPALIVE_SECONDS: u32 = 15;
const KEEPALIVE_PROBES: u32 = 3;
/// How long somebody who was refused may read why, and the most that is read of what they sent meanwhile.
const LINGER: Duration = Duration::from_millis(500);
const MAX_DRAINED: u64 = 64 << 10;

/// Bounds for peers that have not proved who they are: everybody during the handshake, and afterwards peers without a
/// certificate. An authenticated peer is under none of them.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeLimits {
    /// Handshakes at once. One address gets at most half of them, and no more than are left for others.
    pub handshakes: usize,
    /// Accepted connections that wait for their handshake. The newest of the address with most of them is closed when
    /// there are more.
    pub waiting: usize,
    /// A connection that has not sent its ClientHello after this is closed. Longer than a round trip.
    pub hello_timeout: Duration,
    /// Handshakes that take longer are closed.
    pub handshake_timeout: Duration,
    /// Connections without a certificate at once, shared between addresses as handshakes are.
    pub connections: usize,
    /// They are closed after this.
    pub lifetime: Duration,
    /// How many bytes each may send after the handshake; far more than joining needs.
    pub bytes: usize,
}

impl Default for HandshakeLimits {
    fn default() -> Self {
        Self {
            handshakes: 256,
            waiting: 512,
            hello_timeout: Duration::from_secs(1),
            handshake_timeout: Duration::from_secs(5),
            connections: 32,
            lifetime: Duration::from_secs(15),
            bytes: 128 << 10,
        }
    }
}

/// The connections of a listener, ready to be served (`tonic`'s `serve_with_incoming`). Dropping it closes
/// the listener and every handshake under way.
#[derive(Debug)]
pub struct IncomingConnections {
    ready: mpsc::Receiver<PeerConnection>,
}

impl IncomingConnections {
    /// Connections within this process: those that are sent.
    pub fn channel() -> (mpsc::Sender<PeerConnection>, Self) {
        let (sender, ready) = mpsc::channel(MAX_READY);
        (sender, Self { ready })
    }
}

impl Stream for IncomingConnections {
    type Item = Result<PeerConnection, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.ready.poll_recv(context).map(|connection| connection.map(Ok))
    }
}

/// Serves TLS on a port: the peer is [`Peer::Certificate`] or [`Peer::Anonymous`]. Must be called within a
/// tokio runtime.
pub fn serve_tls(listener: TcpListener, tls: ServerTls, limits: HandshakeLimits) -> IncomingConnections {
    let handshakes = HandshakeLimiter::new(limits.handshakes, limits.waiting);
    // Each of them waits with the permit of its handshake.
    let anonymous = HandshakeLimiter::new(limits.connections, limits.handshakes);
    let tls = Arc::new(TlsAcceptor { tls, limits, handshakes, anonymous });
    // The limiter ends what is above its bounds.
    serve(
        usize::MAX,
        move |context| listener.poll_accept(context),
        move |accepted| accept_tls(Arc::clone(&tls), accepted),
    )
}

/// Binds `address` for clients of other software, which may vanish without a word: the kernel asks whether they are
/// there. Must be called within a tokio runtime.
///
/// # Errors
/// An error of a system call.
pub fn listen_web(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    // Accepted connections inherit these.
    setsockopt(&socket, sockopt::KeepAlive, &true)?;
    setsockopt(&socket, sockopt::TcpKeepIdle, &KEEPALIVE_SECONDS)?;
    setsockopt(&socket, sockopt::TcpKeepInterval, &KEEPALIVE_SECONDS)?;
    setsockopt(&socket, sockopt::TcpKeepCount, &KEEPALIVE_PROBES)?;
    socket.bind(address)?;
    socket.listen(WEB_BACKLOG)
}

/// Serves the unix socket: the peer is [`Peer::Local`]. Must be called within a tokio runtime.
pub fn serve_local(listener: LocalListener) -> IncomingConnections {
    let accept = move |context: &mut Context<'_>| listener.poll_accept(context);
    serve(MAX_LOCAL_PENDING, accept, |stream| ready(accept_local(stream).map(|connection| (connection, ()))))
}

/// Accepts while fewer than `max_pending` connections wait for their handshake or for the server. `handshake`
/// gives the connection and what is held until the server takes it.
fn serve<S, P, A, H, F>(max_pending: usize, mut accept: A, handshake: H) -> IncomingConnections
where
    S: Send + 'static,
    P: Send + 'static,
    A: FnMut(&mut Context<'_>) -> Poll<io::Result<S>> + Send + 'static,
    H: Fn(S) -> F + Send + 'static,
    F: Future<Output = Option<(PeerConnection, P)>> + Send + 'static,
{
    let (sender, ready) = mpsc::channel(MAX_READY);
    tokio::spawn(async move {
        let mut handshakes = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = sender.closed() => return,
                Some(ended) = handshakes.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "a handshake ended by a panic");
                    }
                    continue;
                }
                accepted = poll_fn(&mut accept), if handshakes.len() < max_pending => accepted,
            };
            match accepted {
                Ok(accepted) => {
                    let (handshake, sender) = (handshake(accepted), sender.clone());
                    handshakes.spawn(async move {
                        if let Some((connection, _permit)) = handshake.await {
                            // Sending fails only when the server stops.
                            let _ = sender.send(connection).await;
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, pause = ?ACCEPT_PAUSE, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    });
    IncomingConnections { ready }
}

/// What every handshake needs.
struct TlsAcceptor {
    tls: ServerTls,
    limits: HandshakeLimits,
    handshakes: HandshakeLimiter,
    anonymous: HandshakeLimiter,
}

/// Anybody can cause every failure here at will, so that none is logged above `debug`.
async fn accept_tls(
    tls: Arc<TlsAcceptor>,
    (stream, address): (TcpStream, SocketAddr),
) -> Option<(PeerConnection, Permit)> {
    let Some(permit) = tls.handshakes.acquire(address.ip()).await else {
        tracing::debug!(%address, "connection closed: too many connections wait for a handshake");
        return None;
    };
    let timeout = tls.limits.handshake_timeout;
    match tokio::time::timeout(timeout, tls.authenticate(stream, address)).await {
        Ok(Ok(connection)) => return Some((connection, permit)),
        Ok(Err(error)) => tracing::debug!(%address, %error, "TLS handshake refused"),
        Err(_) => tracing::debug!(%address, ?timeout, "TLS handshake took too long"),
    }
    None
}

impl TlsAcceptor {
    /// Does the handshake. An anonymous peer must also find a place among the anonymous connections.
    async fn authenticate(&self, stream: TcpStream, address: SocketAddr) -> io::Result<PeerConnection> {
        // Small frames go back and forth; waiting to fill segments would only delay them.
        stream.set_nodelay(true)?;
        let hello = timeout(self.limits.hello_timeout, read_hello(stream)).await??;
        if is_closed(&hello.io).await {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed before it was answered"));
        }
        let stream = match hello.into_stream(Arc::clone(&self.tls.config)).into_fallible().await {
            Ok(stream) => stream,
            Err((error, refused)) => {
                // The peer may not have read the alert yet.
                let _ = timeout(LINGER, drain(refused)).await;
                return Err(error);
            }
        };
        match stream.get_ref().1.peer_certificates() {
            None | Some([]) => {
                let permit = self.anonymous.acquire(address.ip()).await;
                let permit =
                    permit.ok_or_else(|| io::Error::other("too many connections without a certificate"))?;
                let quota = AnonymousQuota::new(permit, self.limits.lifetime, self.limits.bytes);
                Ok(PeerConnection::tls(
                    stream,
                    Peer::Anonymous { address },
                    ConnectionLimit::Anonymous(quota),
                ))
            }
            Some([certificate, ..]) => {
                // Issued by our authority, and yet without an identity: refused.
                let (identity, key) = Identity::with_key_from_der(certificate).map_err(io::Error::other)?;
                let revocation = RevocationCheck::new(Arc::clone(&self.tls.trust), identity.clone(), key);
                let peer = Peer::Certificate { identity, key, address };
                Ok(PeerConnection::tls(stream, peer, ConnectionLimit::Certificate(revocation)))
            }
        }
    }
}

/// Closes a connection so that the alert just sent arrives: what came and was not read would make the kernel reset the
/// connection, and the other side forget what it had not read yet.
async fn drain(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut unread = stream.take(MAX_DRAINED);
    tokio::io::copy(&mut unread, &mut tokio::io::sink()).await.map(drop)
}

/// Reads the ClientHello; nothing is computed yet.
async fn read_hello(stream: TcpStream) -> io::Result<StartHandshake<TcpStream>> {
    let mut hello = LazyConfigAcceptor::new(Acceptor::default(), stream);
    match (&mut hello).await {
        Ok(started) => Ok(started),
        Err(error) => {
            if let Some(refused) = hello.take_io() {
                // The peer may not have read the alert yet.
                let _ = timeout(LINGER, drain(refused)).await;
            }
            Err(error)
        }
    }
}

/// Whether the other side, whose turn it is not, has closed the connection.
async fn is_closed(stream: &TcpStream) -> bool {
    let mut next = [0];
    tokio::select! {
        biased;
        peeked = stream.peek(&mut next) => !matches!(peeked, Ok(1..)),
        () = std::future::ready(()) => false,
    }
}

fn accept_local(stream: UnixStream) -> Option<PeerConnection> {
    match stream.peer_cred() {
        Ok(holder) => {
            let peer = Peer::Local { uid: holder.uid(), gid: holder.gid() };
            Some(PeerConnection::local(stream, peer))
        }
        Err(error) => {
            tracing::warn!(%error, "cannot determine the process of a local connection");
            None
        }
    }
}
