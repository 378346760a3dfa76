//! Accepting connections: each is proved to be somebody's before anyone else sees it.

mod connection;
mod local;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_stream::Stream;

pub use self::connection::Connection;
pub use self::local::{LocalListener, LocalSocketError};
use crate::{Identity, Peer};

/// Connections that are proved and wait for the server to take them.
const READY: usize = 64;

/// How long to leave the listener alone after it failed, which is mostly for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Local connections that are looked at in parallel; looking at one takes no time.
const LOCAL_IN_FLIGHT: usize = 16;

/// What strangers may cost before they proved who they are.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeLimits {
    /// Handshakes at once; further connections wait in the kernel's queue.
    pub in_flight: usize,
    /// What takes longer is closed.
    pub deadline: Duration,
}

impl Default for HandshakeLimits {
    fn default() -> Self {
        Self { in_flight: 256, deadline: Duration::from_secs(5) }
    }
}

/// The connections of a listener, ready to be served (`tonic`'s `serve_with_incoming`). Dropping it closes
/// the listener and every handshake under way.
#[derive(Debug)]
pub struct Incoming {
    ready: mpsc::Receiver<Connection>,
}

impl Stream for Incoming {
    type Item = Result<Connection, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.ready.poll_recv(context).map(|connection| connection.map(Ok))
    }
}

/// Serves TLS on a port: the peer is [`Peer::Certificate`] or [`Peer::Anonymous`]. Must be called within a
/// tokio runtime.
pub fn serve_tls(listener: TcpListener, config: Arc<ServerConfig>, limits: HandshakeLimits) -> Incoming {
    let acceptor = TlsAcceptor::from(config);
    let accept = move |context: &mut Context<'_>| listener.poll_accept(context);
    let welcome = move |(stream, address)| welcome_tls(acceptor.clone(), stream, address, limits.deadline);
    serve(accept, welcome, limits.in_flight)
}

/// Serves the unix socket: the peer is [`Peer::Local`]. Must be called within a tokio runtime.
pub fn serve_local(listener: LocalListener) -> Incoming {
    let accept = move |context: &mut Context<'_>| listener.poll_accept(context);
    serve(accept, |stream| std::future::ready(welcome_local(stream)), LOCAL_IN_FLIGHT)
}

fn serve<S, A, W, F>(accept: A, welcome: W, in_flight: usize) -> Incoming
where
    S: Send + 'static,
    A: FnMut(&mut Context<'_>) -> Poll<io::Result<S>> + Send + 'static,
    W: Fn(S) -> F + Send + 'static,
    F: Future<Output = Option<Connection>> + Send + 'static,
{
    let (sender, ready) = mpsc::channel(READY);
    tokio::spawn(accept_until_closed(accept, welcome, in_flight.max(1), sender));
    Incoming { ready }
}

async fn accept_until_closed<S, A, W, F>(
    mut accept: A,
    welcome: W,
    in_flight: usize,
    ready: mpsc::Sender<Connection>,
) where
    A: FnMut(&mut Context<'_>) -> Poll<io::Result<S>>,
    W: Fn(S) -> F,
    F: Future<Output = Option<Connection>> + Send + 'static,
{
    let mut handshakes = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = ready.closed() => return,
            Some(ended) = handshakes.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "a handshake ended by a panic");
                }
                continue;
            }
            accepted = poll_fn(&mut accept), if handshakes.len() < in_flight => accepted,
        };
        match accepted {
            Ok(stream) => {
                let (welcomed, ready) = (welcome(stream), ready.clone());
                handshakes.spawn(async move {
                    if let Some(connection) = welcomed.await {
                        // Nobody takes it only when the server stops.
                        let _ = ready.send(connection).await;
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, pause = ?ACCEPT_PAUSE, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Strangers can cause every failure here at will, so that none is logged above `debug`.
async fn welcome_tls(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    address: SocketAddr,
    deadline: Duration,
) -> Option<Connection> {
    // Small frames go back and forth; waiting to fill segments would only delay them.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%address, %error, "connection closed before its handshake");
        return None;
    }
    let stream = match tokio::time::timeout(deadline, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%address, %error, "TLS handshake refused");
            return None;
        }
        Err(_) => {
            tracing::debug!(%address, ?deadline, "TLS handshake took too long");
            return None;
        }
    };
    let peer = match stream.get_ref().1.peer_certificates() {
        None | Some([]) => Peer::Anonymous { address },
        Some([certificate, ..]) => match Identity::from_der(certificate) {
            Ok(identity) => Peer::Certificate { identity, address },
            Err(error) => {
                tracing::debug!(%address, %error, "certificate of our authority without an identity");
                return None;
            }
        },
    };
    Some(Connection::tls(stream, peer))
}

fn welcome_local(stream: UnixStream) -> Option<Connection> {
    match stream.peer_cred() {
        Ok(holder) => {
            let peer = Peer::Local { uid: holder.uid(), gid: holder.gid() };
            Some(Connection::local(stream, peer))
        }
        Err(error) => {
            tracing::warn!(%error, "the kernel does not name the process behind a local connection");
            None
        }
    }
}
