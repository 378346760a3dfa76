//! Accepting connections: each is proved to be somebody's before anyone else sees it.

mod connection;
mod crowd;
mod local;
mod stay;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_stream::Stream;

pub use self::connection::Connection;
use self::crowd::{Crowd, Place};
pub use self::local::{LocalListener, LocalSocketError};
use self::stay::Stay;
use crate::{Identity, Peer};

/// Connections that are proved and wait for the server to take them.
const READY: usize = 64;

/// How long to leave the listener alone after it failed, which is mostly for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long somebody who was refused may read why, and the most that is read of what they sent meanwhile.
const LINGER: Duration = Duration::from_millis(500);
const MOST_UNREAD: u64 = 64 << 10;

/// Local connections that wait for the server to take them, beyond [`READY`]; looking at one takes no time.
const LOCAL_IN_FLIGHT: usize = 16;

/// What those may cost who did not prove who they are: everybody during the handshake, and after it whoever
/// showed no certificate. Whoever proved its identity is under none of them.
#[derive(Clone, Copy, Debug)]
pub struct StrangerLimits {
    /// Handshakes at once; further connections wait in the kernel's queue.
    pub handshakes: usize,
    /// Handshakes that take longer are closed.
    pub deadline: Duration,
    /// How long a handshake may take at least when all of their places are taken and one is needed. Longer than
    /// a round trip.
    pub patience: Duration,
    /// Connections without a certificate at once. When all are taken, one from an address with fewer of them
    /// takes the place of another's.
    pub connections: usize,
    /// They are closed after this.
    pub lifetime: Duration,
    /// How many bytes each may send after the handshake; far more than joining needs.
    pub bytes: usize,
}

impl Default for StrangerLimits {
    fn default() -> Self {
        Self {
            handshakes: 256,
            deadline: Duration::from_secs(5),
            patience: Duration::from_millis(250),
            connections: 32,
            lifetime: Duration::from_secs(15),
            bytes: 128 << 10,
        }
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
pub fn serve_tls(listener: TcpListener, config: Arc<ServerConfig>, limits: StrangerLimits) -> Incoming {
    let accept = move |context: &mut Context<'_>| {
        listener.poll_accept(context).map_ok(|(stream, address)| ((stream, address), address.ip()))
    };
    let handshakes = Crowd::new(limits.handshakes, limits.patience);
    // A stranger has its lifetime, however many want its place; only from those who are many it is taken.
    let strangers = Crowd::new(limits.connections, limits.lifetime);
    let door = Arc::new(Door { acceptor: TlsAcceptor::from(config), limits, strangers });
    let welcome = move |(stream, address), place| welcome_tls(Arc::clone(&door), stream, address, place);
    serve(accept, welcome, handshakes)
}

/// Serves the unix socket: the peer is [`Peer::Local`]. Must be called within a tokio runtime.
pub fn serve_local(listener: LocalListener) -> Incoming {
    let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let accept =
        move |context: &mut Context<'_>| listener.poll_accept(context).map_ok(|stream| (stream, here));
    let welcome = |stream, place: Place| {
        place.keep();
        std::future::ready(welcome_local(stream).map(|connection| (connection, place)))
    };
    serve(accept, welcome, Crowd::new(LOCAL_IN_FLIGHT, Duration::ZERO))
}

fn serve<S, A, W, F>(accept: A, welcome: W, crowd: Crowd) -> Incoming
where
    S: Send + 'static,
    A: FnMut(&mut Context<'_>) -> Poll<io::Result<(S, IpAddr)>> + Send + 'static,
    W: Fn(S, Place) -> F + Send + 'static,
    F: Future<Output = Option<(Connection, Place)>> + Send + 'static,
{
    let (sender, ready) = mpsc::channel(READY);
    tokio::spawn(accept_until_closed(accept, welcome, crowd, sender));
    Incoming { ready }
}

async fn accept_until_closed<S, A, W, F>(
    mut accept: A,
    welcome: W,
    crowd: Crowd,
    ready: mpsc::Sender<Connection>,
) where
    A: FnMut(&mut Context<'_>) -> Poll<io::Result<(S, IpAddr)>>,
    W: Fn(S, Place) -> F,
    F: Future<Output = Option<(Connection, Place)>> + Send + 'static,
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
            accepted = poll_fn(&mut accept) => accepted,
        };
        match accepted {
            Ok((stream, from)) => {
                // Further connections wait in the kernel's queue while this one waits here.
                let place = tokio::select! {
                    () = ready.closed() => return,
                    place = crowd.enter(from) => place,
                };
                let (welcomed, ready) = (welcome(stream, place), ready.clone());
                handshakes.spawn(async move {
                    if let Some((connection, _place)) = welcomed.await {
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

/// What every handshake needs.
struct Door {
    acceptor: TlsAcceptor,
    limits: StrangerLimits,
    strangers: Crowd,
}

/// Strangers can cause every failure here at will, so that none is logged above `debug`.
async fn welcome_tls(
    door: Arc<Door>,
    stream: TcpStream,
    address: SocketAddr,
    mut place: Place,
) -> Option<(Connection, Place)> {
    let deadline = door.limits.deadline;
    let connection = tokio::select! {
        proved = tokio::time::timeout(deadline, prove(&door, stream, address)) => match proved {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => {
                tracing::debug!(%address, %error, "TLS handshake refused");
                return None;
            }
            Err(_) => {
                tracing::debug!(%address, ?deadline, "TLS handshake took too long");
                return None;
            }
        },
        () = place.lost() => {
            tracing::debug!(%address, "TLS handshake took too long for the number of them");
            return None;
        }
    };
    // It only waits for the server now.
    place.keep();
    Some((connection, place))
}

/// Closes a connection so that the alert just sent arrives: what came and was not read would make the kernel reset the
/// connection, and the other side forget what it had not read yet.
async fn let_read(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut unread = stream.take(MOST_UNREAD);
    tokio::io::copy(&mut unread, &mut tokio::io::sink()).await.map(drop)
}

/// Finds out who dialled. A stranger must also find a place among the strangers.
async fn prove(door: &Door, stream: TcpStream, address: SocketAddr) -> io::Result<Connection> {
    // Small frames go back and forth; waiting to fill segments would only delay them.
    stream.set_nodelay(true)?;
    let stream = match door.acceptor.accept(stream).into_fallible().await {
        Ok(stream) => stream,
        Err((error, refused)) => {
            // Whoever that is has been waited for, and may not have read why.
            let _ = timeout(LINGER, let_read(refused)).await;
            return Err(error);
        }
    };
    match stream.get_ref().1.peer_certificates() {
        None | Some([]) => {
            let place = door.strangers.enter(address.ip()).await;
            let stay = Stay::new(place, door.limits.lifetime, door.limits.bytes);
            Ok(Connection::tls(stream, Peer::Anonymous { address }, Some(stay)))
        }
        Some([certificate, ..]) => {
            // Of our authority, and yet without an identity: nobody.
            let identity = Identity::from_der(certificate).map_err(io::Error::other)?;
            Ok(Connection::tls(stream, Peer::Certificate { identity, address }, None))
        }
    }
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
