//! Queries on connections.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::answer::{Answerer, PendingReply};
use crate::packet::Transport;

/// The most connections.
const MAX_CONNECTIONS: usize = 128;
/// The most of them of one client.
const MAX_CONNECTIONS_PER_CLIENT: usize = 16;
/// A connection without a query for this time is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time for the rest of a query after its first bytes, and for sending an answer.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);
/// After an error of the listener, which may be there to stay.
const ERROR_DELAY: Duration = Duration::from_millis(100);

/// Open connections by client.
#[derive(Default)]
pub(super) struct Connections(Mutex<HashMap<IpAddr, usize>>);

/// The right to have one more connection.
struct ConnectionPermit {
    connections: Arc<Connections>,
    client: IpAddr,
}

impl Connections {
    fn permit(self: &Arc<Self>, client: IpAddr) -> Option<ConnectionPermit> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_client = open.get(&client).copied().unwrap_or_default();
        if of_client >= MAX_CONNECTIONS_PER_CLIENT || open.values().sum::<usize>() >= MAX_CONNECTIONS {
            return None;
        }
        open.insert(client, of_client + 1);
        Some(ConnectionPermit { connections: Arc::clone(self), client })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut open = self.connections.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.client);
            }
        }
    }
}

/// Accepts connections until the server is stopped. The limits are shared by all listeners.
pub(super) async fn serve(
    listener: TcpListener,
    connections: Arc<Connections>,
    answerer: Arc<Answerer>,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, client) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept DNS connections");
                tokio::time::sleep(ERROR_DELAY).await;
                continue;
            }
        };
        let Some(permit) = connections.permit(client.ip()) else {
            answerer.counters().rejected_connections.add();
            continue;
        };
        let (answerer, stop) = (Arc::clone(&answerer), stop.clone());
        tasks.spawn(async move {
            if let Err(error) = serve_connection(stream, client, &answerer, &stop).await {
                tracing::debug!(%error, %client, "DNS connection ended");
            }
            drop(permit);
        });
    }
}

/// One query after the other, so that a client cannot have more work done at a time than it has connections.
async fn serve_connection(
    mut stream: TcpStream,
    client: SocketAddr,
    answerer: &Answerer,
    stop: &CancellationToken,
) -> io::Result<()> {
    loop {
        let size = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            size = timeout(IDLE_TIMEOUT, stream.read_u16()) => size??,
        };
        let mut query = vec![0; size.into()];
        timeout(TRANSFER_TIMEOUT, stream.read_exact(&mut query)).await??;
        let reply = match answerer.answer(query, client, Transport::Tcp) {
            // Whoever sends this will not send queries either.
            PendingReply::None => return Ok(()),
            PendingReply::Ready(bytes) => bytes,
            PendingReply::Waiting(waiting) => waiting.reply(answerer).await,
        };
        let length = u16::try_from(reply.len()).map_err(io::Error::other)?;
        let framed = [&length.to_be_bytes(), &reply[..]].concat();
        timeout(TRANSFER_TIMEOUT, stream.write_all(&framed)).await??;
    }
}
