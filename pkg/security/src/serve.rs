//! Accepting connections: each is proved to be somebody's before anyone else sees it.

mod connection;
mod crowd;
mod desks;
mod local;
mod stay;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::server::Acceptor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::StartHandshake;
use tokio_stream::Stream;

pub use self::connection::Connection;
use self::crowd::{Crowd, Place};
use self::desks::Desks;
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
    /// How long somebody may be waited for at least who has one of those places and says nothing, when all of them are
    /// taken and one is needed. Longer than a round trip.
    pub patience: Duration,
    /// How many of them are answered at once: those who said hello wait for that, whoever is few first. So few that all
    /// are done within moments, however many come together, and enough to do others while one is silent. An address
    /// gets as many as are left for others.
    pub answered: usize,
    /// How long somebody who was answered counts as one of them at most. Longer than most round trips; whoever takes
    /// longer goes on all the same, since nearly all that it costs is done by then.
    pub answer_patience: Duration,
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
            handshakes: 512,
            deadline: Duration::from_secs(5),
            patience: Duration::from_secs(1),
            answered: 256,
            answer_patience: Duration::from_millis(250),
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
    let desks = Desks::new(limits.answered);
    let door = Arc::new(Door { config, limits, desks, strangers });
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
    config: Arc<ServerConfig>,
    limits: StrangerLimits,
    desks: Desks,
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
    let connection = match timeout(deadline, prove(&door, stream, address, &mut place)).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(error)) => {
            tracing::debug!(%address, %error, "TLS handshake refused");
            return None;
        }
        Err(_) => {
            tracing::debug!(%address, ?deadline, "TLS handshake took too long");
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
async fn prove(
    door: &Door,
    stream: TcpStream,
    address: SocketAddr,
    place: &mut Place,
) -> io::Result<Connection> {
    // Small frames go back and forth; waiting to fill segments would only delay them.
    stream.set_nodelay(true)?;
    let from = address.ip();
    let hello = place.while_held(hear(stream)).await.map_err(io::Error::other)??;
    place.heard();
    let desk = place.while_held(door.desks.enter(from)).await.map_err(io::Error::other)?;
    if has_left(&hello.io).await {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it left before it was answered"));
    }
    let mut handshake = pin!(hello.into_stream(Arc::clone(&door.config)).into_fallible());
    let at_desk = timeout(door.limits.answer_patience, &mut handshake);
    let done = place.while_held(at_desk).await.map_err(io::Error::other)?;
    drop(desk);
    place.awaited();
    let handshake = match done {
        Ok(done) => done,
        Err(_) => place.while_held(handshake).await.map_err(io::Error::other)?,
    };
    let stream = match handshake {
        Ok(stream) => stream,
        Err((error, refused)) => {
            // Whoever that is has been waited for, and may not have read why.
            let _ = place.while_held(timeout(LINGER, let_read(refused))).await;
            return Err(error);
        }
    };
    match stream.get_ref().1.peer_certificates() {
        None | Some([]) => {
            let room = place.while_held(door.strangers.enter(from)).await.map_err(io::Error::other)?;
            let stay = Stay::new(room, door.limits.lifetime, door.limits.bytes);
            Ok(Connection::tls(stream, Peer::Anonymous { address }, Some(stay)))
        }
        Some([certificate, ..]) => {
            // Of our authority, and yet without an identity: nobody.
            let identity = Identity::from_der(certificate).map_err(io::Error::other)?;
            Ok(Connection::tls(stream, Peer::Certificate { identity, address }, None))
        }
    }
}

/// Waits for the first word of a handshake, which costs nothing yet.
async fn hear(stream: TcpStream) -> io::Result<StartHandshake<TcpStream>> {
    let mut hello = LazyConfigAcceptor::new(Acceptor::default(), stream);
    match (&mut hello).await {
        Ok(started) => Ok(started),
        Err(error) => {
            if let Some(refused) = hello.take_io() {
                // It may not have read why.
                let _ = timeout(LINGER, let_read(refused)).await;
            }
            Err(error)
        }
    }
}

/// Whether the other side, whose turn it is not, has closed the connection.
async fn has_left(stream: &TcpStream) -> bool {
    let mut next = [0];
    tokio::select! {
        biased;
        peeked = stream.peek(&mut next) => !matches!(peeked, Ok(1..)),
        () = std::future::ready(()) => false,
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
